// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"

	"github.com/kerb-edge/kerb/internal/chain"
)

// Bound is a data plane with the modules of one change: its callers need only their names. The caller closes it when
// the change has ended.
type Bound struct {
	*Dataplane
	modules map[string]Module  // by name
	samples map[string]*mapSet // by module: see sample
	passing *grace             // of values that were set, until Close
	// Background: no change waits for measurements.
	Background bool
}

// Bind returns the data plane with modules by name.
func (d *Dataplane) Bind(modules map[string]Module) *Bound {
	return &Bound{Dataplane: d, modules: modules, samples: map[string]*mapSet{}}
}

// Close frees what checks and measurements have built, and may be called between them. After a change of values the
// wait for packets begins: earlier, it would take the CPU from the change.
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

// CreateMapSet creates the maps of a module, carrying over those of the map set called from ("" for none), fills
// and pins them. One that exists already is left as it is.
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

// SetValues gives a map set that packets see the values called id, those of the module or of the change before. They
// see either the old ones or all of the new ones.
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

// noteValues notes that packets may still have met other values.
func (b *Bound) noteValues() {
	b.passing = newGrace()
	b.grace = b.passing
}

// opened returns a map set whose maps the caller has open, or else opens them, until done.
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

// sample returns a map set for checks and measurements of a module, filled, with maps that nothing else has: to fill
// maps that are carried over or shared would change what runs, and a check must not.
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

// Verify loads a module alone on each hook, in each direction that it has a function for and that its settings do not
// call idle, and unloads it again.
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

// Measure measures a module on the hooks given. Errors are chain.ErrNotMeasured, with the cost as far as it is known.
func (b *Bound) Measure(module string, hooks ...chain.Hook) (chain.Cost, error) {
	g, err := b.sample(module)
	if err != nil {
		return chain.Cost{}, fmt.Errorf("%w: %w", chain.ErrNotMeasured, err)
	}
	return b.meter.measure(g, hooks, b.Background)
}
