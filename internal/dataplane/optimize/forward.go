// SPDX-License-Identifier: Apache-2.0

package optimize

import (
	"slices"

	"github.com/cilium/ebpf/asm"
)

// forward follows the program with what is known at each place, and simplifies what follows from that. Blocks are taken
// in the order of the program: where paths meet, nearly all of them have been followed by then.
func (p *program) forward() {
	p.blocks()
	p.states = zeroed(p.states, p.count)
	first := p.next(0)
	p.states[p.block[first]] = begin()
	todo := make([]bool, len(p.code)+1)
	todo[first] = true
	for i := first; i < len(p.code); i++ {
		if todo[i] {
			todo[i] = false
			i = min(i, p.follow(i, todo)-1)
		}
	}
	p.simplify()
}

// follow follows a block to its end, and notes where more is known by that. It returns the first such place.
func (p *program) follow(i int, todo []bool) (first int) {
	p.followed++
	first = len(p.code)
	s := p.states[p.block[i]]
	p.assume(i, &s)
	for {
		n := &p.code[i]
		next, count := p.after(i)
		if taken, decided := s.decides(n); decided && !n.goes() {
			next[0], count = next[1], 1
			if !taken {
				next[0] = p.next(i + 1)
			}
		}
		s.step(n)
		if count == 1 && p.block[next[0]] == 0 {
			i = next[0]
			continue
		}
		for _, to := range next[:count] {
			if p.states[p.block[to]].merge(&s) {
				todo[to], first = true, min(first, to)
			}
		}
		return first
	}
}

// assume adds the facts of a place.
func (p *program) assume(i int, s *state) {
	for _, f := range p.facts[i] {
		s.write(frameSize+f.Offset, 1, value{constant, int64(f.Value)})
	}
}

// simplify rewrites the program by what is known where blocks begin.
func (p *program) simplify() {
	var s state
	for i := range p.code {
		n := &p.code[i]
		if n.removed {
			continue
		}
		if p.block[i] > 0 {
			s = p.states[p.block[i]]
			p.assume(i, &s)
		}
		if !s.reached {
			n.removed = true
			continue
		}
		s.rewrite(n)
		p.accesses[i] = s.access(n)
		s.step(n)
	}
}

// rewrite simplifies one instruction, with what is known before it.
func (s *state) rewrite(n *node) {
	class := n.OpCode.Class()
	if taken, decided := s.decides(n); decided && !n.goes() {
		n.Instruction = asm.Ja.Label("").WithMetadata(n.Metadata)
		n.removed = !taken
		return
	}
	s.rewriteOperand(n)
	switch {
	case !n.fixed:
	case class == asm.LdXClass && n.OpCode.Mode() == asm.MemMode:
		s.rewriteBase(n)
		s.rewriteLoad(n)
	case class.IsStore() && n.OpCode.Mode() == asm.MemMode:
		s.rewriteStore(n)
	case class.IsALU():
		result := s.result(n)
		n.removed = result.kind >= constant && result == s.regs[n.Dst]
	}
}

var plainOps = []asm.ALUOp{asm.Mov, asm.Add, asm.Sub, asm.Mul, asm.And, asm.Or, asm.Xor}

// rewriteOperand puts a number in place of a register that has it. Shifts and divisions stay, as the kernel refuses
// some numbers there.
func (s *state) rewriteOperand(n *node) {
	op := n.OpCode
	if op.Source() != asm.RegSource || !n.fixed || n.Offset != 0 && !n.jumps() {
		return
	}
	switch {
	case n.jumps() && !n.goes() && op.JumpOp() != asm.JCOND:
	case op.Class().IsALU() && slices.Contains(plainOps, op.ALUOp()):
	default:
		return
	}
	dst, v := n.Dst, s.regs[n.Src]
	if other, ok := swapped[op.JumpOp()]; n.jumps() && ok && v.kind != constant {
		op, dst, v = op.SetJumpOp(other), n.Src, s.regs[n.Dst]
	}
	if v.kind == constant && v.n == int64(int32(v.n)) {
		n.OpCode, n.Dst, n.Src, n.Constant = op.SetSource(asm.ImmSource), dst, 0, v.n
	}
}

