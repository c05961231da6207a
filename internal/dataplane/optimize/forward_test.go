// SPDX-License-Identifier: Apache-2.0

package optimize

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf/asm"
)

// branches is a program in which each of 20 blocks is reached on two paths.
func branches() asm.Instructions {
	code := asm.Instructions{asm.Mov.Reg(asm.R6, asm.R1).WithSymbol("entry")}
	for i := range 20 {
		either, join := fmt.Sprint("either", i), fmt.Sprint("join", i)
		code = append(code,
			asm.LoadMem(asm.R2, asm.R6, int16(4*i), asm.Word),
			asm.JEq.Imm(asm.R2, 0, either),
			asm.StoreImm(asm.RFP, int16(-8*(i+1)), 1, asm.Word),
			asm.Ja.Label(join),
			asm.StoreImm(asm.RFP, int16(-8*(i+1)), 2, asm.Word).WithSymbol(either),
			asm.Mov.Reg(asm.R7, asm.R2).WithSymbol(join))
	}
	return append(code, asm.Mov.Imm(asm.R0, 0), asm.Return())
}

// Without loops each block is followed once, however many paths lead to it.
func TestFollowsBlocksOnce(t *testing.T) {
	var p program
	if !p.parse(branches(), nil) {
		t.Fatal("not understood")
	}
	if p.forward(); p.followed > p.count {
		t.Errorf("%d blocks were followed %d times", p.count, p.followed)
	}
}

// What is known at the blocks of a program takes more memory than the program. It is not allocated for each one.
func TestMemoryIsUsedAgain(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	const runs = 50
	code, before, after := branches(), runtime.MemStats{}, runtime.MemStats{}
	Code(code, nil)
	runtime.ReadMemStats(&before)
	for range runs {
		Code(code, nil)
	}
	runtime.ReadMemStats(&after)
	if got, most := (after.TotalAlloc-before.TotalAlloc)/runs, uint64(61*unsafe.Sizeof(state{})); got > most {
		t.Errorf("%d bytes are allocated for a program, more than the %d that its blocks take", got, most)
	}
}
