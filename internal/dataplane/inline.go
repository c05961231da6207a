// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
)

// A small function costs less than the call to it, so the linker inlines the head and small modules into the entry.
// Their frames overlap at the top of the entry's frame, with the packet context below all of them.
const (
	inlineMost  = 512 // instructions; jumps in the entry reach 32,767
	inlineStack = 192 // bytes; modules that are called have 512 less this and the context
)

// body is a function of the chain, inlined or called.
type body struct {
	symbol string
	own    asm.Instructions // the function itself
	others asm.Instructions // what it calls
	stack  int32            // bytes that own uses
	inline bool
	notes  bool // it calls kerb_note
}

// newBody splits a function from those that follow it.
func newBody(symbol string, code asm.Instructions) body {
	n := len(code)
	for i := 1; i < len(code); i++ {
		if btf.FuncMetadata(&code[i]) != nil {
			n = i
			break
		}
	}
	b := body{symbol: symbol, own: code[:n], others: code[n:], stack: stackOf(code[:n])}
	b.inline = n <= inlineMost && b.stack <= inlineStack
	return b
}

// stackOf returns an upper bound of a function's stack: the lowest offset from the frame pointer in accesses and, if
// its address is taken, in any subtraction.
func stackOf(code asm.Instructions) int32 {
	lowest, taken := int32(0), false
	for _, ins := range code {
		class := ins.OpCode.Class()
		if class.IsLoad() && ins.Src == asm.RFP || class.IsStore() && ins.Dst == asm.RFP {
			lowest = min(lowest, int32(ins.Offset))
		}
		if class.IsALU() && ins.OpCode.ALUOp() == asm.Mov && ins.OpCode.Source() == asm.RegSource && ins.Src == asm.RFP {
			taken = true
		}
	}
	for _, ins := range code {
		if taken && ins.OpCode.Class().IsALU() && ins.OpCode.ALUOp() == asm.Add && ins.OpCode.Source() == asm.ImmSource {
			lowest = min(lowest, int32(max(ins.Constant, -1024)))
		}
	}
	return (-lowest + 7) &^ 7
}

// inlined returns the function with its name only as a source line, and its exits replaced by jumps to a label.
func (b body) inlined(end string) asm.Instructions {
	code := make(asm.Instructions, len(b.own))
	copy(code, b.own)
	code[0] = btf.WithFuncMetadata(code[0].WithSymbol(""), nil).WithSource(asm.Comment(b.symbol))
	jump := asm.Ja.Label(end)
	for i := range code {
		if code[i].OpCode.JumpOp() != asm.Exit || !code[i].OpCode.Class().IsJump() {
			continue
		}
		if kept := code[i].Metadata; kept == (asm.Metadata{}) { // as nearly all have none
			code[i] = jump
		} else {
			code[i] = jump.WithMetadata(kept).WithReference(end)
		}
	}
	return code
}

// rest returns the code that has to be outside the entry.
func (b body) rest() asm.Instructions {
	if b.inline {
		return b.others
	}
	return append(b.own[:len(b.own):len(b.own)], b.others...)
}
