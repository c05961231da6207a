// SPDX-License-Identifier: Apache-2.0

package optimize

import (
	"github.com/cilium/ebpf/asm"
)

// live is what is read before it is written again.
type live struct {
	regs  uint16
	frame bytes
}

// merge adds what another place reads, and reports whether l changes.
func (l *live) merge(o *live) (changed bool) {
	changed = l.regs|o.regs != l.regs
	l.regs |= o.regs
	for w := range l.frame {
		changed = changed || l.frame[w]|o.frame[w] != l.frame[w]
		l.frame[w] |= o.frame[w]
	}
	return changed
}

func (l *live) reads(r asm.Register)      { l.regs |= 1 << r }
func (l *live) writes(r asm.Register)     { l.regs &^= 1 << r }
func (l *live) needs(r asm.Register) bool { return l.regs>>r&1 == 1 }
func (l *live) readsFrame(from, to int)   { l.each(from, to, l.frame.add) }
func (l *live) writesFrame(from, to int)  { l.each(from, to, l.frame.drop) }
func (l *live) each(from, to int, do func(int)) {
	for i := from; i < to; i++ {
		do(i)
	}
}

// needsFrame reports whether some of a range is read.
func (l *live) needsFrame(from, to int) (needed bool) {
	l.each(from, to, func(i int) { needed = needed || l.frame.has(i) })
	return needed
}

// access is how an instruction meets the frame, as far as forward has found out.
type access struct {
	from, to int  // bytes of a load or store
	known    bool // else it may be any
	pointing bool // it may meet the frame at all
}

// access finds how an instruction meets the frame.
func (s *state) access(n *node) access {
	class := n.OpCode.Class()
	switch {
	case n.calls():
		return s.passes(n)
	case class == asm.LdXClass:
		return s.meets(n, n.Src)
	case class.IsStore():
		return s.meets(n, n.Dst)
	}
	return access{}
}

func (s *state) meets(n *node, base asm.Register) access {
	size := n.OpCode.Size().Sizeof()
	at, ok := s.slot(base, n.Offset, size)
	return access{at, at + size, ok && n.fixed, s.regs[base].pointing()}
}

// passes is what a call may read: of a key, whose size is not known here, all that is above its start.
func (s *state) passes(n *node) (a access) {
	for r := asm.R1; r < asm.R1+n.arguments(); r++ {
		a.pointing = a.pointing || s.regs[r].pointing()
	}
	if n.IsBuiltinCall() && asm.BuiltinFunc(n.Constant) == asm.FnMapLookupElem {
		a.from, a.known = s.slot(asm.R2, 0, 1)
		a.to = frameSize
	}
	return a
}

// backward finds what is read later, and removes what only computes or stores something else.
func (p *program) backward() {
	p.blocks()
	p.lives = zeroed(p.lives, p.count)
	for again := true; again; { // what is found useless may be needed by what is found needed later
		again = false
		var l live
		for i := len(p.code) - 1; i >= 0; i-- {
			n := &p.code[i]
			if n.removed {
				continue
			}
			p.behind(i, &l)
			n.useless = l.useless(n, p.accesses[i])
			if !n.useless {
				l.step(n, p.accesses[i])
			}
			if b := p.block[i]; b > 0 {
				again = p.lives[b].merge(&l) || again
			}
		}
	}
	for i := range p.code {
		n := &p.code[i]
		n.removed = n.removed || n.useless
	}
}

// behind is what is read behind an instruction that ends a block; within one, l has it already.
func (p *program) behind(i int, l *live) {
	if n := &p.code[i]; !n.jumps() && !n.ends() && p.block[p.next(i+1)] == 0 {
		return
	}
	next, count := p.after(i)
	*l = live{}
	for _, to := range next[:count] {
		l.merge(&p.lives[p.block[to]])
	}
}

// useless reports whether nothing needs what an instruction does.
func (l *live) useless(n *node, a access) bool {
	class := n.OpCode.Class()
	switch {
	case class.IsALU(), class.IsLoad():
		return !l.needs(n.Dst)
	case class.IsStore() && n.OpCode.Mode() == asm.MemMode:
		return a.known && !l.needsFrame(a.from, a.to)
	}
	return false
}

// step is what an instruction reads and writes.
func (l *live) step(n *node, a access) {
	class := n.OpCode.Class()
	switch {
	case n.calls():
		l.call(n, a)
	case class.IsJump():
		l.jump(n)
	case class.IsALU():
		op := n.OpCode.ALUOp()
		if op == asm.Mov || op > 0xff && op&0xf0 == asm.Mov {
			l.writes(n.Dst)
		}
		if op != asm.Swap && op != asm.Neg && n.OpCode.Source() == asm.RegSource {
			l.reads(n.Src)
		}
	case class == asm.LdClass:
		l.writes(n.Dst)
	case class == asm.LdXClass:
		l.writes(n.Dst)
		l.reads(n.Src)
		l.load(a)
	default:
		l.store(n, a)
	}
}

func (l *live) load(a access) {
	if a.known {
		l.readsFrame(a.from, a.to)
	} else if a.pointing {
		l.frame.fill()
	}
}

// store ends the liveness of the stack bytes that a plain store overwrites. An atomic operation also reads them, and
// compare-and-exchange reads R0.
func (l *live) store(n *node, a access) {
	if n.OpCode.Mode() == asm.MemMode {
		if a.known {
			l.writesFrame(a.from, a.to)
		}
	} else {
		l.load(a)
		l.reads(asm.R0)
	}
	l.reads(n.Dst)
	if n.OpCode.Class() == asm.StXClass {
		l.reads(n.Src)
	}
}

func (l *live) call(n *node, a access) {
	for r := asm.R0; r <= asm.R5; r++ {
		l.writes(r)
	}
	for r := asm.R1; r < asm.R1+n.arguments(); r++ {
		l.reads(r)
	}
	l.load(a)
}

func (l *live) jump(n *node) {
	switch n.OpCode.JumpOp() {
	case asm.Exit:
		l.reads(asm.R0)
	case asm.Ja:
	default:
		l.reads(n.Dst)
		if n.OpCode.Source() == asm.RegSource {
			l.reads(n.Src)
		}
	}
}