// swapped are the comparisons that say the same with the operands in the other order.
var swapped = map[asm.JumpOp]asm.JumpOp{asm.JEq: asm.JEq, asm.JNE: asm.JNE, asm.JSet: asm.JSet, asm.JGT: asm.JLT,
	asm.JLT: asm.JGT, asm.JGE: asm.JLE, asm.JLE: asm.JGE, asm.JSGT: asm.JSLT, asm.JSLT: asm.JSGT, asm.JSGE: asm.JSLE,
	asm.JSLE: asm.JSGE}

// rewriteLoad replaces a load from the stack by the constant or the register that holds the same value, if one is
// known. Otherwise the load is based on the frame pointer, which frees the register that held the address.
func (s *state) rewriteLoad(n *node) {
	size := n.OpCode.Size().Sizeof()
	at, ok := s.slot(n.Src, n.Offset, size)
	if !ok {
		return
	}
	if v := s.read(at, size); v.kind == constant && v.n == int64(int32(v.n)) {
		n.Instruction = asm.Mov.Imm(n.Dst, int32(v.n)).WithMetadata(n.Metadata)
		return
	}
	n.Src, n.Offset = asm.RFP, int16(at-frameSize)
	r, found := s.copyOf(span{int16(at), int16(size)})
	switch {
	case !found:
	case size == 4:
		n.Instruction = asm.Mov.Reg32(n.Dst, r).WithMetadata(n.Metadata)
	default:
		n.removed = s.copies[n.Dst] == s.copies[r]
		n.Instruction = asm.Mov.Reg(n.Dst, r).WithMetadata(n.Metadata)
	}
}

// rewriteBase has a load go by the register that holds an address for longest, which may leave others without a use.
func (s *state) rewriteBase(n *node) {
	if n.Src == asm.RFP || s.copies[n.Src].size != 8 {
		return
	}
	if r, found := s.copyOf(s.copies[n.Src]); found && r >= asm.R6 {
		n.Src = r
	}
}

func (s *state) rewriteStore(n *node) {
	size := n.OpCode.Size().Sizeof()
	if at, ok := s.slot(n.Dst, n.Offset, size); ok {
		n.removed = s.holds(at, size, s.stored(n))
		n.Dst, n.Offset = asm.RFP, int16(at-frameSize)
	}
}

// stored is the value that an instruction writes to memory.
func (s *state) stored(n *node) value {
	if n.OpCode.Class() == asm.StClass {
		return value{constant, n.Constant}
	}
	return s.regs[n.Src]
}

// step is what an instruction does to what is known.
func (s *state) step(n *node) {
	class := n.OpCode.Class()
	switch {
	case n.calls():
		s.call(n)
	case class.IsJump():
	case class.IsALU():
		s.set(n.Dst, s.result(n), s.moved(n))
	case class == asm.LdClass:
		v := value{kind: other}
		if n.Src == asm.R0 && n.Reference() == "" && n.fixed {
			v = value{constant, n.Constant}
		}
		s.set(n.Dst, v, span{})
	case class == asm.LdXClass:
		s.set(n.Dst, s.loaded(n), s.copied(n, n.Src))
	case n.OpCode.Mode() == asm.MemMode && n.fixed:
		s.store(n)
	default:
		s.atomic(n)
	}
}

// copied is the part of the frame that a load or a store leaves a copy of in a register.
func (s *state) copied(n *node, base asm.Register) span {
	size := n.OpCode.Size().Sizeof()
	if at, ok := s.slot(base, n.Offset, size); ok && n.fixed && n.OpCode.Mode() == asm.MemMode {
		return span{int16(at), int16(size)}
	}
	return span{}
}

// moved is what a register has a copy of after arithmetic.
func (s *state) moved(n *node) span {
	if n.OpCode.ALUOp() != asm.Mov || n.OpCode.Source() != asm.RegSource || n.Offset != 0 || n.Src == asm.RFP {
		return span{}
	}
	c := s.copies[n.Src]
	if n.OpCode.Class() == asm.ALU64Class || c.size == 4 {
		return c
	}
	return span{}
}

// loaded returns what the register holds after a load. Through a register that does not point into the stack, no
// pointer into the stack can be loaded; where the access is not certain, the value is unknown.
func (s *state) loaded(n *node) value {
	size := n.OpCode.Size().Sizeof()
	switch base := s.regs[n.Src]; {
	case !base.pointing():
		return value{kind: other}
	case !n.fixed || base.kind == unknown || n.OpCode.Mode() != asm.MemMode:
		return value{}
	}
	if at, ok := s.slot(n.Src, n.Offset, size); ok {
		return s.read(at, size)
	}
	return value{}
}

