// SPDX-License-Identifier: Apache-2.0

package schema

import (
	"fmt"
	"testing"
)

// BenchmarkValidate checks a firewall of 100 rules with fits, and with the compiled schema alone.
func BenchmarkValidate(b *testing.B) {
	s, err := Compile(configSchemas(b)["firewall"], false)
	if err != nil {
		b.Fatal(err)
	}
	rules := make([]any, 100)
	for i := range rules {
		rules[i] = map[string]any{"action": "deny", "src": fmt.Sprint("10.0.0.", i), "dstPort": float64(1 + i),
			"protocol": "tcp", "direction": "ingress"}
	}
	config := map[string]any{"rules": rules}
	for name, validate := range map[string]func(any) error{"fits": s.Validate, "compiled": s.compiled.Validate} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := validate(config); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
