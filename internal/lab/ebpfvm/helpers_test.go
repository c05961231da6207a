// SPDX-License-Identifier: Apache-2.0

package ebpfvm

import (
	"math/rand/v2"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/kerb-edge/kerb/sdk/sdktest"
)

// Helpers that change a packet behave like in the kernel, also with invalid arguments.
func TestHelpersLikeKernel(t *testing.T) {
	sdktest.NeedRoot(t)
	random := rand.New(rand.NewPCG(7, 7))
	pick := func(all ...int32) int32 { return all[random.IntN(len(all))] }
	for n := range 600 {
		// checksums as in packets: zero, all ones, and any
		sum := func() int32 { return pick(0, -1, 0xffff, int32(random.Uint32())) }
		offset := pick(0, 14, 24, 34, 60, 98, 99, 100, 200)
		length := pick(0, 2, 4)
		by := pick(-200, -80, -40, -8, 8, 40)
		calls := map[asm.BuiltinFunc][4]int32{
			asm.FnL4CsumReplace: {offset, sum(), sum(), length | pick(0, 0x10, 0x20, 0x60)},
			asm.FnSkbAdjustRoom: {by, pick(0, 1), 0, 0},
			asm.FnSkbChangeTail: {pick(10, 14, 60, 99, 100, 101, 300), pick(0, 0, 1), 0, 0},
			asm.FnSkbPullData:   {pick(0, 50, 100, 101), 0, 0, 0},
			asm.FnCsumLevel:     {pick(0, 1, 2, 3), 0, 0, 0},
			asm.FnCsumUpdate:    {sum(), 0, 0, 0},
			asm.FnSkbChangeHead: {pick(14, 20), 0, 0, 0},
		}
		for fn, args := range calls {
			like(t, n, fn, args, random)
		}
	}
}

func like(t *testing.T, n int, fn asm.BuiltinFunc, args [4]int32, random *rand.Rand) {
	t.Helper()
	code := asm.Instructions{}
	for i, a := range args {
		code = append(code, asm.Mov.Imm(asm.R2+asm.Register(i), a))
	}
	code = append(code, fn.Call(), asm.Return())
	frame := make([]byte, 100)
	for i := range frame {
		frame[i] = byte(random.Uint32())
		if random.IntN(8) == 0 && i < 90 { // zero checksums
			frame[i] = 0
		}
	}
	frame[12], frame[13] = 8, 0
	if random.IntN(2) == 0 {
		frame[12], frame[13] = 0x86, 0xdd
	}
	kernel, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL", Instructions: code})
	if err != nil {
		t.Fatal(err)
	}
	defer kernel.Close()
	opts := &ebpf.RunOptions{Data: frame, DataOut: make([]byte, 600)}
	want, err := kernel.Run(opts)
	if err != nil {
		t.Fatal(err)
	}
	p, err := Load(code, ebpf.SchedCLS)
	if err != nil {
		t.Fatal(err)
	}
	got, err := New().Run(p, Input{Frame: frame})
	if err != nil || got.Return != want || string(got.Frame) != string(opts.DataOut) {
		t.Errorf("%d: %s%v: %d, in the kernel %d: %v\n%x\n%x, of\n%x", n, fn, args, int32(got.Return), int32(want), err,
			got.Frame, opts.DataOut, frame)
	}
}
