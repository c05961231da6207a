// SPDX-License-Identifier: Apache-2.0

package pkgstest

import (
	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/dataplane"
)

// Reader returns a module that reads the packet through the pointers in struct kerb_pkt. If the module before it leaves
// invalid pointers on any path, the chain is rejected by the verifier.
func Reader(dir chain.Direction) dataplane.Module {
	entry := "kerb_" + string(dir)
	code := asm.Instructions{
		asm.Mov.Imm(asm.R0, 0),
		asm.LoadMem(asm.R2, asm.R1, 8, asm.DWord),  // data
		asm.LoadMem(asm.R3, asm.R1, 16, asm.DWord), // data_end
		asm.Mov.Reg(asm.R4, asm.R2),
		asm.Add.Imm(asm.R4, 14),
		asm.JGT.Reg(asm.R4, asm.R3, "out"),
		asm.LoadMem(asm.R4, asm.R2, 0, asm.Byte),
		asm.Return().WithSymbol("out"),
	}
	number := &btf.Int{Name: "int", Size: 4, Encoding: btf.Signed}
	code[0] = btf.WithFuncMetadata(code[0].WithSymbol(entry), &btf.Func{Name: entry, Linkage: btf.GlobalFunc,
		Type: &btf.FuncProto{Return: number,
			Params: []btf.FuncParam{{Name: "pkt", Type: &btf.Pointer{Target: &btf.Void{}}}}}})
	spec := &ebpf.CollectionSpec{Programs: map[string]*ebpf.ProgramSpec{entry: {Name: entry, License: "GPL",
		Instructions: code}}}
	return dataplane.Module{Name: "behind", ID: "0123456789", Frags: true,
		Spec: func(chain.Hook) (*ebpf.CollectionSpec, error) { return spec.Copy(), nil }}
}
