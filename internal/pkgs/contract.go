// SPDX-License-Identifier: Apache-2.0

package pkgs

import (
	"fmt"
	"reflect"
	"strings"
	"sync"

	"github.com/cilium/ebpf/btf"

	"github.com/kerb-edge/kerb/internal/kerbabi"
)

// member of struct kerb_pkt: byte offset and size.
type member struct {
	name         string
	offset, size uint32
}

// pktLayout is struct kerb_pkt of the contract, from its Go mirror, which a test of kerbabi compares with the header.
var pktLayout = sync.OnceValue(func() []member {
	var out []member
	for f := range reflect.TypeFor[kerbabi.Packet]().Fields() {
		out = append(out, member{strings.ToLower(f.Name), uint32(f.Offset), uint32(f.Type.Size())})
	}
	return out
})

// checkContract compares a struct kerb_pkt with the contract's. The linker relocates accesses by the names of fields:
// then only the sizes must be equal. A data plane without relocations would read wrong bytes with another layout.
func checkContract(pkt *btf.Struct, relocated bool) error {
	layout := map[string]member{}
	for _, m := range pktLayout() {
		layout[m.name] = m
	}
	if !relocated && len(pkt.Members) != len(layout) {
		return contractError("struct kerb_pkt has %d members, not %d", len(pkt.Members), len(layout))
	}
	for _, m := range pkt.Members {
		size, err := btf.Sizeof(m.Type)
		plain := strings.ReplaceAll(m.Name, "_", "")
		want, known := layout[plain]
		if !known {
			return contractError("struct kerb_pkt has no %s", m.Name)
		}
		if err != nil || uint32(size) != want.size || !relocated && m.Offset.Bytes() != want.offset {
			return contractError("member %s of struct kerb_pkt has %d bytes at %d, not %d bytes at %d", m.Name, size,
				m.Offset.Bytes(), want.size, want.offset)
		}
	}
	return nil
}

func contractError(format string, args ...any) error {
	return fmt.Errorf("%w: %s; run kerb package build again with this version of kerb", ErrContract,
		fmt.Sprintf(format, args...))
}

// DropReason names a reason number as the package means it.
func (m *Manifest) DropReason(number int) string {
	for name, n := range m.DropReasons {
		if n == number {
			return name
		}
	}
	return kerbabi.DropReasonName(uint32(number))
}

// Note names what the package notes about packets under a number; empty if the manifest has no name for it.
func (m *Manifest) Note(number int) string {
	for name, n := range m.Notes {
		if n == number {
			return name
		}
	}
	return ""
}
