// SPDX-License-Identifier: Apache-2.0

package optimize_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"

	"github.com/kerb-edge/kerb/internal/dataplane/optimize"
	"github.com/kerb-edge/kerb/internal/lab/ebpfvm"
	"github.com/kerb-edge/kerb/sdk/sdktest"
)

// Atomic instructions that write another register than those that are known are left alone, with what is around them.
func TestUnknownAtomics(t *testing.T) {
	const loadAcquire = 0x1_0000
	code := asm.Instructions{
		asm.StoreImm(asm.RFP, -8, 1, asm.DWord).WithSymbol("entry"),
		asm.Mov.Imm(asm.R0, 0),
		asm.Mov.Reg(asm.R2, asm.RFP),
		{OpCode: asm.OpCode(asm.StXClass).SetMode(asm.AtomicMode).SetSize(asm.DWord).SetAtomicOp(loadAcquire),
			Dst: asm.R0, Src: asm.R2, Offset: -8},
		asm.JEq.Imm(asm.R0, 0, "out"),
		asm.Mov.Imm(asm.R0, 7),
		asm.Return().WithSymbol("out"),
	}
	if short := optimize.Code(slices.Clone(code), nil); fmt.Sprint(short) != fmt.Sprint(code) {
		t.Errorf("%v became %v", code, short)
	}
}

// Random programs with pointers into the frame, spilled and passed to functions, do the same when they are shorter, and
// the verifier still takes them.
func TestRandomPrograms(t *testing.T) {
	sdktest.NeedRoot(t)
	random := rand.New(rand.NewPCG(19, 2))
	numbers, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 4})
	if err != nil {
		t.Fatal(err)
	}
	defer numbers.Close()
	for i := range uint32(4) {
		if err := numbers.Put(i, uint64(i)*0x0101010101010101); err != nil {
			t.Fatal(err)
		}
	}
	before, after := 0, 0
	for n := range 3000 {
		entry, function := newGenerator(random, numbers).program()
		code := optimize.Called(slices.Concat(entry, function))
		short := optimize.Called(append(optimize.Code(entry, nil), function...))
		if n%20 == 0 {
			verify(t, code)
			verify(t, short)
		}
		frame := make([]byte, 128)
		for i := range frame {
			frame[i] = byte(random.Uint32())
		}
		want, got := interpret(t, code, frame), interpret(t, short, frame)
		before, after = before+want.Executed, after+got.Executed
		if want.Return != got.Return || string(want.Frame) != string(got.Frame) || got.Executed > want.Executed {
			t.Fatalf("program %d: returns %#x in %d steps, before %#x in %d\n%x\n%x\n%v\nbefore:\n%v", n, got.Return,
				got.Executed, want.Return, want.Executed, got.Frame, want.Frame, short, code)
		}
	}
	if after > before*4/5 {
		t.Errorf("%d instructions executed, of %d: not much is optimized", after, before)
	}
}

func verify(t *testing.T, code asm.Instructions) {
	t.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, License: "GPL", Instructions: code})
	if err != nil {
		t.Fatalf("%+v\n%v", err, code)
	}
	p.Close()
}

func interpret(t *testing.T, code asm.Instructions, frame []byte) ebpfvm.Result {
	t.Helper()
	p, err := ebpfvm.Load(code, ebpf.XDP)
	if err != nil {
		t.Fatal(err)
	}
	r, err := ebpfvm.New().Run(p, ebpfvm.Input{Frame: frame})
	if err != nil {
		t.Fatalf("%v\n%v", err, code)
	}
	return r
}

const slots = 8 // of the frame, of 8 bytes each

// generator makes programs that the verifier takes. It knows what registers and the slots of the frame hold.
type generator struct {
	*rand.Rand
	numbers *ebpf.Map
	code    asm.Instructions
	regs    [asm.R10 + 1]int // offset of a pointer into the frame, 1 for a number
	spilled [slots]int       // the same of slots
	labels  int
	dropped bool // calls that optimize.Without removes are made, too
}

const number = 1

// swap is a function that exchanges what a pointer points to.
var swap = typed("swap", btf.FuncParam{Name: "at", Type: &btf.Pointer{Target: word}})

var word = &btf.Int{Name: "long", Size: 8, Encoding: btf.Signed}

func typed(name string, params ...btf.FuncParam) *btf.Func {
	return &btf.Func{Name: name, Type: &btf.FuncProto{Return: word, Params: params}}
}

func newGenerator(random *rand.Rand, numbers *ebpf.Map) *generator {
	g := &generator{Rand: random, numbers: numbers}
	for r := range g.regs {
		g.regs[r] = number
	}
	for i := range g.spilled {
		g.spilled[i] = number
	}
	g.regs[asm.R10] = 0
	return g
}

func (g *generator) add(code ...asm.Instruction) { g.code = append(g.code, code...) }

