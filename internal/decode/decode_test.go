// SPDX-License-Identifier: Apache-2.0

package decode

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/big"
	"net/netip"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/kerb-edge/kerb/internal/seed"
)

type inner struct {
	Name string            `json:"name"`
	Kind string            `json:"kind,omitempty" enum:"a,b"`
	Tags map[string]string `json:"tags,omitempty"`
}

type outer struct {
	Log   inner            `json:"log,omitempty"`
	Maybe *inner           `json:"maybe,omitempty"`
	List  []inner          `json:"list,omitempty"`
	ByKey map[string]inner `json:"byKey,omitempty"`
	Addr  netip.Addr       `json:"addr,omitempty"`
	Free  map[string]any   `json:"free,omitempty"`
}

// What a file names without a value, often with only comments below, is as if it were not there; required values are
// missed, and what only a module understands is left alone.
func TestFieldsWithoutValue(t *testing.T) {
	for text, want := range map[string]string{
		"log:\nmaybe:\nlist:\nbyKey:\naddr:\nfree:\n":                                                 "",
		"log: {name: x, kind: , tags: }\nlist:\n- {name: foo, tags: }\nbyKey: {k: {name: z, kind: }}": "",
		"log: {name: }": "log.name: is of type null; want string",
		"list: [{}]":    "list[0]: missing name",
		"addr: x":       "addr: \"x\": want an IP address",
	} {
		object, _, err := Object("f", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		var o outer
		got := ""
		if err := Into(object, &o); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s:\ngot  %s\nwant %s", text, got, want)
		}
	}
	var o outer
	if _, err := File("f", []byte("free: {a: null, b: {c: null}}"), &o); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]any{"a": nil, "b": map[string]any{"c": nil}}, o.Free); diff != "" {
		t.Error(diff)
	}
}

// Mistakes cost in proportion to their number, and a large text is not copied many times.
func TestCostOfMistakes(t *testing.T) {
	allocated := func(n int) uint64 {
		value := map[string]any{"list": slicesOf(n), "free": map[string]any{"text": string(bytes.Repeat([]byte("<"), 1<<20))}}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if err := Validate(reflect.TypeFor[outer](), value); err == nil {
			t.Fatal("valid")
		}
		runtime.ReadMemStats(&after)
		return after.TotalAlloc - before.TotalAlloc
	}
	allocated(1)
	if few, many := allocated(1000), allocated(20000); many > 30*few || few > 5<<20 {
		t.Errorf("%d bytes for 1,000 mistakes, %d for 20,000", few, many)
	}
}

// Common is embedded in embedding, whose object has its fields.
type Common struct {
	Log  inner          `json:"log,omitempty"`
	Free map[string]any `json:"free,omitempty"`
}

type embedding struct {
	Also string `json:"also,omitempty"`
	Common
}

