// SPDX-License-Identifier: Apache-2.0

package ebpfvm

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

const (
	stackSize = 512
	depth     = 16 // of calls
	most      = 10_000_000
)

// Clock has the results of the time helpers: bpf_ktime_get_ns and bpf_ktime_get_coarse_ns, in ns since boot, and
// bpf_jiffies64.
type Clock struct{ Now, Coarse, Jiffies uint64 }

// Input is a packet, from its Ethernet header on, with the results of helpers that depend on time, CPU or chance. CPU
// selects the values of per-CPU maps.
type Input struct {
	Frame  []byte
	Clock  Clock
	CPU    int
	Random uint32 // result of all calls of bpf_get_prandom_u32
}

// Result is the result of a program for a packet: its return value, the packet as it leaves the program, and the costs.
type Result struct {
	Return   uint32
	Frame    []byte
	Executed int            // instructions
	Helpers  map[string]int // number of calls, by name
	Records  int            // written to ring buffers
}

// VM runs programs on the same maps. It is not safe for concurrent use.
type VM struct {
	known   map[*ebpf.Map]identity
	inner   map[ebpf.MapID]*ebpf.Map // maps in other maps
	tables  map[ebpf.MapID]*table
	regions []*region
	context *region
	packet  *region
	kernel  *region // struct sk_buff or xdp_buff
	meta    int     // offset of an XDP packet's metadata
	network int     // offset of a TC packet's IP header

	in     Input
	p      *Program
	result Result
	depth  int
}

// New returns a VM, which has not read any map elements yet.
func New() *VM {
	return &VM{known: map[*ebpf.Map]identity{}, inner: map[ebpf.MapID]*ebpf.Map{}, tables: map[ebpf.MapID]*table{}}
}

// Run interprets a program. Its changes of maps stay in the VM until Forget or Rewind. An error names the instruction
// that the verifier would have rejected, or that the interpreter does not support.
func (v *VM) Run(p *Program, in Input) (result Result, err error) {
	if len(v.regions) == 0 {
		v.Forget()
	}
	v.in, v.p, v.depth = in, p, 0
	v.result = Result{Helpers: map[string]int{}}
	v.receive(in.Frame)
	var at int
	defer func() {
		if r := recover(); r != nil {
			f, is := r.(fault)
			if !is {
				panic(r)
			}
			err = fmt.Errorf("instruction %d (%s): %w", at, p.where(at), f.error)
		}
	}()
	v.result.Return = uint32(v.call(&at, 0, [5]uint64{v.context.address}))
	v.result.Frame = slices.Clone(v.sent())
	return v.result, nil
}

// Forget discards all map elements, so that they are read from the kernel again.
func (v *VM) Forget() {
	clear(v.tables)
	v.regions = []*region{nil}
	v.context, v.packet, v.kernel = v.newRegion("context", nil), v.newRegion("packet", nil),
		v.newRegion("struct sk_buff or xdp_buff", make([]byte, 512))
}

// where returns the function of an instruction, and its line of source code if the program has debug information.
func (p *Program) where(at int) string {
	var function, line string
	for i := range at + 1 {
		if s, is := p.symbols[i]; is {
			function, line = s, ""
		}
		if s, is := p.source[i]; is {
			line = s
		}
	}
	return strings.TrimSpace(function + " " + line)
}

// call runs a function until it returns.
func (v *VM) call(at *int, start int, args [5]uint64) uint64 {
	if v.depth++; v.depth > depth {
		fail("calls are deeper than %d", depth)
	}
	defer func() { v.depth-- }()
	var reg [11]uint64
	copy(reg[1:], args[:])
	n := len(v.regions)
	reg[10] = v.newRegion("stack", make([]byte, stackSize)).address + stackSize
	for pc := start; ; {
		if pc < 0 || pc >= len(v.p.code) {
			fail("jump out of the program, to %d", pc)
		}
		*at = pc
		if v.result.Executed++; v.result.Executed > most {
			fail("more than %d instructions", most)
		}
		next, done := v.step(at, pc, &reg)
		if done {
			if len(v.regions) == n+1 { // otherwise regions of map values follow it, and must keep their numbers
				v.regions = v.regions[:n]
			}
			return reg[0]
		}
		pc = next
	}
}

