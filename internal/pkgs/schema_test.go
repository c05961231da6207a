// SPDX-License-Identifier: Apache-2.0

package pkgs

import (
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

const portSchema = `
properties:
  rules:
    type: array
    items:
      type: object
      properties:
        action: {enum: [allow, deny]}
        dstPort: {oneOf: [{type: integer, minimum: 1, maximum: 65535}, {type: string, pattern: "^[0-9]+-[0-9]+$", patternDescription: "a range, 1-1024"}]}
        proto: {type: string}
`

// All mistakes are reported, the right alternative is explained, and misspelt fields get the name that was meant.
func TestConfigErrors(t *testing.T) {
	var tree map[string]any
	if err := yaml.Unmarshal([]byte(portSchema), &tree); err != nil {
		t.Fatal(err)
	}
	s, err := compileSchema(tree)
	if err != nil {
		t.Fatal(err)
	}
	var config any
	text := `{rules: [{dstPort: 80800}, {dstPort: "x"}, {dstport: 80}, {action: no, dstPort: true}]}`
	if err := yaml.Unmarshal([]byte(text), &config); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range configErrors(s.validate(config)) {
		got = append(got, e.Error())
	}
	for _, want := range []string{
		"rules[0].dstPort: maximum: got 80800, want 65535",
		`rules[1].dstPort: "x": want a range, 1-1024`,
		"rules[2].dstport: unknown field; known are action, dstPort, proto; did you mean dstPort?",
		"rules[3].action: is false; want one of allow, deny",
		"rules[3].dstPort: is of type boolean; want integer, or is of type boolean; want string",
	} {
		found := false
		for _, line := range got {
			found = found || line == want
		}
		if !found {
			t.Errorf("no %q in\n%s", want, strings.Join(got, "\n"))
		}
	}
	if len(got) != 5 {
		t.Errorf("%d mistakes, want 5", len(got))
	}
}
