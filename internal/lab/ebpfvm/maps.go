// SPDX-License-Identifier: Apache-2.0

package ebpfvm

import (
	"bytes"
	"encoding/binary"
	"errors"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// table is a kernel map, with the elements that the program has accessed.
type table struct {
	vm       *VM
	kernel   *ebpf.Map
	name     string
	self     *region // the region that stands for the map
	elements map[string]*element
	queue    [][]byte
}

// element is a value in a table, or its absence.
type element struct {
	*region        // nil: absent
	before  []byte // the kernel's value; nil: absent there
}

func (e *element) value() []byte {
	if e.region == nil {
		return nil
	}
	return e.mem
}

// Element is an element of a map after a run, with key and value in the machine's byte order. CPU is that of the run,
// which matters for per-CPU maps.
type Element struct {
	Map   *ebpf.Map
	Name  string
	Key   []byte
	Value []byte // nil: absent
	CPU   int
}

// Kernel returns the kernel's current value of the element, or nil if there is none.
func (e Element) Kernel() []byte { return read(e.Map, e.Key, e.CPU) }

// tableOf returns the map of a file descriptor.
func (v *VM) tableOf(fd int32) *table {
	m := v.p.maps[fd]
	if m == nil {
		own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			fail("file descriptor %d of a map: %w", fd, err)
		}
		if m, err = ebpf.NewMapFromFD(own); err != nil {
			fail("file descriptor %d of a map: %w", fd, err)
		}
		v.p.maps[fd] = m
	}
	return v.tableFor(m)
}

// identity has the kernel's id and name of a map.
type identity struct {
	id   ebpf.MapID
	name string
}

func (v *VM) tableFor(m *ebpf.Map) *table {
	of, known := v.known[m]
	if !known {
		info, err := m.Info()
		if err != nil {
			fail("map: %w", err)
		}
		of.name = info.Name
		of.id, _ = info.ID()
		v.known[m] = of
	}
	t := v.tables[of.id]
	if t == nil {
		t = &table{vm: v, kernel: m, name: of.name, elements: map[string]*element{}}
		t.self = v.newRegion("map "+of.name, nil)
		t.self.of = t
		v.tables[of.id] = t
	}
	return t
}

// tableAt returns the map that an address stands for.
func (v *VM) tableAt(address uint64) *table {
	r := v.regionAt(address)
	if r.of == nil {
		fail("%s is no map", r.what)
	}
	return r.of
}

func (t *table) isArray() bool {
	return t.kernel.Type() == ebpf.Array || t.kernel.Type() == ebpf.PerCPUArray
}

// entry returns the element of a key.
func (t *table) entry(key []byte) *element {
	e := t.elements[string(key)]
	if e == nil {
		e = &element{before: read(t.kernel, key, t.vm.in.CPU)}
		if e.before != nil {
			e.region = t.vm.newRegion("a value of "+t.name, bytes.Clone(e.before))
		}
		t.elements[string(key)] = e
	}
	return e
}

func (t *table) element(key []byte) *region { return t.entry(key).region }

// read returns the kernel's value, or nil if there is none.
func read(m *ebpf.Map, key []byte, cpu int) []byte {
	var value []byte
	var err error
	switch m.Type() {
	case ebpf.PerCPUArray, ebpf.PerCPUHash, ebpf.LRUCPUHash:
		var values [][]byte
		if err = m.Lookup(key, &values); err == nil {
			value = values[cpu]
		}
	case ebpf.XSKMap, ebpf.DevMap, ebpf.DevMapHash, ebpf.CPUMap: // not readable here, and empty in tests
		return nil
	default:
		err = m.Lookup(key, &value)
	}
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil
	}
	if err != nil {
		fail("read map: %w", err)
	}
	return value
}

// lookup is bpf_map_lookup_elem.
func (v *VM) lookup(a [5]uint64) uint64 {
	t := v.tableAt(a[0])
	key := bytes.Clone(v.memory(a[1], int(t.kernel.KeySize())))
	if t.isArray() && binary.NativeEndian.Uint32(key) >= t.kernel.MaxEntries() {
		return 0
	}
	r := t.element(key)
	if r == nil {
		return 0
	}
	if t.kernel.Type() != ebpf.ArrayOfMaps && t.kernel.Type() != ebpf.HashOfMaps {
		return r.address
	}
	id := ebpf.MapID(binary.NativeEndian.Uint32(r.mem))
	if v.inner[id] == nil {
		inner, err := ebpf.NewMapFromID(id)
		if err != nil {
			fail("map in %s: %w", t.name, err)
		}
		v.inner[id] = inner
	}
	return v.tableFor(v.inner[id]).self.address
}

// update is bpf_map_update_elem.
func (v *VM) update(a [5]uint64) uint64 {
	const noExist, exist = 1, 2
	t := v.tableAt(a[0])
	key := bytes.Clone(v.memory(a[1], int(t.kernel.KeySize())))
	value := v.memory(a[2], int(t.kernel.ValueSize()))
	if t.isArray() && binary.NativeEndian.Uint32(key) >= t.kernel.MaxEntries() {
		return errno(unix.E2BIG)
	}
	e := t.entry(key)
	switch {
	case a[3]&3 == noExist && e.region != nil:
		return errno(unix.EEXIST)
	case a[3]&3 == exist && e.region == nil:
		return errno(unix.ENOENT)
	case t.isArray(): // in place, visible through pointers to the value
		copy(e.mem, value)
	default:
		size := len(value)
		if e.before != nil {
			size = len(e.before)
		}
		e.region = v.newRegion("a value of "+t.name, make([]byte, size))
		copy(e.mem, value)
	}
	return 0
}

// remove is bpf_map_delete_elem.
func (v *VM) remove(a [5]uint64) uint64 {
	t := v.tableAt(a[0])
	e := t.entry(bytes.Clone(v.memory(a[1], int(t.kernel.KeySize()))))
	if t.isArray() {
		return errno(unix.EINVAL)
	}
	if e.region == nil {
		return errno(unix.ENOENT)
	}
	e.region = nil
	return 0
}

// push, pop and peek are the helpers of queues, which are empty before a run.
func (v *VM) push(a [5]uint64) uint64 {
	t := v.tableAt(a[0])
	t.queue = append(t.queue, bytes.Clone(v.memory(a[1], int(t.kernel.ValueSize()))))
	return 0
}

func (v *VM) peek(a [5]uint64) uint64 {
	t := v.tableAt(a[0])
	if len(t.queue) == 0 {
		return errno(unix.ENOENT)
	}
	copy(v.memory(a[1], int(t.kernel.ValueSize())), t.queue[0])
	return 0
}

func (v *VM) pop(a [5]uint64) uint64 {
	rc := v.peek(a)
	if rc == 0 {
		t := v.tableAt(a[0])
		t.queue = t.queue[1:]
	}
	return rc
}

// Rewind reverts the changes of the last run.
func (v *VM) Rewind() {
	for _, t := range v.tables {
		t.queue = nil
		for _, e := range t.elements {
			if e.region = nil; e.before != nil {
				e.region = v.newRegion("a value of "+t.name, bytes.Clone(e.before))
			}
		}
	}
}

func errno(e unix.Errno) uint64 { return uint64(-int64(e)) }
