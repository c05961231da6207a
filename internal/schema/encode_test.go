// SPDX-License-Identifier: Apache-2.0

package schema

import (
	"encoding/json"
	"fmt"
	"math"
	"testing"
)

// checkEncode compares with encoding/json.
func checkEncode(t *testing.T, v any) {
	t.Helper()
	want, wantErr := json.Marshal(v)
	got, err := Encode(v)
	if string(got) != string(want) || (err == nil) != (wantErr == nil) {
		t.Errorf("%#v: %s (%v), want %s (%v)", v, got, err, want, wantErr)
	}
}

func TestEncode(t *testing.T) {
	var all []any
	for _, n := range []float64{0, math.Copysign(0, -1), 1, -1, 0.5, 1e-6, 9e-7, 1e20, 1e21, -1e21, 1 << 53,
		math.MaxFloat64, math.SmallestNonzeroFloat64} {
		all = append(all, n)
	}
	for c := range rune(0x300) {
		all = append(all, "a"+string(c)+"b")
	}
	all = append(all, nil, true, false, "", "\xff", "\u2028", []any{}, []any(nil), map[string]any{}, map[string]any(nil),
		map[string]any{"b": 1.0, "a": []any{map[string]any{"<": nil}}, "": ""}, 7, json.Number("1.50"), []string{"x"})
	for _, v := range all {
		checkEncode(t, v)
		checkEncode(t, []any{v, map[string]any{fmt.Sprint(v): v}})
	}
	checkEncode(t, all)
	checkEncode(t, []any{math.NaN()})
	checkEncode(t, math.Inf(1))
}

func FuzzEncode(f *testing.F) {
	f.Add([]byte(`{"rules":[{"action":"deny","src":"203.0.113.1","dstPort":20000,"x":[1.5e-7,null,"é<"]}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		var v any
		if json.Unmarshal(text, &v) == nil {
			checkEncode(t, v)
		}
	})
}

// BenchmarkEncode is a config of 100 rules: go test -run - -bench Encode ./internal/schema
func BenchmarkEncode(b *testing.B) {
	var rules []any
	for i := range 100 {
		rules = append(rules, map[string]any{"action": "deny", "src": fmt.Sprint("203.0.113.", i), "direction": "ingress"})
	}
	config := map[string]any{"rules": rules}
	for name, encode := range map[string]func(any) ([]byte, error){"Encode": Encode, "json.Marshal": json.Marshal} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if _, err := encode(config); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
