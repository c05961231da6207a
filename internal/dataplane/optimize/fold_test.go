// SPDX-License-Identifier: Apache-2.0

package optimize_test

import (
	"fmt"
	"testing"

	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"

	"github.com/kerb-edge/kerb/internal/dataplane/optimize"
)

// Reads of constants become numbers; an address goes if nothing else needs it.
func TestFold(t *testing.T) {
	contents := func(section string) []byte {
		if section == ".rodata" {
			return []byte{1, 2, 3, 0x84, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x10, 0x20, 0x30, 0x40}
		}
		return nil
	}
	address := func(dst asm.Register, offset uint32) asm.Instruction {
		return asm.LoadMapValue(dst, 0, offset).WithReference(".rodata")
	}
	function := func(code ...asm.Instruction) asm.Instructions {
		code[0] = btf.WithFuncMetadata(code[0].WithSymbol("f"), &btf.Func{Name: "f"})
		return append(code, asm.Return())
	}
	load, end := asm.LoadMem, asm.Return()
	other := asm.LoadMapValue(asm.R1, 0, 0).WithReference(".data")
	for name, c := range map[string]struct{ code, want asm.Instructions }{
		"sizes": {
			function(address(asm.R1, 0), load(asm.R1, asm.R1, 1, asm.Byte), address(asm.R2, 0),
				load(asm.R2, asm.R2, 0, asm.Half), address(asm.R3, 0), load(asm.R3, asm.R3, 0, asm.Word),
				address(asm.R4, 4), load(asm.R4, asm.R4, 0, asm.DWord), address(asm.R5, 4), load(asm.R5, asm.R5, 4, asm.DWord)),
			asm.Instructions{asm.Mov.Imm32(asm.R1, 2), asm.Mov.Imm32(asm.R2, 0x0201), asm.Mov.Imm32(asm.R3, -0x7bfcfdff),
				asm.Mov.Imm(asm.R4, -1), asm.LoadImm(asm.R5, 0x40302010_ffffffff, asm.DWord), end}},
		"two reads": {
			function(address(asm.R1, 0), load(asm.R2, asm.R1, 0, asm.Byte), load(asm.R1, asm.R1, 1, asm.Byte)),
			asm.Instructions{asm.Mov.Imm32(asm.R2, 1), asm.Mov.Imm32(asm.R1, 2), end}},
		"other use": {
			function(address(asm.R1, 0), load(asm.R2, asm.R1, 0, asm.Byte), asm.Mov.Reg(asm.R3, asm.R1), asm.Mov.Imm(asm.R1, 0)),
			asm.Instructions{address(asm.R1, 0), asm.Mov.Imm32(asm.R2, 1), asm.Mov.Reg(asm.R3, asm.R1),
				asm.Mov.Imm(asm.R1, 0), end}},
		"may be used later": {
			function(address(asm.R1, 0), load(asm.R2, asm.R1, 0, asm.Byte), asm.JEq.Imm(asm.R2, 0, "out"),
				asm.Mov.Imm(asm.R1, 0), load(asm.R0, asm.R1, 0, asm.Byte).WithSymbol("out")),
			asm.Instructions{address(asm.R1, 0), asm.Mov.Imm32(asm.R2, 1),
				asm.Instruction{OpCode: asm.JEq.Imm(asm.R2, 0, "").OpCode, Dst: asm.R2, Offset: 1}, asm.Mov.Imm(asm.R1, 0),
				load(asm.R0, asm.R1, 0, asm.Byte), end}},
		"beyond the end": {
			function(address(asm.R1, 12), load(asm.R1, asm.R1, 0, asm.DWord)),
			asm.Instructions{address(asm.R1, 12), load(asm.R1, asm.R1, 0, asm.DWord), end}},
		"not constant": {
			function(other, load(asm.R1, asm.R1, 0, asm.Byte)),
			asm.Instructions{other, load(asm.R1, asm.R1, 0, asm.Byte), end}},
	} {
		c.want[0] = c.want[0].WithSymbol("f")
		if got := optimize.Fold(c.code, contents); fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
