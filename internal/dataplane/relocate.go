// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"fmt"

	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"

	"github.com/kerb-edge/kerb/internal/kerbabi"
)

// relocate adapts a module's accesses to the chain's struct kerb_pkt, whose layout may differ from that of the Kerb
// version that compiled the module. Modules without relocations have the layout of the chain
// (internal/pkgs/contract.go). Relocations for kernel types are left to the loader.
func (l *linker) relocate(code asm.Instructions) error {
	var relocations []*btf.CORERelocation
	var found []*asm.Instruction
	for i := range code {
		if kerbabi.RelocatesPacket(&code[i]) {
			relocations = append(relocations, btf.CORERelocationMetadata(&code[i]))
			found = append(found, &code[i])
		}
	}
	if len(found) == 0 {
		return nil
	}
	fixups, err := btf.CORERelocate(relocations, []*btf.Spec{l.object.Types}, l.object.ByteOrder, l.object.Types.TypeID)
	if err != nil {
		return fmt.Errorf("relocate accesses of struct kerb_pkt: %w", err)
	}
	for i, ins := range found {
		if err := fixups[i].Apply(ins); err != nil {
			return fmt.Errorf("relocate an access of struct kerb_pkt: %w", err)
		}
		*ins = btf.WithCORERelocationMetadata(*ins, nil)
	}
	return nil
}
