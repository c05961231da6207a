// SPDX-License-Identifier: Apache-2.0

package ebpfvm

import (
	"math/rand/v2"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/kerb-edge/kerb/sdk/sdktest"
)

// Random code has the same results in the kernel, and the expected number of instructions.
func TestArithmeticLikeKernel(t *testing.T) {
	sdktest.NeedRoot(t)
	random := rand.New(rand.NewPCG(19, 9))
	for n := range 400 {
		code := arithmetic(random)
		spec := &ebpf.ProgramSpec{Type: ebpf.XDP, License: "GPL", Instructions: code}
		kernel, err := ebpf.NewProgram(spec)
		if err != nil {
			t.Fatalf("%v\n%v", err, code)
		}
		frame := make([]byte, 64)
		for i := range frame {
			frame[i] = byte(random.Uint32())
		}
		opts := &ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame))}
		want, err := kernel.Run(opts)
		kernel.Close()
		if err != nil {
			t.Fatal(err)
		}
		p, err := Load(code, ebpf.XDP)
		if err != nil {
			t.Fatal(err)
		}
		got, err := New().Run(p, Input{Frame: frame})
		if err != nil {
			t.Fatal(err)
		}
		if got.Return != want || string(got.Frame) != string(opts.DataOut) {
			t.Fatalf("program %d: returns %#x, kernel %#x\n%x\n%x\n%v", n, got.Return, want, got.Frame, opts.DataOut, code)
		}
	}
}

// arithmetic returns a program that loads registers from the packet, computes, and writes them back.
func arithmetic(random *rand.Rand) asm.Instructions {
	code := asm.Instructions{
		asm.LoadMem(asm.R6, asm.R1, 0, asm.Word),
		asm.LoadMem(asm.R7, asm.R1, 4, asm.Word),
		asm.Mov.Reg(asm.R8, asm.R6),
		asm.Add.Imm(asm.R8, 64),
		asm.JGT.Reg(asm.R8, asm.R7, "out"),
	}
	for r := asm.R0; r <= asm.R5; r++ {
		code = append(code, asm.LoadMem(r, asm.R6, 8*int16(r), asm.DWord))
	}
	skipped := ""
	for n := range 60 {
		ins := operation(random)
		if n%10 == 0 {
			if skipped != "" {
				ins = ins.WithSymbol(skipped)
			}
			skipped = string(rune('a' + n/10))
			code = append(code, ins, condition(random, skipped))
			continue
		}
		code = append(code, ins)
	}
	code = append(code, asm.Mov.Imm(asm.R9, 0).WithSymbol(skipped))
	for r := asm.R0; r <= asm.R5; r++ {
		code = append(code, asm.StoreMem(asm.R6, 8*int16(r), r, asm.DWord))
	}
	return append(code, asm.Mov.Imm(asm.R0, 2).WithSymbol("out"), asm.Return())
}

func condition(random *rand.Rand, label string) asm.Instruction {
	ops := []asm.JumpOp{asm.JEq, asm.JGT, asm.JGE, asm.JSet, asm.JNE, asm.JSGT, asm.JSGE, asm.JLT, asm.JLE, asm.JSLT,
		asm.JSLE}
	op, dst, src := ops[random.IntN(len(ops))], register(random), register(random)
	switch random.IntN(4) {
	case 0:
		return op.Imm(dst, int32(random.Uint32()), label)
	case 1:
		return op.Imm32(dst, int32(random.Uint32()), label)
	case 2:
		return op.Reg32(dst, src, label)
	}
	return op.Reg(dst, src, label)
}

func register(random *rand.Rand) asm.Register { return asm.Register(random.IntN(6)) }

func operation(random *rand.Rand) asm.Instruction {
	ops := []asm.ALUOp{asm.Add, asm.Sub, asm.Mul, asm.Div, asm.Or, asm.And, asm.LSh, asm.RSh, asm.Neg, asm.Mod, asm.Xor,
		asm.Mov, asm.ArSh, asm.SDiv, asm.SMod, asm.MovSX8, asm.MovSX16, asm.MovSX32}
	op, dst, src := ops[random.IntN(len(ops))], register(random), register(random)
	imm := int32(random.Uint32()) | 1
	wide := random.IntN(2) == 0
	switch op {
	case asm.Neg:
		return asm.Neg.Imm(dst, 0)
	case asm.MovSX8, asm.MovSX16:
		return op.Reg(dst, src)
	case asm.MovSX32:
		return op.Reg(dst, src)
	case asm.LSh, asm.RSh, asm.ArSh:
		imm &= 31
	case asm.Xor:
		if random.IntN(2) == 0 {
			return asm.BSwap(dst, []asm.Size{asm.Half, asm.Word, asm.DWord}[random.IntN(3)])
		}
	}
	switch {
	case random.IntN(2) == 0 && wide:
		return op.Imm(dst, imm)
	case random.IntN(2) == 0:
		return op.Imm32(dst, imm)
	case wide:
		return op.Reg(dst, src)
	}
	return op.Reg32(dst, src)
}