// any is a register that may be written to. R6 points to the packet.
func (g *generator) any() asm.Register {
	for {
		if r := asm.Register(g.IntN(10)); r != asm.R6 {
			return r
		}
	}
}

// numeric is a register that holds a number.
func (g *generator) numeric() asm.Register {
	for range 20 {
		if r := g.any(); g.regs[r] == number {
			return r
		}
	}
	r := g.any()
	g.regs[r] = number
	g.add(asm.Mov.Imm(r, int32(g.IntN(3))))
	return r
}

// pointer is a register that points to a slot, and the offset of the slot from it.
func (g *generator) pointer() (r asm.Register, offset int16, slot int) {
	slot = g.IntN(slots)
	for r = g.any(); ; r = asm.Register(g.IntN(int(asm.R10) + 1)) {
		if g.regs[r] != number && r != asm.R6 {
			return r, int16(-8*(1+slot) - g.regs[r]), slot
		}
	}
}

// program computes, and writes some of the registers and of the frame to the packet.
func (g *generator) program() (entry, function asm.Instructions) {
	main := typed("main", btf.FuncParam{Name: "ctx", Type: &btf.Pointer{Target: &btf.Void{}}})
	g.add(btf.WithFuncMetadata(asm.LoadMem(asm.R6, asm.R1, 0, asm.Word).WithSymbol("main"), main),
		asm.LoadMem(asm.R7, asm.R1, 4, asm.Word),
		asm.Mov.Reg(asm.R8, asm.R6), asm.Add.Imm(asm.R8, 128), asm.JGT.Reg(asm.R8, asm.R7, "out"))
	for r := asm.R0; r < asm.R10; r++ {
		if r != asm.R6 {
			g.add(asm.LoadMem(r, asm.R6, 8*int16(r), asm.DWord))
		}
	}
	for i := range slots {
		g.add(asm.StoreMem(asm.RFP, int16(-8*(1+i)), g.any(), asm.DWord))
	}
	for range 60 {
		g.operation(true)
	}
	for r := asm.R0; r < asm.R10; r++ {
		if g.regs[r] == number && r != asm.R6 && g.IntN(2) == 0 {
			g.add(asm.StoreMem(asm.R6, 8*int16(r), r, asm.DWord))
		}
	}
	for i := range slots / 2 {
		if g.spilled[i] == number {
			g.add(asm.LoadMem(asm.R0, asm.RFP, int16(-8*(1+i)), asm.DWord),
				asm.StoreMem(asm.R6, int16(96+8*i%32), asm.R0, asm.DWord))
		}
	}
	g.add(asm.Mov.Imm(asm.R0, 2).WithSymbol("out"), asm.Return())
	return g.code, asm.Instructions{
		btf.WithFuncMetadata(asm.LoadMem(asm.R0, asm.R1, 0, asm.DWord).WithSymbol("swap"), swap),
		asm.Mov.Imm(asm.R2, 7),
		asm.StoreMem(asm.R1, 0, asm.R2, asm.DWord),
		asm.Return()}
}

// operation adds something that computes; within a branch it leaves pointers as they are.
func (g *generator) operation(pointers bool) {
	switch n := g.IntN(12); {
	case n < 3:
		ops := []asm.ALUOp{asm.Add, asm.Sub, asm.And, asm.And, asm.Or, asm.Xor, asm.Mov, asm.Mov}
		if op, dst := ops[g.IntN(len(ops))], g.numeric(); g.IntN(2) == 0 {
			g.add([]asm.Instruction{op.Imm(dst, int32(g.IntN(4)-1)), op.Imm32(dst, int32(g.IntN(4)-1))}[g.IntN(2)])
		} else {
			src := g.numeric()
			g.add([]asm.Instruction{op.Reg(dst, src), op.Reg32(dst, src)}[g.IntN(2)])
		}
	case n < 5:
		g.store(pointers)
	case n < 7:
		g.load(pointers)
	case g.dropped && n == 7:
		g.droppedCall()
	case !pointers:
		g.add(asm.Mov.Imm(g.numeric(), int32(g.IntN(3))))
	case n == 7:
		r, offset := g.any(), -8*(1+g.IntN(slots))
		g.regs[r] = offset
		g.add(asm.Mov.Reg(r, asm.RFP), asm.Add.Imm(r, int32(offset)))
	case n == 8:
		g.lookUp()
	case n == 9:
		g.call()
	default:
		g.branch()
	}
}