// What is kept as it was decoded is not written and read again, at any depth, and also of an embedded struct.
func TestKeptAsDecoded(t *testing.T) {
	type nested struct {
		Spec embedding `json:"spec"`
	}
	free := map[string]any{"text": strings.Repeat("<", 4<<20), "number": 1.5}
	object := map[string]any{"spec": map[string]any{"log": map[string]any{"name": "x"}, "free": free}}
	if err := Validate(reflect.TypeFor[nested](), object); err != nil { // makes the schema
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	var o nested
	err := Into(object, &o)
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; err != nil || n > 1<<20 {
		t.Errorf("%d KiB are allocated, %v", n>>10, err)
	}
	if diff := cmp.Diff(free, o.Spec.Free); diff != "" || o.Spec.Log.Name != "x" {
		t.Error(diff)
	}
	if spec := object["spec"].(map[string]any); spec["free"] == nil {
		t.Error("the object has lost a field")
	}
	o = nested{embedding{Common: Common{Log: inner{Name: "x"}, Free: map[string]any{"default": true}}}}
	if err := Into(object, &o); err != nil || len(o.Spec.Free) != 3 {
		t.Errorf("values that were there are lost: %d, %v", len(o.Spec.Free), err)
	}
}

func slicesOf(n int) []any {
	list := make([]any, n)
	for i := range list {
		list[i] = map[string]any{fmt.Sprint("nam", i): "x"}
	}
	return list
}

// What is ambiguous, inexact or nested too deep is refused, for that reason. Of all else, encoding/json reads the same.
func TestJSONAsEncodingJSON(t *testing.T) {
	nested := func(n int, in string) string { return strings.Repeat("[", n) + in + strings.Repeat("]", n) }
	texts := []string{`{"a":1,"b":[{"c":"x:\"y\\","d":null},{}, []],"e":-1.5e3,"f":true}`, ` [1, 2.0, "a"] `,
		`{"a":1,"\u0061":2}`, `{"a":{"b":1,"c":2},"a":{}}`, `{"a":{"a":1,"b":[{"a":1},{"a":2}]},"b":{"a":0}}`,
		`9007199254740993`, `[9007199254740991,-9007199254740992]`, `{"n":-18446744073709551616}`, `{"n":1e999}`, `[1] 2`,
		`"\ud800"`, "\"\xff\"", `{"":{"":1}}`, nested(66, ""), nested(65, "1"), nested(65, ""), nested(64, "1"),
		strings.Repeat("[", 70), ``, `{"a":1`, `{"a" 1}`}
	const other = "{}[]\",:\\ab01 .e-"
	random := seed.Rand(t)
	for range 20000 {
		text := []byte(texts[random.IntN(len(texts))])
		for range random.IntN(3) {
			if len(text) > 0 {
				text[random.IntN(len(text))] = other[random.IntN(len(other))]
			}
		}
		var want any
		wrong := json.Unmarshal(text, &want)
		got, err := JSON(bytes.Clone(text))
		switch reason := refusal(text); {
		case wrong != nil:
			if err == nil {
				t.Fatalf("%s: %v; encoding/json: %v", text, got, wrong)
			}
		case reason == "":
			if err != nil || !reflect.DeepEqual(got, want) {
				t.Fatalf("%s: %v, %v; encoding/json: %v", text, got, err, want)
			}
		case err == nil || !strings.Contains(err.Error(), reason):
			t.Fatalf("%s: %v, %v; want a refusal: %s", text, got, err, reason)
		}
	}
}

// refusal is the reason to refuse the first value or key of a JSON text that JSON does not take, though encoding/json
// does.
func refusal(text []byte) string {
	type container struct {
		keys   map[string]bool // of an object
		values int             // its keys count, too
	}
	var open []container
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	for {
		token, err := d.Token()
		if err != nil {
			return ""
		}
		if token == json.Delim(']') || token == json.Delim('}') {
			open = open[:len(open)-1]
			continue
		}
		name, isText := token.(string)
		if isText && strings.ContainsRune(name, utf8.RuneError) { // which none of the texts has
			return "not JSON: invalid"
		}
		isKey := false
		if len(open) > 0 {
			in := &open[len(open)-1]
			isKey = in.keys != nil && in.values%2 == 0
			in.values++
			if isKey && in.keys[name] {
				return "occurs twice"
			} else if isKey {
				in.keys[name] = true
			}
		}
		if !isKey && len(open) > 64 {
			return "nested more than 64 deep"
		}
		switch token := token.(type) {
		case json.Number:
			whole, isWhole := new(big.Int).SetString(token.String(), 10)
			if !isWhole {
				continue
			}
			if _, accuracy := new(big.Float).SetInt(whole).Float64(); accuracy != big.Exact {
				return "cannot be kept exactly"
			}
		case json.Delim:
			open = append(open, container{})
			if token == '{' {
				open[len(open)-1].keys = map[string]bool{}
			}
		}
	}
}

// Mistakes in JSON have the path of their field, or else their place in the text.
func TestMistakesInJSON(t *testing.T) {
	for text, want := range map[string]string{
		`{"a":{"b":[1,{"c":1,"c":2}]}}`:   "a.b[1].c: occurs twice",
		`{"80":{"1":1,"1":2}}`:            "80.1: occurs twice",
		`{"a":1,"\u0061":2}`:              "a: occurs twice",
		`{"a":[0,9007199254740993]}`:      "a[1]: 9007199254740993 cannot be kept exactly, as all integers up to 9007199254740992 can",
		`[{"a.b":-18446744073709551616}]`: "",
		`{"a":-18446744073709551615}`:     "a: -18446744073709551615 cannot be kept exactly, as all integers up to 9007199254740992 can",
		`{"a":{"b":1e999}}`:               "a.b: 1e999 is out of range for a number",
		`{"a" 1}`:                         "not JSON: invalid character '1' after object name (expecting ':') (at byte 5)",
		`{"a":1,}`:                        "not JSON: invalid character ',' at start of value (at byte 6)",
		`{"a":1`:                          "unexpected end of JSON",
		``:                                "unexpected end of JSON",
		`{"a":1}{}`:                       "unexpected data after the JSON value",
		`[1]x`:                            "unexpected data after the JSON value",
		"\"\xff\"":                        "not JSON: invalid UTF-8 (at byte 1)",
		strings.Repeat("[", 1<<20):        "nested more than 64 deep",
		strings.Repeat(`{"a":[`, 40):      "nested more than 64 deep",
		strings.Repeat("[", 64) + strings.Repeat("]", 64): "",
	} {
		got := ""
		if _, err := JSON([]byte(text)); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%.60s:\ngot  %s\nwant %s", text, got, want)
		}
	}
}

// BenchmarkJSON reads a firewall of 100 rules.
func BenchmarkJSON(b *testing.B) {
	rule := `{"action":"deny","protocol":"tcp","src":"203.0.113.7","dstPort":8080,"direction":"ingress"}`
	text := []byte(`{"spec":{"config":{"rules":[` + strings.Repeat(rule+",", 99) + rule + `]}}}`)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := JSON(text); err != nil {
			b.Fatal(err)
		}
	}
}
