// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"errors"
	"fmt"
	"hash/fnv"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/sdk"
)

// running is what the control plane has received for a map set, and what of that is in the maps. A packet may
// read the maps at any time, so they are written in an order in which each state between is right: instances first,
// then runs of slots, ports, and last the virtual addresses that refer to them; then what is no longer referred to is
// deleted.
type running struct {
	config *config
	live   sdk.Live
	maps   *mapSet

	mu        sync.Mutex
	services  map[string]*service
	addresses map[netip.Addr]*virtual
	targets   map[uint64]*target // by identity
	byIndex   map[uint32]*target
	slots     *blocks
	ids       *numbers // of virtual addresses
	indices   *numbers // of instances
	locals    *locals
	names     map[nameKey]name // in the map of that name; replaced as a whole
	table     lastTable
	held      *held
	negative  *negative
	seen      map[string]bool // received since the full update began; nil: it is complete
	synced    bool            // a full update has been received
	sweeper   *sweeper
	pause     func(time.Duration) // between the steps of a sweep; nil: none
	tally     tally
	forgetful map[uint32]bool // interfaces whose new clients are not remembered, as of the last sweep
	ejections uint64          // ever
	unknowns  unknowns
	troubles  map[string]error // of background work, by what it is
}

// service is a virtual service.
type service struct {
	name     string
	dynamic  bool
	targets  []*target
	virtuals []*virtual
	ports    []v1alpha1.VirtualPort
	sticky   bool      // an address has affinity
	used     time.Time // when it had sessions, or came
	released bool      // since: the agent may forget it until it has answered when it is asked for it again
	asked    bool      // for it again, without an answer
	// the agent has forgotten it, and is asked for it again
	forgotten bool
	lacking   bool                // an instance has no room
	short     uint32              // slots of the smallest run that has no room; 0: all have some
	trouble   error               // why not all of it is in the maps
	spec      *sdk.VirtualService // to be tried again; with trouble only
}

// target is an instance.
type target struct {
	index    uint32
	identity uint64
	service  *service // nil: gone
	name     string
	node     string
	local    string // Service of this node that it is; empty if only its addresses are known
	weight   uint32
	distance uint32
	drains   bool
	excluded []exclusion
	ports    []portEntry // of its own, in the map
	stale    []portEntry // of its own, in the map until no virtual address leads to them
	health   health
	gone     time.Time
	entry    instance // in the map
}

func (t *target) place() *place { return &t.entry.Place[t.entry.Generation&1] }

func (t *target) has(v4 bool) bool {
	if v4 {
		return t.place().Addr4 != [4]byte{}
	}
	return t.place().Addr6 != address{}
}

// restFor is how long what packets might still read is left alone. They read for microseconds.
const restFor = time.Second

func newPlane(c *config, live sdk.Live) (*running, error) {
	k, err := openMaps(live.Maps)
	if err != nil {
		return nil, err
	}
	w := &running{config: c, live: live, maps: k, services: map[string]*service{}, addresses: map[netip.Addr]*virtual{},
		targets: map[uint64]*target{}, byIndex: map[uint32]*target{},
		sweeper: newSweeper(sdk.Monotonic), troubles: map[string]error{},
		held:     newHeld(c.Unknown.HoldPerAddress, c.Unknown.HoldPackets, maxHeldBytes, time.Duration(c.Unknown.HoldTime)),
		negative: newNegative(time.Duration(c.Unknown.NegativeTTL), maxNegative)}
	return w, w.adopt(time.Now())
}

const (
	maxHeldBytes = 4 << 20
	maxNegative  = 4096
)

// NoteName implements sdk.NoteNamer: the virtual service and the instance of an index.
func (w *running) NoteName(_ string, index uint64) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	t := w.byIndex[uint32(index)]
	if t == nil || t.service == nil {
		return ""
	}
	return t.service.name + "/" + t.name
}

// identityOf is what an instance is known by, on all nodes.
func identityOf(service, instance string) uint64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "%s\x00%s", service, instance)
	return max(1, h.Sum64())
}