func (s *state) store(n *node) {
	base := s.regs[n.Dst]
	if at, ok := s.slot(n.Dst, n.Offset, n.OpCode.Size().Sizeof()); ok {
		s.write(at, n.OpCode.Size().Sizeof(), s.stored(n))
		if n.OpCode.Class() == asm.StXClass && n.OpCode.Size().Sizeof() >= 4 && n.Src != asm.RFP {
			s.copies[n.Src] = s.copied(n, n.Dst)
		}
	} else if base.pointing() {
		s.forget()
	}
}

// atomic is an instruction that reads and writes memory.
func (s *state) atomic(n *node) {
	if s.regs[n.Dst].pointing() {
		s.forget()
	}
	s.set(n.Src, value{}, span{})
	s.set(asm.R0, value{}, span{})
}

// readers are helpers that write to no memory that an argument points to, and keep no pointer. Their result does not
// point into the frame.
var readers = map[asm.BuiltinFunc]bool{asm.FnMapLookupElem: true, asm.FnMapUpdateElem: true, asm.FnMapDeleteElem: true}

// call forgets the stack if a pointer into it is passed to anything but a helper that is known only to read. R0 to R5
// are clobbered in every case.
func (s *state) call(n *node) {
	pointing := false
	for r := asm.R1; r < asm.R1+n.arguments(); r++ {
		pointing = pointing || s.regs[r].pointing()
	}
	result := value{kind: other}
	if pointing && !(n.IsBuiltinCall() && readers[asm.BuiltinFunc(n.Constant)]) {
		s.forget()
		result = value{}
	}
	for r := asm.R1; r <= asm.R5; r++ {
		s.set(r, value{kind: other}, span{})
	}
	s.set(asm.R0, result, span{})
}

// arguments is how many registers a call may read.
func (n *node) arguments() asm.Register {
	if n.dropped {
		return 0
	}
	if n.IsBuiltinCall() {
		switch asm.BuiltinFunc(n.Constant) {
		case asm.FnGetSmpProcessorId, asm.FnGetPrandomU32, asm.FnKtimeGetNs:
			return 0
		case asm.FnXdpGetBuffLen:
			return 1
		case asm.FnMapLookupElem, asm.FnMapDeleteElem:
			return 2
		case asm.FnTailCall:
			return 3
		}
	}
	return 5
}

// result is what an arithmetic instruction leaves in its register.
func (s *state) result(n *node) value {
	op, class := n.OpCode.ALUOp(), n.OpCode.Class()
	dst, src := s.regs[n.Dst], value{constant, n.Constant}
	if n.OpCode.Source() == asm.RegSource && op != asm.Swap && op != asm.Neg {
		src = s.regs[n.Src]
	}
	wide := class == asm.ALU64Class
	switch {
	case op == asm.Mov && wide && n.fixed && n.Offset == 0:
		return src
	case op == asm.Mov && src.kind == constant && n.fixed && n.Offset == 0:
		return value{constant, int64(uint32(src.n))}
	case op == asm.Add && wide && n.fixed && dst.kind >= constant && src.kind == constant:
		return value{dst.kind, dst.n + src.n}
	case op == asm.And && n.fixed && dst.kind == constant && src.kind == constant:
		if wide {
			return value{constant, dst.n & src.n}
		}
		return value{constant, int64(uint32(dst.n & src.n))}
	case src.pointing() || dst.pointing() && op != asm.Mov:
		return value{}
	}
	return value{kind: other}
}

// decides reports whether a jump is taken, if that is known.
func (s *state) decides(n *node) (taken, decided bool) {
	if n.goes() {
		return true, true
	}
	if !n.jumps() || !n.fixed || s.regs[n.Dst].kind != constant {
		return false, false
	}
	a, b := s.regs[n.Dst].n, n.Constant
	if n.OpCode.Source() == asm.RegSource {
		if s.regs[n.Src].kind != constant {
			return false, false
		}
		b = s.regs[n.Src].n
	}
	if n.OpCode.Class() == asm.Jump32Class {
		a, b = int64(uint32(a)), int64(uint32(b))
	}
	switch n.OpCode.JumpOp() {
	case asm.JEq:
		return a == b, true
	case asm.JNE:
		return a != b, true
	case asm.JSet:
		return a&b != 0, true
	}
	return false, false
}
