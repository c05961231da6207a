// SPDX-License-Identifier: Apache-2.0

package chain

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
)

// tailcall is a chain of n programs, each of which tail-calls the next.
type tailcall struct {
	modules
	objs  *objects
	hook  string
	slots *ebpf.Map
}

func (o *objects) loadTailcall(hook string, n int) (Chain, error) {
	slots, err := ebpf.NewMap(o.module.Maps["chain"].Copy())
	if err != nil {
		return nil, err
	}
	t := &tailcall{objs: o, hook: hook, slots: slots}
	for i := range n {
		m, err := t.loadAt(i, n)
		if err != nil {
			return nil, errors.Join(err, t.Close())
		}
		t.modules = append(t.modules, m)
	}
	return t, nil
}

// loadAt loads module i and stores it in its slot; the first module has none.
func (t *tailcall) loadAt(i, n int) (module, error) {
	next := uint32(i+1) % uint32(n)
	m, err := t.objs.loadModule(t.hook, next, t.slots)
	if err != nil || i == 0 {
		return m, err
	}
	if err := t.slots.Put(uint32(i), m.program); err != nil {
		return module{}, errors.Join(fmt.Errorf("slot %d: %w", i, err), m.Close())
	}
	return m, nil
}

func (t *tailcall) Program() *ebpf.Program { return t.modules[0].program }

func (t *tailcall) Replace() (*ebpf.Program, error) {
	i := middle(len(t.modules))
	m, err := t.loadAt(i, len(t.modules))
	if err != nil {
		return nil, err
	}
	old := t.modules[i]
	t.modules[i] = m
	return t.Program(), old.Close()
}

func (t *tailcall) Close() error { return errors.Join(t.modules.Close(), t.slots.Close()) }
