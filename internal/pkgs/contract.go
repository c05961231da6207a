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

// member is the byte offset and the size of a member of struct kerb_pkt.
type member struct {
	name         string
	offset, size uint32
}

// pktLayout is the layout of struct kerb_pkt, from its Go mirror, which a test of kerbabi compares with the header.
var pktLayout = sync.OnceValue(func() []member {
	var out []member
	for f := range reflect.TypeFor[kerbabi.Packet]().Fields() {
		out = append(out, member{strings.ToLower(f.Name), uint32(f.Offset), uint32(f.Type.Size())})
	}
	return out
})

// checkContract compares a module's struct kerb_pkt with that of this build. If accesses are relocated (CO-RE), the
// linker adapts offsets by field name, so that only the sizes must match. Without relocations, all offsets must match.
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

// DropReason returns the package's name of a drop reason.
func (m *Manifest) DropReason(number int) string {
	for name, n := range m.DropReasons {
		if n == number {
			return name
		}
	}
	return kerbabi.DropReasonName(uint32(number))
}

// Note returns the package's name of a note (kerb_note), or "" if the manifest has none.
func (m *Manifest) Note(number int) string {
	for name, n := range m.Notes {
		if n == number {
			return name
		}
	}
	return ""
}
