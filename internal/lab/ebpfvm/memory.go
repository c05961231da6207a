// SPDX-License-Identifier: Apache-2.0

package ebpfvm

import (
	"encoding/binary"
	"fmt"
)

// region is memory that a program may reach. An address is the number of a region and an offset in it.
type region struct {
	what    string
	mem     []byte
	address uint64
	of      *table // the map whose address this is; it has no memory
	first   int    // byte that may be reached, and the one behind the last: the packet moves
	last    int
}

const regionBits = 32

// fault is what a program did that the verifier would not let it do, or that the interpreter cannot do.
type fault struct{ error }

func fail(format string, args ...any) { panic(fault{fmt.Errorf(format, args...)}) }

func (v *VM) newRegion(what string, mem []byte) *region {
	r := &region{what: what, mem: mem, address: uint64(len(v.regions)) << regionBits, last: len(mem)}
	v.regions = append(v.regions, r)
	return r
}

func (v *VM) regionAt(address uint64) *region {
	n := address >> regionBits
	if n == 0 || n >= uint64(len(v.regions)) {
		fail("address %#x is not memory", address)
	}
	return v.regions[n]
}

// memory returns bytes that can be reached.
func (v *VM) memory(address uint64, size int) []byte {
	r, offset := v.regionAt(address), int(uint32(address))
	if size < 0 || offset < r.first || offset+size > r.last {
		fail("%d bytes at %d of %s, which has %d to %d", size, offset, r.what, r.first, r.last)
	}
	return r.mem[offset : offset+size]
}

func (v *VM) load(address uint64, size int) uint64 {
	if address>>regionBits == v.context.address>>regionBits {
		if n, is := v.contextField(int(uint32(address)), size); is {
			return n
		}
	}
	b := v.memory(address, size)
	switch size {
	case 1:
		return uint64(b[0])
	case 2:
		return uint64(binary.NativeEndian.Uint16(b))
	case 4:
		return uint64(binary.NativeEndian.Uint32(b))
	}
	return binary.NativeEndian.Uint64(b)
}

func (v *VM) store(address uint64, size int, n uint64) {
	b := v.memory(address, size)
	switch size {
	case 1:
		b[0] = byte(n)
	case 2:
		binary.NativeEndian.PutUint16(b, uint16(n))
	case 4:
		binary.NativeEndian.PutUint32(b, uint32(n))
	default:
		binary.NativeEndian.PutUint64(b, n)
	}
}
