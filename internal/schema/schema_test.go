// SPDX-License-Identifier: Apache-2.0

package schema

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/yamldoc"
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

// parse returns YAML as encoding/json has it.
func parse(t *testing.T, text string) (value any) {
	t.Helper()
	tree, _, err := yamldoc.Decode([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(tree)
	if err == nil {
		err = json.Unmarshal(data, &value)
	}
	if err != nil {
		t.Fatal(err)
	}
	return value
}

// All mistakes are reported, the right alternative is explained, and misspelt fields get the name that was meant.
func TestConfigErrors(t *testing.T) {
	s, err := Compile(parse(t, portSchema).(map[string]any), false)
	if err != nil {
		t.Fatal(err)
	}
	config := parse(t, `{rules: [{dstPort: 80800}, {dstPort: "x"}, {dstport: 80}, {action: false, dstPort: true}]}`)
	var got []string
	for _, e := range apierrors.Invalids(s.Validate(config)) {
		got = append(got, e.Error())
	}
	for _, want := range []string{
		"rules[0].dstPort: is 80800; want at most 65535",
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

// A misspelt field is one mistake, read-only fields are not suggested, and formats count.
func TestMistakes(t *testing.T) {
	s := MustCompile(
		[]byte(`{"type": "object", "additionalProperties": false, "required": ["source", "ports"], "properties": {
		"source": {"type": "string", "format": "ip"}, "status": {"type": "string", "readOnly": true},
		"ports": {"type": "array", "maxItems": 1, "items": {"$ref": "#/$defs/port"}}},
		"$defs": {"port": {"type": "object", "required": ["number"], "properties": {"number": {"type": "integer"}}}}}`))
	for text, want := range map[string]string{
		`{source: 192.0.2.1, ports: [{number: 1}], status: x}`: "",
		`{sorce: 192.0.2.1, ports: []}`: "sorce: unknown field; known are ports, source; did you " +
			"mean source?",
		`{source: 192.0.2.256, ports: [{}]}`: "ports[0]: missing number\nsource: \"192.0.2.256\": want " +
			"an IP address",
		`{source: "::1", ports: [{numer: 1}]}`: "ports[0].numer: unknown field; known are number; did you " +
			"mean number?",
		`{source: "::1", ports: [{number: 1}, {number: 2}]}`: "ports: has 2 items; want at most 1",
		`{}`: "missing source\nmissing ports",
	} {
		got := ""
		if err := s.Validate(parse(t, text)); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s:\ngot  %s\nwant %s", text, got, want)
		}
	}
}
