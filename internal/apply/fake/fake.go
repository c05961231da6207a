// SPDX-License-Identifier: Apache-2.0

// Package fake is a kernel in memory for tests of plans and their execution. A test of this package runs the same
// sequences of calls on it and on the data plane, and compares what both observe.
package fake

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/kerb-edge/kerb/internal/apply"
	"github.com/kerb-edge/kerb/internal/chain"
)

// Errors of calls that a test makes fail.
var (
	ErrInjected = errors.New("injected error")
	ErrKilled   = errors.New("the agent was killed")
)

// Kernel implements apply.Kernel. Its fields are set between calls.
type Kernel struct {
	Interfaces map[int]bool          // that exist, by ifindex
	Foreign    map[chain.Point]bool  // where another program is attached to the hook
	Draining   map[string]int        // how many more times RemoveChain of a chain fails as its sockets drain, by id
	Calls      int                   // that change the kernel, so far
	FailAt     int                   // the number of the call that fails without effect, from 1; 0 for none
	KillAt     int                   // as FailAt; all later calls fail, too
	OnCall     func(call string)     // called before each call that changes the kernel; may be nil
	expedited  int                   // of them, without restore
	mu         sync.Mutex            // CreateChain, Attach and Detach are called concurrently
	maps       map[string]string     // the values of map sets, empty for those without, by MODULE/ID
	chains     map[string]pinned     // by the name of their directory
	points     map[chain.Point]fixed // what runs
	programs   uint32                // last id
}

// pinned is a chain among the pins. A program lives on while it is attached.
type pinned struct {
	spec    chain.Spec
	id      string
	program uint32
}

// fixed is a program on a point: with the interface that it was attached to, it vanishes.
type fixed struct {
	program  uint32
	vanished bool
}

var _ apply.Kernel = (*Kernel)(nil)

// New returns a kernel with interfaces, in which nothing of Kerb runs.
func New(ifindexes ...int) *Kernel {
	k := &Kernel{Interfaces: map[int]bool{}, Foreign: map[chain.Point]bool{}, Draining: map[string]int{},
		maps: map[string]string{}, chains: map[string]pinned{}, points: map[chain.Point]fixed{}}
	for _, i := range ifindexes {
		k.Interfaces[i] = true
	}
	return k
}

// Vanish deletes an interface. What was attached to it is without effect, also when the index is used again.
func (k *Kernel) Vanish(ifindex int) {
	delete(k.Interfaces, ifindex)
	for p, at := range k.points {
		if p.Ifindex == ifindex {
			at.vanished = true
			k.points[p] = at
		}
	}
}

// Expedited reports whether Expedite was called without its restore.
func (k *Kernel) Expedited() bool { return k.expedited != 0 }

// Restart is what the data plane does when the next agent opens it.
func (k *Kernel) Restart() { k.expedited = 0 }

// Observe returns the state in the order in which the data plane reads its pins.
func (k *Kernel) Observe() (chain.State, error) {
	s := chain.State{MapSets: map[string][]string{}, Values: map[chain.MapSet]string{}}
	for _, key := range slices.Sorted(maps.Keys(k.maps)) {
		module, id, _ := strings.Cut(key, "/")
		s.MapSets[module] = append(s.MapSets[module], id)
		if values := k.maps[key]; values != "" {
			s.Values[chain.MapSet{Module: module, ID: id}] = values
		}
	}
	for _, key := range slices.Sorted(maps.Keys(k.chains)) {
		c := k.chains[key]
		s.Chains = append(s.Chains, observed(c))
	}
	byName := func(a, b chain.Point) int { return strings.Compare(a.String(), b.String()) }
	for _, p := range slices.SortedFunc(maps.Keys(k.points), byName) {
		at := chain.Attached{Point: p, Program: k.points[p].program}
		if k.points[p].vanished {
			at.Program = 0
		}
		s.Points = append(s.Points, at)
	}
	return s, nil
}

// observed is what pins record: neither the linker nor how it links.
func observed(c pinned) chain.Pinned {
	c.spec.Linker, c.spec.Functions, c.spec.Members = "", false, slices.Clone(c.spec.Members)
	p := chain.Pinned{ID: c.id, Spec: c.spec, Program: c.program, Parts: 1}
	if c.spec.Side == chain.OnSockets {
		p.Entries = map[chain.Entry]uint32{chain.All: c.program, chain.Services: c.program + 1}
	}
	return p
}

// call counts a call and returns the error that it has to fail with.
func (k *Kernel) call(format string, args ...any) error {
	k.Calls++
	if k.OnCall != nil {
		k.OnCall(fmt.Sprintf(format, args...))
	}
	switch {
	case k.KillAt > 0 && k.Calls >= k.KillAt:
		return ErrKilled
	case k.Calls == k.FailAt:
		return ErrInjected
	}
	return nil
}

