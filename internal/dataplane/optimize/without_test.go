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
	"github.com/kerb-edge/kerb/sdk/sdktest"
)

func isDropped(ins asm.Instruction) bool { return ins.IsBuiltinCall() && ins.Constant == noHelper }

// With a call go the values that only it needs, and the branch that only decides about it.
func TestWithout(t *testing.T) {
	call := asm.BuiltinFunc(noHelper).Call()
	function := func(code ...asm.Instruction) asm.Instructions {
		code[0] = btf.WithFuncMetadata(code[0].WithSymbol("f"), &btf.Func{Name: "f"})
		return code
	}
	acquire := asm.Instruction{OpCode: asm.OpCode(asm.StXClass).SetMode(asm.AtomicMode).SetSize(asm.DWord).
		SetAtomicOp(0x1_0000), Dst: asm.R0, Src: asm.R2, Offset: -8}
	for name, c := range map[string]struct{ code, want asm.Instructions }{
		"all of it": {
			function(asm.LoadMem(asm.R6, asm.R1, 0, asm.Word), asm.Mov.Reg(asm.R7, asm.R1),
				asm.LoadMem(asm.R8, asm.R7, 4, asm.Word), asm.JEq.Imm(asm.R8, 2, "skip"), asm.Mov.Reg(asm.R1, asm.R7),
				asm.Mov.Reg(asm.R2, asm.R6), asm.LSh.Imm(asm.R2, 48), asm.Or.Reg(asm.R2, asm.R8), call,
				asm.Mov.Reg(asm.R0, asm.R6).WithSymbol("skip"), asm.Return()),
			function(asm.LoadMem(asm.R6, asm.R1, 0, asm.Word), asm.Mov.Reg(asm.R0, asm.R6), asm.Return())},
		"and what the next call needs": {
			function(asm.Mov.Imm(asm.R2, 5), call, asm.Mov.Imm(asm.R1, 1), asm.FnRedirectPeer.Call(), asm.Return()),
			function(asm.Mov.Imm(asm.R1, 1), asm.FnRedirectPeer.Call(), asm.Return())},
		"not understood": {
			function(asm.Mov.Imm(asm.R2, 5), acquire, call, asm.Return()),
			function(asm.Mov.Imm(asm.R2, 5), acquire, asm.Mov.Imm(asm.R0, 0), asm.Return())},
		"none": {function(asm.FnKtimeGetNs.Call(), asm.Return()), function(asm.FnKtimeGetNs.Call(), asm.Return())},
	} {
		if got := optimize.Without(c.code, isDropped); fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// Random programs do the same without the calls as with calls that do nothing, and the verifier takes them.
func TestRandomProgramsWithout(t *testing.T) {
	sdktest.NeedRoot(t)
	random := rand.New(rand.NewPCG(23, 1))
	numbers, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 4})
	if err != nil {
		t.Fatal(err)
	}
	defer numbers.Close()
	calls, saved := 0, 0
	for n := range 1000 {
		g := newGenerator(random, numbers)
		g.dropped = true
		entry, function := g.program()
		with := slices.Clone(entry)
		for i := range with {
			if isDropped(with[i]) {
				with[i] = asm.Mov.Imm(asm.R0, 0).WithMetadata(with[i].Metadata)
				calls++
			}
		}
		with = optimize.Called(append(with, function...))
		without := optimize.Called(append(optimize.Without(entry, isDropped), function...))
		if n%20 == 0 {
			verify(t, without)
		}
		frame := make([]byte, 128)
		for i := range frame {
			frame[i] = byte(random.Uint32())
		}
		want, got := interpret(t, with, frame), interpret(t, without, frame)
		saved += want.Executed - got.Executed
		if want.Return != got.Return || string(want.Frame) != string(got.Frame) || got.Executed > want.Executed {
			t.Fatalf("program %d: returns %#x in %d steps, with calls %#x in %d\n%x\n%x\n%v\nwith calls:\n%v", n, got.Return,
				got.Executed, want.Return, want.Executed, got.Frame, want.Frame, without, with)
		}
	}
	if calls == 0 || saved < 3*calls/2 {
		t.Errorf("%d instructions less are executed without %d calls", saved, calls)
	}
}