// update takes over what the agent sends. It returns the packets that can continue now.
func (w *running) update(u *sdk.VirtualServiceUpdate, now time.Time) ([]*heldPacket, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if u.Reset {
		w.seen = map[string]bool{}
	}
	var free []*heldPacket
	for i := range u.Put {
		s, err := w.put(&u.Put[i], now)
		if err != nil {
			return free, err
		}
		for _, v := range s.virtuals {
			if w.held.addresses[v.addr] != nil {
				w.unknowns.Answered++
				free = append(free, w.held.take(v.addr)...)
			}
		}
	}
	for _, name := range u.Remove {
		if w.askAgain(w.services[name], now) {
			continue
		}
		if err := w.removeService(name, now); err != nil {
			return free, err
		}
	}
	for _, a := range u.Unknown {
		if v := w.addresses[a.Unmap()]; v != nil && v.service != nil && v.service.forgotten {
			if err := w.removeService(v.service.name, now); err != nil {
				return free, err
			}
		}
		packets, err := w.deny(a.Unmap(), now)
		if err != nil {
			return free, err
		}
		free = append(free, packets...)
	}
	if u.Complete {
		if err := w.complete(now); err != nil {
			return free, err
		}
	}
	w.syncNames()
	return free, nil
}

// complete removes what the agent has not mentioned since it began to send all.
func (w *running) complete(now time.Time) error {
	if w.seen == nil {
		return nil
	}
	for name := range w.services {
		if !w.seen[name] {
			if err := w.removeService(name, now); err != nil {
				return err
			}
		}
	}
	w.seen, w.synced = nil, true
	return w.removeOrphans(now)
}

// put makes a virtual service what the agent says. What finds no room is noted, and tried again by the sweep; the rest
// of the service works. Errors are those of the kernel: Health has them, and the sweep tries again, until a put of the
// service succeeds.
func (w *running) put(vs *sdk.VirtualService, now time.Time) (*service, error) {
	s, err := w.putOnce(vs, now)
	if err != nil {
		s.spec, s.trouble = vs, err
	}
	return s, err
}

func (w *running) putOnce(vs *sdk.VirtualService, now time.Time) (*service, error) {
	s := w.services[vs.Name]
	if s == nil {
		s = &service{name: vs.Name, used: now}
		w.services[vs.Name] = s
	}
	if w.seen != nil {
		w.seen[vs.Name] = true
	}
	s.dynamic, s.ports, s.trouble, s.spec, s.forgotten = vs.Dynamic, vs.Spec.Ports, nil, nil, false
	s.released, s.asked, s.lacking, s.short = s.released && !s.asked, false, false, 0
	s.sticky = slices.ContainsFunc(vs.Spec.Addresses, func(a v1alpha1.VirtualAddress) bool {
		return a.AffinityTimeout != ""
	})
	before, virtualsBefore := s.targets, s.virtuals
	if err := w.putTargets(s, vs.Spec.Instances, now); err != nil {
		return s, err
	}
	if err := w.putVirtuals(s, vs.Spec.Addresses, now); err != nil {
		return s, err
	}
	if err := w.dropVirtuals(s, virtualsBefore, now); err != nil {
		return s, err
	}
	if err := w.dropTargetPorts(s.targets); err != nil {
		return s, err
	}
	if s.trouble != nil {
		s.spec = vs
	}
	return s, errors.Join(w.drain(s.targets), w.dropTargets(s, before, now))
}

// putTargets writes the instances of a service.
func (w *running) putTargets(s *service, all []v1alpha1.VirtualInstance, now time.Time) error {
	s.targets = make([]*target, 0, len(all))
	for i := range all {
		t, err := w.putTarget(s, &all[i], now)
		if err != nil {
			return err
		}
		if t != nil {
			s.targets = append(s.targets, t)
		}
	}
	return nil
}

// drain marks the instances that drain, which no run of slots has any more.
func (w *running) drain(targets []*target) error {
	for _, t := range targets {
		if t.drains {
			if err := w.setFlags(t, t.entry.Flags|instanceDraining); err != nil {
				return err
			}
		}
	}
	return nil
}

// putTarget returns nil if there is no room.
func (w *running) putTarget(s *service, vi *v1alpha1.VirtualInstance, now time.Time) (*target, error) {
	identity := identityOf(s.name, vi.Name)
	t := w.targets[identity]
	if t == nil {
		var err error
		if t, err = w.newTarget(identity, now); err != nil || t == nil {
			s.lacking, s.trouble = true, fmt.Errorf("no room for instance %s: raise tables.instances, which is %d", vi.Name,
				w.maps.instances.MaxEntries()-1)
			return nil, err
		}
	}
	where, err := w.placeOf(vi)
	if err != nil {
		s.trouble = fmt.Errorf("instance %s: %w", vi.Name, err)
	}
	t.service, t.name, t.node, t.local, t.gone = s, vi.Name, vi.Node, vi.Service, time.Time{}
	t.weight, t.distance = uint32(max(1, vi.Weight)), uint32(max(0, vi.Distance))
	t.drains = vi.Draining
	if err := w.putTargetPorts(t, vi); err != nil {
		s.trouble, t.drains = err, true // clients would reach another port
	}
	flags := t.ejectedFlag()
	if t.drains {
		flags |= t.entry.Flags & instanceDraining // more only when no run of slots has it any more
	}
	return t, w.move(t, where, flags)
}

