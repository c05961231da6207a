// SPDX-License-Identifier: Apache-2.0

package optimize

import (
	"fmt"
	"slices"
	"sync"

	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
)

// node is an instruction with the place that it may jump to.
type node struct {
	asm.Instruction
	target  int  // index, -1 for none
	fixed   bool // not changed by the loader, which knows the layout of the kernel's structures
	removed bool
	useless bool // according to backward
	dropped bool // a call that Without removes: its arguments are not read
}

// program is a function whose jumps are known by index, and its blocks.
type program struct {
	code     []node
	block    []int // number of the block that begins at an instruction, else 0
	count    int   // of blocks, and the unused number 0
	followed int   // blocks that forward has followed, each time
	states   []state
	lives    []live
	accesses []access
	facts    map[int][]Fact
}

// Fact is a byte of the frame that is known to have a value wherever a label is reached.
type Fact struct {
	Offset int // from the frame pointer
	Value  byte
}

// Code returns a shorter function that does the same, or the function as it is if it has instructions that are not
// isSupported. It must begin a program: the first register holds the context of the hook. Labels are gone then, but for
// the function's own.
func Code(code asm.Instructions, facts map[string][]Fact) asm.Instructions {
	p := programs.Get().(*program)
	defer p.release()
	if !p.parse(code, facts) {
		return code
	}
	p.forward()
	p.backward()
	p.straighten()
	if out, ok := p.emit(); ok {
		return out
	}
	return code
}

// programs keep their memory for the next ones, until it is collected: it is two fifths of what a chain takes to link.
var programs = sync.Pool{New: func() any { return new(program) }}

// release gives a program back, without what its instructions refer to.
func (p *program) release() {
	clear(p.code)
	programs.Put(p)
}

// zeroed returns n zeros, in the memory of s if it is large enough.
func zeroed[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	s = s[:n]
	clear(s)
	return s
}

// parse makes p the program of code, and reports whether it is understood.
func (p *program) parse(code asm.Instructions, facts map[string][]Fact) bool {
	n := len(code)
	p.code, p.block, p.accesses = zeroed(p.code, n), zeroed(p.block, n+1), zeroed(p.accesses, n)
	p.facts = map[int][]Fact{}
	labels, places := map[string]int{}, make([]int, 0, 2*n) // by place in the kernel's encoding
	for i := range code {
		p.code[i] = node{code[i], -1, btf.CORERelocationMetadata(&code[i]) == nil, false, false, false}
		if s := code[i].Symbol(); s != "" {
			labels[s] = i
			p.facts[i] = facts[s]
		}
		for range code[i].Width() {
			places = append(places, i)
		}
	}
	at := 0
	for i := range p.code {
		n := &p.code[i]
		at += int(n.Width())
		if !n.isSupported() {
			return false
		}
		if !n.jumps() {
			continue
		}
		if to, named := labels[n.Reference()]; named {
			n.target = to
		} else if to := at + int(n.Offset); n.Reference() == "" && to >= 0 && to < len(places) {
			n.target = places[to]
		} else {
			return false
		}
	}
	return true
}

// isSupported excludes the instructions that classic BPF had to read packets, long jumps, and atomic instructions that
// are new: load-acquire (Linux 6.15) writes the register that others only read.
func (n *node) isSupported() bool {
	op := n.OpCode
	switch op.Class() {
	case asm.LdClass:
		return op.IsDWordLoad()
	case asm.Jump32Class:
		return op.JumpOp() != asm.Ja
	case asm.StXClass:
		return op.Mode() != asm.AtomicMode || slices.Contains(atomics, op.AtomicOp())
	}
	return true
}

var atomics = []asm.AtomicOp{asm.AddAtomic, asm.FetchAdd, asm.AndAtomic, asm.FetchAnd, asm.OrAtomic, asm.FetchOr,
	asm.XorAtomic, asm.FetchXor, asm.Xchg, asm.CmpXchg}

// jumps reports whether an instruction has a target.
func (n *node) jumps() bool {
	return n.OpCode.Class().IsJump() && n.OpCode.JumpOp() != asm.Call && n.OpCode.JumpOp() != asm.Exit
}

