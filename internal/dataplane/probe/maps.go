// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"
)

func array() *ebpf.MapSpec {
	return &ebpf.MapSpec{Name: objectName, Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1}
}

// hash has keys of 8 bytes, which suit an LPM trie too: 4 of them are the
// prefix length.
func hash(kind ebpf.MapType, flags uint32) *ebpf.MapSpec {
	return &ebpf.MapSpec{Name: objectName, Type: kind, KeySize: 8, ValueSize: 8, MaxEntries: 4, Flags: flags}
}

func ringbuf(kind ebpf.MapType) *ebpf.MapSpec {
	return &ebpf.MapSpec{Name: objectName, Type: kind, MaxEntries: uint32(os.Getpagesize())}
}

func createMap(spec *ebpf.MapSpec) error {
	m, err := ebpf.NewMap(spec)
	if err != nil {
		return err
	}
	return m.Close()
}

func tryArray() error { return createMap(array()) }

func tryMapInMap() error {
	outer := hash(ebpf.HashOfMaps, 0)
	outer.ValueSize, outer.InnerMap = 4, hash(ebpf.Hash, 0)
	m, err := ebpf.NewMap(outer)
	if err != nil {
		return err
	}
	defer m.Close()
	inner, err := ebpf.NewMap(outer.InnerMap)
	if err != nil {
		return err
	}
	defer inner.Close()
	return m.Put(uint64(1), inner)
}

func tryBatch() error {
	m, err := ebpf.NewMap(hash(ebpf.Hash, 0))
	if err != nil {
		return err
	}
	defer m.Close()
	n, err := m.BatchUpdate([]uint64{1, 2}, []uint64{3, 4}, nil)
	if err == nil && n != 2 {
		err = fmt.Errorf("a batch of 2 updated %d entries", n)
	}
	return err
}

// Pin pins a map in a directory and takes it away again, which reports whether
// the directory is on a bpffs that can be written to.
func Pin(dir string) error {
	m, err := ebpf.NewMap(array())
	if err != nil {
		return err
	}
	defer m.Close()
	path := filepath.Join(dir, fmt.Sprintf("%s-%d", objectName, os.Getpid()))
	if err := m.Pin(path); err != nil {
		return err
	}
	return m.Unpin()
}
