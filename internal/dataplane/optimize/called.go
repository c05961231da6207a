// SPDX-License-Identifier: Apache-2.0

package optimize

import (
	"slices"

	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
)

// Called returns a program without the functions that it never calls, which the kernel refuses.
func Called(code asm.Instructions) asm.Instructions {
	var functions []asm.Instructions
	places := map[string]int{}
	for start := 0; start < len(code); {
		end := start + 1
		for end < len(code) && btf.FuncMetadata(&code[end]) == nil {
			end++
		}
		places[code[start].Symbol()] = len(functions)
		functions = append(functions, code[start:end:end])
		start = end
	}
	called := make([]bool, len(functions))
	called[0] = true
	for todo := []int{0}; len(todo) > 0; {
		last := len(todo) - 1
		f := functions[todo[last]]
		todo = todo[:last]
		for i := range f {
			to, known := places[f[i].Reference()]
			if known && f[i].IsFunctionReference() && !called[to] {
				called[to] = true
				todo = append(todo, to)
			}
		}
	}
	if !slices.Contains(called, false) {
		return code
	}
	var out asm.Instructions
	for i, f := range functions {
		if called[i] {
			out = append(out, f...)
		}
	}
	return out
}
