// SPDX-License-Identifier: Apache-2.0

package optimize

import (
	"fmt"
	"testing"

	"github.com/cilium/ebpf/asm"
)

// Without loops each block is followed once, however many paths lead to it.
func TestFollowsBlocksOnce(t *testing.T) {
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
	code = append(code, asm.Mov.Imm(asm.R0, 0), asm.Return())
	p, ok := parse(code, nil)
	if !ok {
		t.Fatal("not understood")
	}
	if p.forward(); p.followed > p.count {
		t.Errorf("%d blocks were followed %d times", p.count, p.followed)
	}
}