func (w *running) newTarget(identity uint64, now time.Time) (*target, error) {
	index, ok := w.indices.take(now)
	if !ok {
		return nil, nil
	}
	t := &target{index: index, identity: identity}
	if err := w.maps.instances.Lookup(index, &t.entry); err != nil { // the generation of the one before
		return nil, fmt.Errorf("read map %s: %w", mapInstances, err)
	}
	if err := write(w.maps.owners, mapOwners, index, identity); err != nil {
		return nil, err
	}
	w.maps.stats[index].begin()
	t.entry.Flags = instanceGone // until it has a place
	w.targets[identity], w.byIndex[index] = t, t
	return t, nil
}

// placeOf is where an instance is: on this node if one of its addresses is a service's here.
func (w *running) placeOf(vi *v1alpha1.VirtualInstance) (p place, err error) {
	for _, text := range vi.Addresses {
		a, parseErr := netip.ParseAddr(text)
		if parseErr != nil {
			return p, parseErr
		}
		if a = a.Unmap(); a.Is4() {
			p.Addr4 = a.As4()
		} else {
			p.Addr6 = addressOf(a)
		}
	}
	p.Local = w.locals.at(p, vi.Service)
	return p, nil
}

// move writes where an instance is now. Another address makes a new generation: first the place that does not count,
// then the generation, by which it counts. With the old address sessions just continue.
func (w *running) move(t *target, where place, flags uint32) error {
	before := *t.place()
	e := t.entry
	if e.Flags&instanceGone == 0 && before.Addr4 == where.Addr4 && before.Addr6 == where.Addr6 {
		e.Flags, e.Place[e.Generation&1] = flags, where
		return w.writeTarget(t, e)
	}
	e.Place[(e.Generation+1)&1] = where
	if err := w.writeTarget(t, e); err != nil {
		return err
	}
	w.maps.stats[t.index].measureFromScratch()
	e.Generation++
	e.Flags = flags
	return w.writeTarget(t, e)
}

func (w *running) setFlags(t *target, flags uint32) error {
	e := t.entry
	e.Flags = flags
	return w.writeTarget(t, e)
}

func (w *running) writeTarget(t *target, e instance) error {
	if e == t.entry {
		return nil
	}
	if err := write(w.maps.instances, mapInstances, t.index, e); err != nil {
		return err
	}
	t.entry = e
	return nil
}

// dropTargets marks the instances of before that the service has no more. Their sessions end, or find another instance;
// the sweep frees their indices when no session refers to them.
func (w *running) dropTargets(s *service, before []*target, now time.Time) error {
	there := make(map[*target]bool, len(s.targets))
	for _, t := range s.targets {
		there[t] = true
	}
	for _, t := range before {
		if !there[t] {
			if err := w.retire(t, now); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *running) retire(t *target, now time.Time) error {
	t.service, t.gone = nil, now
	return w.setFlags(t, instanceGone)
}

// freeTarget forgets an instance that no session refers to.
func (w *running) freeTarget(t *target, now time.Time) error {
	if err := w.forgetTargetPorts(t); err != nil {
		return err
	}
	if err := write(w.maps.owners, mapOwners, t.index, uint64(0)); err != nil {
		return err
	}
	delete(w.targets, t.identity)
	delete(w.byIndex, t.index)
	w.indices.release(t.index, now)
	return nil
}

// removeService removes the addresses before the instances, so that no new session can select an instance that is going
// away. An unknown name is no error.
func (w *running) removeService(name string, now time.Time) error {
	s := w.services[name]
	if s == nil {
		return nil
	}
	virtuals, targets := s.virtuals, s.targets
	s.virtuals, s.targets = nil, nil
	if err := w.dropVirtuals(s, virtuals, now); err != nil {
		return err
	}
	delete(w.services, name)
	return w.dropTargets(s, targets, now)
}