// goes is an unconditional jump.
func (n *node) goes() bool { return n.jumps() && n.OpCode.JumpOp() == asm.Ja }

// ends reports whether the next instruction does not follow.
func (n *node) ends() bool {
	return n.goes() || n.OpCode.Class().IsJump() && n.OpCode.JumpOp() == asm.Exit
}

func (n *node) calls() bool {
	return n.OpCode.Class().IsJump() && n.OpCode.JumpOp() == asm.Call
}

// next is the first instruction from i on that remains.
func (p *program) next(i int) int {
	for i < len(p.code) && p.code[i].removed {
		i++
	}
	return i
}

// blocks numbers the blocks.
func (p *program) blocks() {
	clear(p.block)
	p.count = 1
	p.begin(p.next(0))
	for i := range p.code {
		n := &p.code[i]
		if n.removed {
			continue
		}
		if n.jumps() {
			n.target = p.next(n.target)
			p.begin(n.target)
		}
		if n.jumps() || n.ends() {
			p.begin(p.next(i + 1))
		}
	}
}

func (p *program) begin(i int) {
	if p.block[i] == 0 {
		p.block[i] = p.count
		p.count++
	}
}

// after returns where the program may continue behind instruction i.
func (p *program) after(i int) (next [2]int, count int) {
	n := &p.code[i]
	if !n.ends() {
		next[0], count = p.next(i+1), 1
	}
	if n.jumps() {
		next[count] = p.next(n.target)
		count++
	}
	return next, count
}

// straighten leads jumps to where they end up, and removes those to the next instruction.
func (p *program) straighten() {
	for i := range p.code {
		n := &p.code[i]
		if n.removed || !n.jumps() {
			continue
		}
		n.target = p.next(n.target)
		for hops := 0; hops < len(p.code) && p.code[n.target].goes(); hops++ {
			n.target = p.next(p.code[n.target].target)
		}
	}
	p.sweep()
	for i, n := range slices.Backward(p.code) {
		if !n.removed && n.jumps() && n.OpCode.JumpOp() != asm.JCOND && p.next(n.target) == p.next(i+1) {
			p.code[i].removed = true
		}
	}
}

// sweep removes what is never reached.
func (p *program) sweep() {
	reached := make([]bool, len(p.code))
	for todo := []int{p.next(0)}; len(todo) > 0; {
		i := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if reached[i] {
			continue
		}
		reached[i] = true
		next, count := p.after(i)
		todo = append(todo, next[:count]...)
	}
	for i := range p.code {
		p.code[i].removed = p.code[i].removed || !reached[i]
	}
}

// lineOf is the source line of an instruction behind removed ones that had another.
func lineOf(own, before fmt.Stringer) fmt.Stringer {
	_, is := own.(asm.Comment)
	if _, comment := before.(asm.Comment); own == nil || comment && !is {
		return before
	}
	return own
}

// emit is the code again. The source line of an instruction that is gone is that of the next one; a comment is in place
// of the next one's line.
func (p *program) emit() (out asm.Instructions, ok bool) {
	places, at := make([]int, len(p.code)+1), 0
	for i := range p.code {
		places[i] = at
		if !p.code[i].removed {
			at += int(p.code[i].Width())
		}
	}
	first := p.code[0].Instruction
	out = make(asm.Instructions, 0, len(p.code))
	var line fmt.Stringer
	for i := range p.code {
		n := &p.code[i]
		if line = lineOf(n.Source(), line); n.removed {
			continue
		}
		ins := n.Instruction
		if line != ins.Source() {
			ins = ins.WithSource(line)
		}
		line = nil
		if ins.Symbol() != "" {
			ins = ins.WithSymbol("")
		}
		if len(out) == 0 {
			ins = btf.WithFuncMetadata(ins.WithSymbol(first.Symbol()), btf.FuncMetadata(&first))
		}
		if n.jumps() {
			distance := places[n.target] - places[i] - 1
			if int(int16(distance)) != distance {
				return nil, false
			}
			if ins.Reference() != "" {
				ins = ins.WithReference("")
			}
			ins.Offset = int16(distance)
		}
		out = append(out, ins)
	}
	return out, true
}
