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

// pktLayout is struct kerb_pkt of the contract, from its Go mirror, which a test of kerbabi compares with the header. A
// data plane that was compiled with another layout would read wrong bytes, so it is refused.
var pktLayout = sync.OnceValue(func() []member {
	var out []member
	for f := range reflect.TypeFor[kerbabi.Packet]().Fields() {
		out = append(out, member{strings.ToLower(f.Name), uint32(f.Offset), uint32(f.Type.Size())})
	}
	return out
})

// checkContract compares a struct kerb_pkt with the contract's.
func checkContract(pkt *btf.Struct) error {
	layout := pktLayout()
	if len(pkt.Members) != len(layout) {
		return contractError("struct kerb_pkt has %d members, not %d", len(pkt.Members), len(layout))
	}
	for i, want := range layout {
		m := pkt.Members[i]
		size, err := btf.Sizeof(m.Type)
		plain := strings.ReplaceAll(m.Name, "_", "")
		if err != nil || plain != want.name || m.Offset.Bytes() != want.offset || uint32(size) != want.size {
			return contractError("member %d of struct kerb_pkt is %s (%d bytes at %d), not %s (%d bytes at %d)",
				i, plain, size, m.Offset.Bytes(), want.name, want.size, want.offset)
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