// CreateMapSet fails if from is not there.
func (k *Kernel) CreateMapSet(module, id, values, from string) error {
	if err := k.call("create map set %s/%s", module, id); err != nil {
		return err
	}
	if k.has(module, id) {
		return nil
	}
	if from != "" && !k.has(module, from) {
		return fmt.Errorf("map set %s/%s: %w", module, from, os.ErrNotExist)
	}
	k.maps[module+"/"+id] = values
	return nil
}

func (k *Kernel) has(module, id string) bool {
	_, exists := k.maps[module+"/"+id]
	return exists
}

// SetValues fails for a map set without values.
func (k *Kernel) SetValues(module, id, values string) error {
	if err := k.call("set values %s of %s/%s", values, module, id); err != nil {
		return err
	}
	if k.maps[module+"/"+id] == "" {
		return fmt.Errorf("values of map set %s/%s: %w", module, id, os.ErrNotExist)
	}
	k.maps[module+"/"+id] = values
	return nil
}

// RemoveMapSet removes its pins: programs that use the maps keep running.
func (k *Kernel) RemoveMapSet(module, id string) error {
	if err := k.call("remove map set %s/%s", module, id); err != nil {
		return err
	}
	delete(k.maps, module+"/"+id)
	return nil
}

// CreateChain fails without the map sets of its members.
func (k *Kernel) CreateChain(spec chain.Spec) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.call("create chain %s", spec.ID()); err != nil {
		return err
	}
	if _, exists := k.chains[directory(spec, spec.ID())]; exists {
		return nil
	}
	for _, m := range spec.Members {
		if !k.has(m.Name, m.ID) {
			return fmt.Errorf("map set %s/%s: %w", m.Name, m.ID, os.ErrNotExist)
		}
	}
	k.programs += 2
	k.chains[directory(spec, spec.ID())] = pinned{spec, spec.ID(), k.programs}
	return nil
}

// directory is the name under which a chain is pinned.
func directory(spec chain.Spec, id string) string {
	name := fmt.Sprintf("%s_%s_%s", spec.Side, spec.Direction, id)
	if spec.Veth {
		name = fmt.Sprintf("%s_%s-veth_%s", spec.Side, spec.Direction, id)
	}
	return filepath.Base(name)
}

// RemoveChain removes the pins of a chain; an attached program keeps running.
func (k *Kernel) RemoveChain(c chain.Pinned) error {
	if err := k.call("remove chain %s", c.ID); err != nil {
		return err
	}
	if k.Draining[c.ID] > 0 {
		k.Draining[c.ID]--
		return &chain.DrainingError{Modules: c.Spec.Members, Left: 1}
	}
	delete(k.chains, directory(c.Spec, c.ID))
	return nil
}

// RemoveChainSpec removes the pins of a chain that has never run.
func (k *Kernel) RemoveChainSpec(spec chain.Spec) error {
	if err := k.call("remove chain %s", spec.ID()); err != nil {
		return err
	}
	delete(k.chains, directory(spec, spec.ID()))
	return nil
}

// Attach attaches a chain that is pinned.
func (k *Kernel) Attach(p chain.Point, spec chain.Spec) error {
	return k.AttachPinned(p, chain.Pinned{ID: spec.ID(), Spec: spec})
}

// AttachPinned is Attach for a chain that was observed.
func (k *Kernel) AttachPinned(p chain.Point, c chain.Pinned) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.call("attach %s to %s", c.ID, p); err != nil {
		return err
	}
	found, exists := k.chains[directory(c.Spec, c.ID)]
	if !exists {
		return fmt.Errorf("chain %s: %w", c.ID, os.ErrNotExist)
	}
	if k.points[p].vanished {
		delete(k.points, p)
	}
	_, ours := k.points[p]
	switch {
	case p.Side.SeesPackets() && !k.Interfaces[p.Ifindex]:
		return fmt.Errorf("interface %d: %w", p.Ifindex, chain.ErrGone)
	case k.Foreign[p] && !ours:
		return fmt.Errorf("%s: %w", p, chain.ErrBusy)
	}
	program := found.program
	if p.Entry == chain.Services {
		program++
	}
	k.points[p] = fixed{program: program}
	return nil
}

// Detach detaches what is on a point, if anything is.
func (k *Kernel) Detach(p chain.Point) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.call("detach %s", p); err != nil {
		return err
	}
	delete(k.points, p)
	return nil
}

// Expedite notes that restore has to be called.
func (k *Kernel) Expedite() (restore func() error) {
	k.expedited++
	return func() error {
		k.expedited--
		return k.call("restore")
	}
}
