// SPDX-License-Identifier: Apache-2.0

package ebpfvm

import (
	"encoding/binary"
	"fmt"
)

// region is memory that a program may access. An address consists of the number of a region and an offset in it.
type region struct {
	what    string
	mem     []byte
	address uint64
	of      *table // the map that the address stands for; such a region has no memory
	first   int    // the first accessible byte; last is after the last one. They move with the packet's data
	last    int
}

const regionBits = 32

// fault is an operation that the verifier would reject, or that the interpreter does not support.
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

// memory returns accessible bytes.
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