func (g *generator) store(pointers bool) {
	base, offset, slot := g.pointer()
	src := g.numeric()
	base, offset = g.still(base, offset, slot)
	if !pointers && g.spilled[slot] != number {
		return
	}
	if pointers && g.IntN(3) == 0 {
		if src = g.any(); g.regs[src] != number {
			g.spilled[slot] = g.regs[src]
			g.add(asm.StoreMem(base, offset, src, asm.DWord))
			return
		}
	}
	size, at := g.part()
	if g.spilled[slot] != number { // all of it, as what is left of a pointer may not be read
		size, at = asm.DWord, 0
	}
	g.spilled[slot] = number
	if g.IntN(2) == 0 {
		g.add(asm.Instruction{OpCode: asm.StoreImmOp(size), Dst: base, Offset: offset + at,
			Constant: int64(g.IntN(3) - 1)})
	} else {
		g.add(asm.StoreMem(base, offset+at, src, size))
	}
}

// still is the frame pointer if a register does not point to a slot any more.
func (g *generator) still(base asm.Register, offset int16, slot int) (asm.Register, int16) {
	if g.regs[base] == number {
		return asm.RFP, int16(-8 * (1 + slot))
	}
	return base, offset
}

func (g *generator) part() (asm.Size, int16) {
	sizes := []asm.Size{asm.DWord, asm.Word, asm.Half, asm.Byte}
	size := sizes[g.IntN(len(sizes))]
	return size, int16(g.IntN(8/size.Sizeof()) * size.Sizeof())
}

func (g *generator) load(pointers bool) {
	base, offset, slot := g.pointer()
	dst := g.numeric()
	base, offset = g.still(base, offset, slot)
	size, at := g.part()
	if g.spilled[slot] != number {
		if !pointers {
			return
		}
		size, at = asm.DWord, 0
	}
	g.regs[dst] = g.spilled[slot]
	g.add(asm.LoadMem(dst, base, offset+at, size))
}

// lookUp passes a key on the frame to a helper.
func (g *generator) lookUp() {
	slot := g.IntN(slots)
	g.spilled[slot] = number
	g.labels++
	null := fmt.Sprint("null", g.labels)
	g.add(asm.StoreImm(asm.RFP, int16(-8*(1+slot)), int64(g.IntN(5)), asm.Word),
		asm.StoreImm(asm.RFP, int16(-8*(1+slot)+4), int64(g.IntN(5)), asm.Word),
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, int32(-8*(1+slot)+4*g.IntN(2))),
		asm.LoadMapPtr(asm.R1, g.numbers.FD()), asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, null), asm.LoadMem(asm.R0, asm.R0, 0, asm.DWord))
	g.returned()
	g.code[len(g.code)-5] = g.code[len(g.code)-5].WithSymbol(null)
}

// returned fills the registers that a call has spoiled. The first of five instructions is a place to jump to.
func (g *generator) returned() {
	g.regs[asm.R0] = number
	for r := asm.R1; r <= asm.R5; r++ {
		g.regs[r] = number
		g.add(asm.Mov.Imm(r, int32(g.IntN(3))))
	}
}

// call passes a pointer to a function that writes to the frame.
func (g *generator) call() {
	base, offset, slot := g.pointer()
	if g.spilled[slot] != number {
		return
	}
	g.add(asm.Mov.Reg(asm.R1, base), asm.Add.Imm(asm.R1, int32(offset)), asm.Call.Label("swap"))
	g.returned()
}

// noHelper is a number that no helper has.
const noHelper = 0x6b6574

// droppedCall passes a pointer and a number.
func (g *generator) droppedCall() {
	base, offset, _ := g.pointer()
	r := g.numeric()
	g.add(asm.Mov.Reg(asm.R2, r), asm.And.Imm(asm.R2, int32(g.IntN(3))))
	if base == asm.R2 || g.regs[base] == number {
		base, offset = asm.RFP, -8
	}
	g.add(asm.Mov.Reg(asm.R1, base), asm.Add.Imm(asm.R1, int32(offset)), asm.BuiltinFunc(noHelper).Call(),
		asm.Mov.Imm(asm.R0, 1))
	g.returned()
}

// branch skips some operations.
func (g *generator) branch() {
	g.labels++
	label := fmt.Sprint("skip", g.labels)
	ops := []asm.JumpOp{asm.JEq, asm.JNE, asm.JSet, asm.JGT, asm.JSLT}
	op, r := ops[g.IntN(len(ops))], g.numeric()
	if g.IntN(2) == 0 {
		g.add([]asm.Instruction{asm.Mov.Imm(r, int32(g.IntN(3)-1)), asm.Mov.Imm32(r, int32(g.IntN(3)-1))}[g.IntN(2)])
	}
	g.add([]asm.Instruction{op.Imm(r, int32(g.IntN(3)-1), label), op.Imm32(r, int32(g.IntN(3)-1), label)}[g.IntN(2)])
	before := g.regs
	for range g.IntN(6) {
		g.operation(false)
	}
	g.add(asm.Mov.Imm(asm.R0, 1).WithSymbol(label))
	for r, now := range g.regs {
		if before[r] != now { // a pointer was given up on one path
			g.add(asm.Mov.Imm(asm.Register(r), 1))
			g.regs[r] = number
		}
	}
	g.regs[asm.R0] = number
}
