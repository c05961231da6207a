// SPDX-License-Identifier: Apache-2.0

package optimize

import (
	"slices"

	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
)

// Called joins functions to a program that begins with the first one, without those that it never calls, which the
// kernel refuses. Each part may have several.
func Called(parts ...asm.Instructions) asm.Instructions {
	var functions []asm.Instructions
	places := map[string]int{}
	for _, code := range parts {
		for start := 0; start < len(code); {
			end := start + 1
			for end < len(code) && btf.FuncMetadata(&code[end]) == nil {
				end++
			}
			places[code[start].Symbol()] = len(functions)
			functions = append(functions, code[start:end:end])
			start = end
		}
	}
	called := make([]bool, len(functions))
	called[0] = true
	for todo := []int{0}; len(todo) > 0; {
		last := len(todo) - 1
		f := functions[todo[last]]
		todo = todo[:last]
		for i := range f {
			if !f[i].IsFunctionReference() {
				continue
			}
			if to, known := places[f[i].Reference()]; known && !called[to] {
				called[to] = true
				todo = append(todo, to)
			}
		}
	}
	for i := range functions {
		if !called[i] {
			functions[i] = nil
		}
	}
	return slices.Concat(functions...)
}
