// SPDX-License-Identifier: Apache-2.0

package kerbabi

import (
	"strings"

	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
)

// AccessesPacket reports whether an instruction has a CO-RE relocation for struct kerb_pkt. The library gives the type
// of a relocation as text only.
func AccessesPacket(ins *asm.Instruction) bool {
	relocation := btf.CORERelocationMetadata(ins)
	return relocation != nil && strings.Contains(relocation.String(), `"kerb_pkt"`)
}
