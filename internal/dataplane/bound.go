// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/sdk"
)

// Bound is a data plane with the modules of one change: its callers need only their names. It builds the maps of each
// generation once, for checks, measurements and chains. The caller closes it when the change has ended.
type Bound struct {
	*Dataplane
	modules map[string]Module      // by name
	built   map[string]*generation // by module; pinned by CreateGeneration
}

// Bind returns the data plane with modules by name.
func (d *Dataplane) Bind(modules map[string]Module) *Bound {
	return &Bound{d, modules, map[string]*generation{}}
}

// Close frees what was built and not pinned.
func (b *Bound) Close() {
	closeMembers(b.all())
}

func (b *Bound) all() (out []*generation) {
	for _, g := range b.built {
		out = append(out, g)
	}
	return out
}

// Build creates the maps of a module, carrying over those of the generation called from ("" for none), and fills them.
// Nothing is pinned and no packet sees them before CreateGeneration.
func (b *Bound) Build(module, from string) error {
	_, err := b.build(module, from)
	return err
}

func (b *Bound) build(module, from string) (*generation, error) {
	if g := b.built[module]; g != nil {
		return g, nil
	}
	mod := b.modules[module]
	var previous map[string]*ebpf.Map
	if from != "" {
		var err error
		if previous, err = openMaps(b.layout.generation(module, from)); err != nil {
			return nil, fmt.Errorf("module %s: running generation: %w", module, err)
		}
		defer closeAll(previous)
	}
	shared, err := openMaps(b.layout.shared())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	defer closeAll(shared)
	g, err := newGeneration(mod, previous, shared)
	if err != nil {
		return nil, err
	}
	b.built[module] = g
	return g, nil
}

// CreateGeneration pins the maps of a module, which it builds unless that was done. One that exists already is left as
// it is.
func (b *Bound) CreateGeneration(module, _, from string) error {
	if b.HasGeneration(module, b.modules[module].ID) {
		return nil
	}
	g, err := b.build(module, from)
	if err != nil {
		return err
	}
	return g.pin(b.layout)
}

// CreateChain links, verifies and pins a chain: see Dataplane.CreateChain.
func (b *Bound) CreateChain(spec chain.Spec) error { return b.Dataplane.CreateChain(spec, b.modules) }

// use calls do with the generation of a module: the one that was built, or that is pinned, or else a new one.
func (b *Bound) use(module string, do func(*generation) error) error {
	if b.built[module] == nil {
		g, err := openGeneration(b.layout, b.modules[module])
		if err == nil {
			defer g.Close()
			return do(g)
		}
		if !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	g, err := b.build(module, "")
	if err != nil {
		return err
	}
	return do(g)
}

// Verify loads a module alone on each hook and in each direction that it has a function for, and unloads it again.
func (b *Bound) Verify(module string) error {
	return b.use(module, func(g *generation) error {
		if g.Sockets {
			s, err := loadSockets(g)
			if err == nil {
				s.Close()
			}
			return err
		}
		if err := g.completeDrops(b.layout); err != nil {
			return err
		}
		all, err := targetsOf(g.Module, []chain.Hook{chain.TC, chain.XDP})
		if err != nil {
			return err
		}
		chains, err := loadAlone(g, all)
		closeChains(chains)
		return err
	})
}

// Measure measures a module on the hooks given, on a replica of its maps. Errors are chain.ErrNotMeasured, with the
// cost as far as it is known.
func (b *Bound) Measure(m *Meter, module string, hooks ...chain.Hook) (cost chain.Cost, err error) {
	measured := false
	err = b.use(module, func(g *generation) (err error) {
		measured = true
		cost, err = m.measure(g, hooks)
		return err
	})
	if err != nil && !measured {
		return cost, fmt.Errorf("%w: %w", chain.ErrNotMeasured, err)
	}
	return cost, err
}

// replica returns a generation of the same module whose maps have the same contents, as far as Fill wrote them: packets
// of a test run change nothing of g.
func (g *generation) replica() (*generation, error) {
	mod := g.Module
	mod.Fill = func(to sdk.Maps) error {
		for name, from := range g.sdkMaps() {
			if to[name] == nil || !g.filled(name) {
				continue
			}
			if err := copyEntries(name, from, to[name]); err != nil {
				return err
			}
		}
		return nil
	}
	return newGeneration(mod, nil, nil)
}

// filled reports whether a map has nothing but what Fill wrote. Packets may have written to the state of a generation
// that was opened again.
func (g *generation) filled(name string) bool {
	if g.inherited == nil {
		return !g.carried(name)
	}
	return !g.inherited[name]
}
