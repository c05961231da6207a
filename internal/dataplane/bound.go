// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"

	"github.com/kerb-edge/kerb/internal/chain"
)

// Bound is a data plane with the modules of one change, which callers refer to by name. The caller closes it when the
// change has ended.
type Bound struct {
	*Dataplane
	modules map[string]Module  // by name
	samples map[string]*mapSet // by module: see sample
	passing *grace             // for packets that still read values of before a change, until Close
	// Background is set if no change waits for measurements.
	Background bool
}

// Bind returns the data plane with modules by name.
func (d *Dataplane) Bind(modules map[string]Module) *Bound {
	return &Bound{Dataplane: d, modules: modules, samples: map[string]*mapSet{}}
}

// Close frees what checks and measurements have built, and may be called between them. After a change of values it
// starts the wait for packets in flight: earlier, it would take CPU time from the change.
func (b *Bound) Close() {
	if g := b.passing; g != nil {
		b.passing = nil
		b.background.Go(func() { b.pass(g) })
	}
	for _, g := range b.samples {
		g.Close()
	}
	clear(b.samples)
}

// CreateMapSet creates the maps of a module, carries over those of the map set called from (if not empty), fills and
// pins them. An existing map set stays unchanged.
func (b *Bound) CreateMapSet(module, _, _, from string) error {
	mod := b.modules[module]
	if b.HasMapSet(module, mod.ID) {
		return nil
	}
	var previous map[string]*ebpf.Map
	if from != "" {
		var err error
		if previous, err = openMaps(b.layout.mapSet(module, from)); err != nil {
			return fmt.Errorf("module %s: running map set: %w", module, err)
		}
		defer closeAll(previous)
	}
	shared, err := openMaps(b.layout.shared())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	defer closeAll(shared)
	g, err := newMapSet(mod, previous, shared)
	if err != nil {
		return err
	}
	defer g.Close()
	if err := g.checkTable(); err != nil {
		return err
	}
	return g.pin(b.layout)
}

// SetValues changes a map set in use to the values called id, which are those of the module or of the change before.
// Each packet reads either all old or all new values.
func (b *Bound) SetValues(module, mapSet, id string) error {
	g, done, err := b.opened(module, mapSet)
	if err != nil {
		return fmt.Errorf("module %s: %w", module, err)
	}
	defer done()
	if err := g.setValues(id, b.settle); err != nil {
		return fmt.Errorf("module %s: %w", module, err)
	}
	b.noteValues()
	return nil
}

// noteValues records that packets in flight may still read other values.
func (b *Bound) noteValues() {
	b.passing = newGrace()
	b.grace = b.passing
}

// opened returns a map set with the maps that the caller has open, or opens them, until done is called.
func (b *Bound) opened(module, id string) (g *mapSet, done func(), err error) {
	mod := b.modules[module]
	if mod.ID == id && mod.Open != nil && b.Holds(module, id, mod.Open) {
		return &mapSet{mod, mod.Open}, func() {}, nil
	}
	mod.Name, mod.ID = module, id
	if g, err = openMapSet(b.layout, mod); err != nil {
		return nil, nil, err
	}
	return g, g.Close, nil
}

// CreateChain links, verifies and pins a chain: see Dataplane.CreateChain.
func (b *Bound) CreateChain(spec chain.Spec) error { return b.Dataplane.CreateChain(spec, b.modules) }

// sample returns a filled map set for checks and measurements of a module, none of whose maps is shared: filling
// carried-over or shared maps would change the running module, which a check must not do.
func (b *Bound) sample(module string) (*mapSet, error) {
	if g := b.samples[module]; g != nil {
		return g, nil
	}
	g, err := newMapSet(b.modules[module], nil, nil)
	if err != nil {
		return nil, err
	}
	if err := g.checkTable(); err != nil {
		g.Close()
		return nil, err
	}
	b.samples[module] = g
	return g, nil
}

// Verify loads a module alone on each hook, in each direction for which it has a function and which its settings do not
// declare idle, and unloads it again.
func (b *Bound) Verify(module string) error {
	g, err := b.sample(module)
	if err != nil {
		return err
	}
	if g.Sockets {
		s, err := loadSockets(g)
		if err == nil {
			s.Close()
		}
		return err
	}
	all, err := targetsOf(g.Module, []chain.Hook{chain.TC, chain.XDP})
	if err != nil {
		return err
	}
	chains, err := loadAlone(g, all, false)
	closeChains(chains)
	return err
}

// Measure measures a module on the given hooks. It returns chain.ErrNotMeasured together with the cost as far as it is
// known.
func (b *Bound) Measure(module string, hooks ...chain.Hook) (chain.Cost, error) {
	g, err := b.sample(module)
	if err != nil {
		return chain.Cost{}, fmt.Errorf("%w: %w", chain.ErrNotMeasured, err)
	}
	return b.meter.measure(g, hooks, b.Background)
}
