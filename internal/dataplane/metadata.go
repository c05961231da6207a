// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/version"
)

// bpftool prog show prints metadata of a program that has a map in the form that libbpf gives to constants whose names
// begin with bpf_metadata_. No instruction reads it.

const metadataPrefix = "bpf_metadata_"

// describe returns the name of a module for display.
func describe(m Module) string {
	if m.Package == "" {
		return m.Name
	}
	return m.Name + " (" + m.Package + ")"
}

// label binds such a map to a program. If a kernel rejects one, it is left out: packets do not need it.
func (c *linkedChain) label(p *ebpf.Program) {
	m, err := ebpf.NewMap(c.metadata())
	if err != nil {
		return
	}
	defer m.Close() // the program has it
	if m.Freeze() == nil {
		_ = p.BindMap(m)
	}
}

// metadata returns the map: the version of Kerb, the chain, and its modules in packet order.
func (c *linkedChain) metadata() *ebpf.MapSpec {
	section := &btf.Datasec{Name: ".rodata"}
	var value []byte
	add := func(name, text string) {
		data := append([]byte(text), 0)
		section.Vars = append(section.Vars, btf.VarSecinfo{Offset: uint32(len(value)), Size: uint32(len(data)),
			Type: &btf.Var{Name: metadataPrefix + name, Linkage: btf.GlobalVar, Type: &btf.Const{Type: &btf.Array{
				Index: &btf.Int{Name: "__ARRAY_SIZE_TYPE__", Size: 4},
				Type:  &btf.Int{Name: "char", Size: 1, Encoding: btf.Char}, Nelems: uint32(len(data))}}}})
		value = append(value, data...)
	}
	add("kerb", version.Version())
	add("kerb_chain", c.spec.ID())
	for i, m := range c.modules {
		add(fmt.Sprintf("kerb_module_%02d", i), m)
	}
	section.Size = uint32(len(value))
	return &ebpf.MapSpec{Name: "kerb.rodata", Type: ebpf.Array, KeySize: 4, ValueSize: section.Size, MaxEntries: 1,
		Flags: unix.BPF_F_RDONLY_PROG, Key: &btf.Void{}, Value: section,
		Contents: []ebpf.MapKV{{Key: uint32(0), Value: value}}}
}
