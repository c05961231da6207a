// SPDX-License-Identifier: Apache-2.0

package yamldoc_test

import (
	"fmt"
	"testing"

	"github.com/kerb-edge/kerb/internal/yamldoc"
)

const file = `# two documents
kind: a
spec:
  rules:
  - port: 010
    "dotted.key": {x: 1}
  - &anchor {port: 2}
---
- kind: b
  value: 0x10
- *missing
---
[{"kind": "c"}, {"kind": "d", "port": 007}]
`

func TestPositions(t *testing.T) {
	index := yamldoc.Parse([]byte(file))
	for _, c := range []struct {
		resource int
		field    string
		want     string
	}{
		{0, "", "2:1"}, {0, "kind", "2:1"}, {0, "spec.rules[0].port", "5:5"}, {0, "spec.rules[1].port", "7:14"},
		{0, "spec.rules[0].dotted.key.x", "6:20"}, {0, "spec.rules[9].port", "4:3"}, {0, "spec.missing.x", "3:1"},
		{1, "kind", "13:3"}, {2, "port", "13:31"}, {7, "kind", "0:0"}, {-1, "", "0:0"},
	} {
		line, column := index.At(c.resource, c.field)
		if got := fmt.Sprintf("%d:%d", line, column); got != c.want {
			t.Errorf("resource %d, %q: %s, want %s", c.resource, c.field, got, c.want)
		}
	}
}

func TestOctals(t *testing.T) {
	var got []string
	for _, part := range yamldoc.Split([]byte(file)) {
		for _, o := range yamldoc.Octals(part) {
			got = append(got, fmt.Sprintf("%d:%d %s %s=%s", o.Line, o.Column, o.Field, o.Value, o.Octal))
		}
	}
	if want := "[5:11 spec.rules[0].port 010=8 13:39 [1].port 007=7]"; fmt.Sprint(got) != want {
		t.Errorf("got %v\nwant %s", got, want)
	}
	for _, fine := range []string{"a: 0", "a: 0.5", "a: 0x10", `a: "010"`, "a: 10", "a: 2026-01-02", "a: 10.0.0.1",
		"a: 0a", "a: '00'", "a: !!str 010"} {
		if found := yamldoc.Octals([]byte(fine)); len(found) > 0 {
			t.Errorf("%s: %v", fine, found)
		}
	}
}
