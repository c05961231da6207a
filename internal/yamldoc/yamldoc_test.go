// SPDX-License-Identifier: Apache-2.0

package yamldoc_test

import (
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
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
		_, octals, _ := yamldoc.Decode(part)
		for _, o := range octals {
			got = append(got, fmt.Sprintf("%d:%d %s %s=%s", o.Line, o.Column, o.Field, o.Value, o.Octal))
		}
	}
	if want := "[5:11 spec.rules[0].port 010=8 13:39 [1].port 007=7]"; fmt.Sprint(got) != want {
		t.Errorf("got %v\nwant %s", got, want)
	}
	for _, fine := range []string{"a: 0", "a: 0.5", "a: 0x10", `a: "010"`, "a: 10", "a: 2026-01-02", "a: 10.0.0.1",
		"a: 0a", "a: '00'", "a: !!str 010"} {
		if _, found, err := yamldoc.Decode([]byte(fine)); len(found) > 0 || err != nil {
			t.Errorf("%s: %v, %v", fine, found, err)
		}
	}
}

func TestDecode(t *testing.T) {
	for text, want := range map[string]string{
		"": "null",
		"a: [1, 18446744073709551615, 2.5, -3, 1e3]": `{"a":[1,18446744073709551615,2.5,-3,1000]}`,
		"a: [yes, no, on, off, y, true]":             `{"a":["yes","no","on","off","y",true]}`, // as YAML 1.2 has it
		"a: [2026-01-02, !!timestamp 2026-01-02, 2026-01-02T03:04:05Z, ~]": `{"a":["2026-01-02","2026-01-02",` +
			`"2026-01-02T03:04:05Z",null]}`,
		"{80: a, 1.5: b, true: c, ~: d, 2026-01-02: e, 010: f}": `{"010":"f","1.5":"b","2026-01-02":"e","80":"a",` +
			`"true":"c","~":"d"}`,
		"a: &x {b: 1}\nc: {<<: *x, d: *x}": `{"a":{"b":1},"c":{"b":1,"d":{"b":1}}}`,
		"b: |\n  two\n  lines\n":           `{"b":"two\nlines\n"}`,
	} {
		value, _, err := yamldoc.Decode([]byte(text))
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if got, err := json.Marshal(value); err != nil || string(got) != want {
			t.Errorf("%s:\ngot  %s, %v\nwant %s", text, got, err, want)
		}
	}
}

func TestDecodeErrors(t *testing.T) {
	for text, want := range map[string]string{
		"a: 1\nb: 2\na: 3":                  "line 3: mapping key \"a\" already defined at line 1",
		"80: a\n\"80\": b":                  "line 2: mapping key \"80\" already defined at line 1",
		"a: 1\n  b: 2":                      "line 2: mapping values are not allowed in this context",
		"a: *missing":                       "unknown anchor 'missing' referenced",
		"? {a: 1}\n: b":                     "invalid map key",
		"a: &a [*a]":                        "anchor 'a' value contains itself",
		"a: 1\n...\nb: 2":                   "line 2: did not find expected <document start>",
		"a: !!int x":                        "cannot decode !!str `x` as a !!int",
		strings.Repeat("x", 9) + ":\n\t- a": "line 2: found character that cannot start any token",
	} {
		if value, _, err := yamldoc.Decode([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, %v; want %s", text, value, err, want)
		}
	}
	bomb := "a0: &a0 [x, x, x, x, x, x, x, x, x]\n"
	for i := range 9 {
		bomb += fmt.Sprintf("a%d: &a%d [%s]\n", i+1, i+1, strings.Repeat(fmt.Sprintf("*a%d, ", i), 9))
	}
	if _, _, err := yamldoc.Decode([]byte(bomb)); err == nil || !strings.Contains(err.Error(), "excessive aliasing") {
		t.Errorf("aliases of aliases: %v", err)
	}
}

func TestEncode(t *testing.T) {
	type item struct {
		Name string   `json:"name"`
		List []string `json:"list,omitempty"`
		N    any      `json:"n,omitempty"`
	}
	got, err := yamldoc.Encode([]item{{Name: "yes", List: []string{"a: b", "010", "2026-01-02", "two\nlines"}, N: 1 << 53},
		{N: 1e6}, {Name: strings.Repeat("word ", 30) + "<&>"}})
	if err != nil {
		t.Fatal(err)
	}
	want := `- list:
  - 'a: b'
  - "010"
  - "2026-01-02"
  - |-
    two
    lines
  "n": 9007199254740992
  name: "yes"
- "n": 1000000
  name: ""
- name: ` + strings.Repeat("word ", 30) + "<&>\n"
	if string(got) != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// What a document is made to take of memory is about its length, however its parts are nested or repeated.
func TestMemoryOfDocuments(t *testing.T) {
	key, text := `"`+strings.Repeat("k", 900)+`": `, strings.Repeat("x", 50_000)
	for name, tc := range map[string]struct{ text, want string }{
		"deep":   {"a: " + strings.Repeat("{"+key, 1000), "line 1"},
		"nested": {strings.Repeat("[", 70) + strings.Repeat("]", 70), "nested more than 64 deep"},
		"wide": {strings.Repeat("{"+key, 60) + "[" + strings.Repeat("010, ", 20_000) + "]" +
			strings.Repeat("}", 60), ""},
		"repeated texts":   {"a: &a " + text + "\nb: [" + strings.Repeat("*a, ", 2_000) + "]", "aliases repeat texts"},
		"repeated mapping": {"a: &a {x: " + text + "}\nb: [" + strings.Repeat("*a, ", 2_000) + "]", "aliases repeat texts"},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, octals, err := yamldoc.Decode([]byte(tc.text))
		runtime.ReadMemStats(&after)
		if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) || len(octals) > 100 {
			t.Errorf("%s: %v, %d octals; want %q", name, err, len(octals), tc.want)
		}
		if n := after.TotalAlloc - before.TotalAlloc; n > 64<<20 {
			t.Errorf("%s: %d MiB for %d KiB", name, n>>20, len(tc.text)>>10)
		}
	}
}
