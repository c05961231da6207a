// SPDX-License-Identifier: Apache-2.0

package optimize

import (
	"slices"

	"github.com/cilium/ebpf/asm"
)

// Without returns functions without the calls that drop selects, which return nothing, and without what only computes
// their arguments or decides whether they are made. A function with instructions that are not understood keeps the
// arguments: its calls become moves to R0, which a call changes.
func Without(code asm.Instructions, drop func(asm.Instruction) bool) asm.Instructions {
	if !slices.ContainsFunc(code, drop) {
		return code
	}
	return eachFunction(code, func(f asm.Instructions) asm.Instructions {
		if !slices.ContainsFunc(f, drop) {
			return f
		}
		if out, ok := without(f, drop); ok {
			return out
		}
		out := slices.Clone(f)
		for i := range out {
			if drop(out[i]) {
				out[i] = asm.Mov.Imm(asm.R0, 0).WithMetadata(out[i].Metadata)
			}
		}
		return out
	})
}

func without(code asm.Instructions, drop func(asm.Instruction) bool) (asm.Instructions, bool) {
	p := programs.Get().(*program)
	defer p.release()
	if !p.parse(code, nil) {
		return nil, false
	}
	for i := range p.code {
		p.code[i].dropped = drop(p.code[i].Instruction)
	}
	p.backward() // while the calls stand: no register of an argument is read after one
	for i := range p.code {
		n := &p.code[i]
		n.removed = n.removed || n.dropped
	}
	p.straighten()
	p.backward() // what decided about a branch that is gone
	return p.emit()
}
