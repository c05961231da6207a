// SPDX-License-Identifier: Apache-2.0

package optimize

import (
	"iter"
	"math/bits"
	"slices"

	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
)

// Fold returns functions in which numbers stand where constants were read from memory, and without the addresses that
// nothing else needed. contents gives the bytes of a data section that never changes, nil for any other map.
func Fold(code asm.Instructions, contents func(section string) []byte) asm.Instructions {
	isConstant := func(ins asm.Instruction) bool { return reads(&ins, contents) != nil }
	if !slices.ContainsFunc(code, isConstant) {
		return code
	}
	return eachFunction(code, func(f asm.Instructions) asm.Instructions { return foldFunction(f, contents) })
}

// eachFunction replaces each of the functions.
func eachFunction(code asm.Instructions, do func(asm.Instructions) asm.Instructions) asm.Instructions {
	out := make(asm.Instructions, 0, len(code))
	for start := 0; start < len(code); {
		end := start + 1
		for end < len(code) && btf.FuncMetadata(&code[end]) == nil {
			end++
		}
		out = append(out, do(code[start:end])...)
		start = end
	}
	return out
}

// reads returns the bytes from the address on that an instruction loads.
func reads(ins *asm.Instruction, contents func(string) []byte) []byte {
	if !ins.OpCode.IsDWordLoad() || ins.Src != asm.PseudoMapValue || ins.Reference() == "" {
		return nil
	}
	data, offset := contents(ins.Reference()), int(uint64(ins.Constant)>>32)
	return data[min(offset, len(data)):]
}

// foldFunction replaces loads from read-only data by constants and removes address loads that no instruction needs
// afterwards. Knowledge ends at each block's boundary; the code is returned unchanged if it cannot be parsed or
// emitted.
func foldFunction(code asm.Instructions, contents func(string) []byte) asm.Instructions {
	if !slices.ContainsFunc(code, func(ins asm.Instruction) bool { return reads(&ins, contents) != nil }) {
		return code
	}
	p := programs.Get().(*program)
	defer p.release()
	if !p.parse(code, nil) {
		return code
	}
	p.blocks()
	var known [asm.R10 + 1]address
	for i := range p.code {
		n := &p.code[i]
		if p.block[i] > 0 {
			clear(known[:])
		}
		if from := n.Src; n.OpCode.Class() == asm.LdXClass && n.fold(known[from].data) {
			known[from].folded = true
		} else {
			for r := range registers(n.uses()) {
				known[r].needed = true
			}
		}
		for r := range registers(n.sets()) {
			if a := known[r]; a.folded && !a.needed {
				p.code[a.from].removed = true
			}
			known[r] = address{data: reads(&n.Instruction, contents), from: i}
		}
	}
	if out, ok := p.emit(); ok {
		return out
	}
	return code
}

// address is that of constants, in a register.
type address struct {
	data   []byte // from there on
	from   int    // the instruction that loaded it
	folded bool   // something was read there
	needed bool   // by what still stands
}

// fold makes a load of a constant a number, if it is one.
func (n *node) fold(data []byte) bool {
	size, at := n.OpCode.Size().Sizeof(), int(n.Offset)
	if n.OpCode.Mode() != asm.MemMode || !n.fixed || at < 0 || at+size > len(data) {
		return false
	}
	number := int64(get(data[at : at+size]))
	ins := asm.LoadImm(n.Dst, number, asm.DWord)
	if size < 8 {
		ins = asm.Mov.Imm32(n.Dst, int32(number))
	} else if number == int64(int32(number)) {
		ins = asm.Mov.Imm(n.Dst, int32(number))
	}
	n.Instruction = ins.WithMetadata(n.Metadata)
	return true
}

// argumentRegisters are R1 to R5, as a set of bits.
const argumentRegisters = 0b111110

// registers are those of a set of bits.
func registers(set uint16) iter.Seq[asm.Register] {
	return func(yield func(asm.Register) bool) {
		for ; set != 0; set &= set - 1 {
			if !yield(asm.Register(bits.TrailingZeros16(set))) {
				return
			}
		}
	}
}

// uses is the set of the registers that an instruction may read.
func (n *node) uses() uint16 {
	class, op := n.OpCode.Class(), n.OpCode
	switch {
	case n.calls():
		return argumentRegisters
	case class == asm.LdXClass:
		return 1 << n.Src
	case class == asm.LdClass:
		return 0
	case class.IsALU() && op.ALUOp() == asm.Mov && op.Source() == asm.RegSource:
		return 1 << n.Src
	case class.IsALU() && op.ALUOp() == asm.Mov:
		return 0
	}
	return 1<<n.Dst | 1<<n.Src | 1<<asm.R0
}

// sets is the set of the registers that an instruction writes.
func (n *node) sets() uint16 {
	class := n.OpCode.Class()
	switch {
	case n.calls():
		return argumentRegisters | 1<<asm.R0
	case class.IsALU(), class.IsLoad():
		return 1 << n.Dst
	case class == asm.StXClass && n.OpCode.Mode() == asm.AtomicMode:
		return 1<<n.Src | 1<<asm.R0
	}
	return 0
}