var errInstruction = errors.New("unknown instruction")

// step executes one instruction and returns the next one; done is true after an exit. Loads and stores that the
// verifier would reject are faults.
func (v *VM) step(at *int, pc int, reg *[11]uint64) (next int, done bool) {
	i := v.p.code[pc]
	switch class := asm.Class(i.op & 7); class {
	case asm.ALUClass, asm.ALU64Class:
		reg[i.dst] = alu(i, class == asm.ALU64Class, reg[i.dst], v.operand(i, reg))
	case asm.JumpClass, asm.Jump32Class:
		return v.jump(at, pc, i, reg)
	case asm.LdClass:
		if i.op != 0x18 {
			fail("%w %#x", errInstruction, i.op)
		}
		reg[i.dst] = v.constant(pc, i)
		return pc + 2, false
	case asm.LdXClass:
		size := sizeOf(i.op)
		n := v.load(reg[i.src]+uint64(int64(i.offset)), size)
		if i.op&0xe0 == 0x80 { // sign extension
			n = signed(n, 8*size)
		}
		reg[i.dst] = n
	case asm.StClass:
		v.store(reg[i.dst]+uint64(int64(i.offset)), sizeOf(i.op), uint64(int64(i.imm)))
	case asm.StXClass:
		address := reg[i.dst] + uint64(int64(i.offset))
		if i.op&0xe0 == 0xc0 {
			v.atomic(i, address, reg)
		} else {
			v.store(address, sizeOf(i.op), reg[i.src])
		}
	}
	return pc + 1, false
}

func (v *VM) operand(i instruction, reg *[11]uint64) uint64 {
	if i.op&8 != 0 {
		return reg[i.src]
	}
	return uint64(int64(i.imm))
}

func sizeOf(op uint8) int { return map[uint8]int{0x00: 4, 0x08: 2, 0x10: 1, 0x18: 8}[op&0x18] }

// constant returns the operand of a two-word load.
func (v *VM) constant(pc int, i instruction) uint64 {
	high := v.p.code[pc+1].imm
	switch asm.Register(i.src) {
	case asm.PseudoMapFD:
		return v.tableOf(i.imm).self.address
	case asm.PseudoMapValue:
		e := v.tableOf(i.imm).element(make([]byte, 4))
		if e == nil {
			fail("map %s has no value to load from", v.tableOf(i.imm).name)
		}
		return e.address + uint64(uint32(high))
	case asm.PseudoFunc:
		return uint64(pc + 1 + int(i.imm))
	}
	return uint64(uint32(i.imm)) | uint64(uint32(high))<<32
}

// jump executes a jump, a call or an exit.
func (v *VM) jump(at *int, pc int, i instruction, reg *[11]uint64) (next int, done bool) {
	wide := asm.Class(i.op&7) == asm.JumpClass
	switch i.op & 0xf0 {
	case 0x00:
		if !wide {
			return pc + 1 + int(i.imm), false
		}
		return pc + 1 + int(i.offset), false
	case 0x80:
		args := [5]uint64(reg[1:6])
		switch asm.Register(i.src) {
		case asm.PseudoCall:
			reg[0] = v.call(at, pc+1+int(i.imm), args)
			*at = pc
		case asm.PseudoKfuncCall:
			reg[0] = v.kfunc(v.p.kfuncs[pc], args)
		default:
			reg[0] = v.helper(at, asm.BuiltinFunc(i.imm), args)
		}
		return pc + 1, false
	case 0x90:
		return 0, true
	}
	if compare(i.op&0xf0, wide, reg[i.dst], v.operand(i, reg)) {
		return pc + 1 + int(i.offset), false
	}
	return pc + 1, false
}

// Calls returns the number of helper calls.
func (r Result) Calls() (n int) {
	for _, calls := range r.Helpers {
		n += calls
	}
	return n
}

// Elements returns the elements that the last run looked up or changed.
func (v *VM) Elements() (all []Element) {
	for _, t := range v.tables {
		for key, e := range t.elements {
			if e != nil {
				all = append(all, Element{Map: t.kernel, Name: t.name, Key: []byte(key), Value: e.value(), CPU: v.in.CPU})
			}
		}
	}
	return all
}
