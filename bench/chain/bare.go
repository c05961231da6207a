// SPDX-License-Identifier: Apache-2.0

package chain

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

const maxModules = 16 // defined in bare.bpf.c

// bare is one hand-written program with n modules.
type bare struct {
	program *ebpf.Program
	spec    *ebpf.CollectionSpec
	name    string
	maps    map[string]*ebpf.Map
	// the number of modules, shared with later versions
	constants *ebpf.Map
	n         int
}

func (o *objects) loadBare(hook string, n int) (Chain, error) {
	name := "bare_" + hook + string(o.of)
	b := &bare{spec: selectProgram(o.bare, name), name: name, n: n}
	if err := b.spec.Variables["modules"].Set(uint32(n)); err != nil {
		return nil, err
	}
	return b, b.load()
}

// load loads the program, with the maps of the previous version.
func (b *bare) load() error {
	coll, err := ebpf.NewCollectionWithOptions(b.spec, ebpf.CollectionOptions{MapReplacements: b.maps})
	if err != nil {
		return fmt.Errorf("bare: %w", err)
	}
	defer coll.Close()
	first := b.maps == nil
	if first {
		b.maps = map[string]*ebpf.Map{}
		b.constants = coll.DetachMap(".rodata")
	}
	for i := 0; i < maxModules && first; i++ {
		name := fmt.Sprintf("m%d", i)
		b.maps[name] = coll.DetachMap(name)
	}
	b.program = coll.DetachProgram(b.name)
	return nil
}

func (b *bare) Program() *ebpf.Program { return b.program }

func (b *bare) Replace() (*ebpf.Program, error) {
	old := b.program
	if err := b.load(); err != nil {
		return nil, err
	}
	return b.program, old.Close()
}

func (b *bare) Packets() ([]uint64, error) {
	var all []uint64
	for i := range b.n {
		n, err := packets(b.maps[fmt.Sprintf("m%d", i)])
		if err != nil {
			return nil, err
		}
		all = append(all, n)
	}
	return all, nil
}

// Code returns the instructions that the kernel executes.
func (b *bare) Code() (asm.Instructions, error) {
	code := b.spec.Copy().Programs[b.name].Instructions
	for i := range code {
		ins := &code[i]
		m := b.maps[ins.Reference()]
		if ins.Reference() == ".rodata" {
			m = b.constants
		}
		if m == nil || !ins.IsLoadFromMap() {
			continue
		}
		if err := ins.AssociateMap(m); err != nil {
			return nil, err
		}
	}
	return code, nil
}

func (b *bare) Close() error {
	errs := []error{b.program.Close(), b.constants.Close()}
	for _, m := range b.maps {
		errs = append(errs, m.Close())
	}
	return errors.Join(errs...)
}
