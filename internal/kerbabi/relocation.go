// SPDX-License-Identifier: Apache-2.0

package kerbabi

import (
	"strings"

	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
)

// RelocatesPacket reports whether an instruction has a CO-RE relocation for struct kerb_pkt. The library gives kind and
// type of a relocation as text only.
func RelocatesPacket(ins *asm.Instruction) bool {
	relocation := btf.CORERelocationMetadata(ins)
	return relocation != nil && strings.Contains(relocation.String(), `"kerb_pkt"`)
}

// AccessesPacket reports whether an instruction has the relocated offset of a field of struct kerb_pkt. Other
// relocations, such as those of bpf_core_field_exists, do not show that accesses are relocated.
func AccessesPacket(ins *asm.Instruction) bool {
	return RelocatesPacket(ins) && strings.Contains(btf.CORERelocationMetadata(ins).String(), "(byte_off,")
}
