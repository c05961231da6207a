// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cilium/ebpf"
)

// IANA numbers of protocols.
const (
	protoICMP   = 1
	protoTCP    = 6
	protoUDP    = 17
	protoICMPv6 = 58
	protoSCTP   = 132
)

// timeout is how long a session is remembered without packets, ns.
func (t *timeouts) timeout(proto, state uint8) uint64 {
	answered := state&stateAnswered != 0
	var d duration
	switch {
	case proto == protoICMP || proto == protoICMPv6:
		d = t.ICMP
	case (proto == protoTCP || proto == protoSCTP) && state&(stateReset|stateClosed) != 0:
		d = t.TCPClosing
	case proto == protoTCP && !answered:
		d = t.TCPSyn
	case proto == protoTCP && state&(stateClientFIN|stateServerFIN) != 0:
		d = t.TCPHalfClosed
	case proto == protoTCP || proto == protoSCTP:
		d = t.TCPEstablished
	case answered:
		d = t.UDPStream
	default:
		d = t.UDP
	}
	return uint64(d)
}

// shortest is the shortest time that sessions of a protocol are remembered, whatever their state.
func (t *timeouts) shortest(proto uint8) uint64 {
	return min(t.timeout(proto, 0), t.timeout(proto, stateAnswered), t.timeout(proto, stateAnswered|stateClientFIN),
		t.timeout(proto, stateClosed))
}

// live reports whether a session belongs in the table that nothing is evicted from.
func (s *session) live() bool { return s.State&(stateAnswered|stateClosed) == stateAnswered }

// forward is the key of a session's forward entry, derived from either one.
func forward(k *flow, s *session, names map[nameKey]name) flow {
	if s.Flags&sessionReverse == 0 {
		return *k
	}
	f := flow{Src: k.Dst, Dst: s.Addr, SPort: s.DPort, DPort: s.SPort, Ifindex: s.Other, Proto: k.Proto, Hook: hookEgress}
	if s.Flags&sessionHairpin != 0 {
		f.Src, f.Dst = s.Addr, k.Dst
	}
	if s.Flags&(sessionNamed|sessionFar) == sessionNamed {
		f.Src = names[nameKey{k.Dst, s.Other}].Other
	}
	return f
}

// hash distinguishes sessions by their forward keys. If two of them were alike in 64 bits, they would age as one.
func (k *flow) hash() uint64 {
	h := mix(uint64(k.Ifindex)<<16 | uint64(k.Proto)<<8 | uint64(k.Hook))
	for _, half := range [][]byte{k.Src[:8], k.Src[8:], k.Dst[:8], k.Dst[8:],
		{k.SPort[0], k.SPort[1], k.DPort[0], k.DPort[1], 0, 0, 0, 0}} {
		h = mix(h ^ binary.LittleEndian.Uint64(half))
	}
	return h
}

// tally is what a sweep has found.
type tally struct {
	Entries    int            `json:"entries"`    // in sessions, two per session
	Affinities int            `json:"affinities"` // in sessions, one each
	Pending    int            `json:"pending"`    // and in pending
	Sessions   int            `json:"sessions"`   // open ones
	States     map[string]int `json:"states"`
	Expired    uint64         `json:"expired"`   // entries removed, ever
	Evictable  int            `json:"evictable"` // live sessions in pending, which may be evicted
	crowded    map[uint32]int // the same by the client's interface
	Took       time.Duration  `json:"-"` // without pauses
	At         time.Time      `json:"-"`
}

// sweeper reads the tables of sessions, pending first: a session that moves on meanwhile is met. Its memory is used
// again by the next.
type sweeper struct {
	clock      func() uint64 // CLOCK_MONOTONIC, which Seen of sessions is in
	names      map[nameKey]name
	affinities map[address]uint64 // time-outs by virtual address, ns
	now        uint64
	pairs      map[uint64]pair
	candidates []candidateEntry
	open       map[uint32]int64 // sessions by instance
	refs       map[uint32]int   // entries by instance
	remembered map[uint32]int   // those of them that are affinities
	localRefs  map[uint32]int   // and by index in locals
	sticky     map[uint32]bool  // interfaces with clients of addresses with affinity
	kept       map[uint32]int   // live sessions by the client's interface
	tally      tally
}

// pair is what both entries of a session say together: each sees its own direction.
type pair struct {
	seen  uint64
	state uint8
	lost  bool // cannot continue: its client or its instance is gone
	met   bool // its forward entry was
}

type candidateEntry struct {
	key      flow
	kept     bool // in sessions
	seen     uint64
	hash     uint64
	instance uint32
	local    uint32
	open     bool // counts as a session of the instance
}

func newSweeper(clock func() uint64) *sweeper {
	return &sweeper{clock: clock, pairs: map[uint64]pair{}, open: map[uint32]int64{}, refs: map[uint32]int{},
		remembered: map[uint32]int{}, sticky: map[uint32]bool{}, localRefs: map[uint32]int{}, kept: map[uint32]int{}}
}

// note takes one entry of a table: of sessions (kept) or of pending.
func (s *sweeper) note(k *flow, e *session, t *timeouts, lost, kept bool) {
	if k.Hook == hookAffinity {
		s.noteAffinity(k, e, lost)
		return
	}
	f := forward(k, e, s.names)
	s.noteClient(&f)
	hash := f.hash()
	p := s.pairs[hash]
	first := e.Flags&sessionReverse == 0 && !p.met
	p.seen, p.state, p.lost, p.met = max(p.seen, e.Seen), p.state|e.State, p.lost || lost, p.met || first
	s.pairs[hash] = p
	c := candidateEntry{key: *k, kept: kept, seen: e.Seen, hash: hash, instance: e.Instance, local: e.Local, open: first &&
		e.State&stateClosed == 0}
	s.count(&c, 1)
	if first {
		s.tally.States[stateName(e.State)]++
		if !kept && e.live() {
			s.tally.Evictable++
			s.tally.crowded[k.Ifindex]++
		}
	}
	if lost || s.now-min(s.now, e.Seen) > t.shortest(k.Proto) {
		s.candidates = append(s.candidates, c)
	}
}

func (s *sweeper) count(c *candidateEntry, by int) {
	affinity := c.key.Hook == hookAffinity
	switch {
	case affinity:
		s.tally.Affinities += by
	case c.kept:
		s.tally.Entries += by
	default:
		s.tally.Pending += by
	}
	s.localRefs[c.local] += by
	if affinity {
		s.remembered[c.instance] += by
	}
	if affinity || c.open && c.kept {
		s.kept[c.key.Ifindex] += by
	}
	s.refs[c.instance] += by
	if c.open {
		s.open[c.instance] += int64(by)
	}
}

// over returns the entries of sessions that have ended, and takes them out of the counts.
func (s *sweeper) over(t *timeouts) []candidateEntry {
	var out []candidateEntry
	for _, c := range s.candidates {
		p := s.pairs[c.hash]
		if c.key.Hook != hookAffinity && !p.lost && s.now-min(s.now, p.seen) <= t.timeout(c.key.Proto, p.state) {
			continue
		}
		out = append(out, c)
		s.count(&c, -1)
	}
	return out
}

// stateName returns the state for clients. A reset wins over a close, a close over a FIN of one side, and "new" means
// no reply was seen.
func stateName(state uint8) string {
	switch {
	case state&stateReset != 0:
		return "reset"
	case state&stateClosed != 0:
		return "closing"
	case state&(stateClientFIN|stateServerFIN) != 0:
		return "half_closed"
	case state&stateAnswered != 0:
		return "established"
	}
	return "new"
}

// goneFor is how long sessions that refer to an instance that is gone are kept, to be reset or to find another one.
const goneFor = 5 * time.Minute

// sweep removes sessions that have ended, corrects how many instances and interfaces have, and frees those that are
// gone when no session refers to them.
func (w *running) sweep(now time.Time) error {
	s := w.sweeper
	s.begin(s.clock(), w.currentNames(), w.currentAffinities())
	before, steps := w.sessionCounts(), w.newSteps()
	if err := w.read(w.gone(now), steps); err != nil {
		return err
	}
	expired, err := w.expire(s.over(&w.config.Timeouts), steps)
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	expired += w.tally.Expired
	w.tally = s.tally
	w.tally.Expired, w.tally.Took, w.tally.At = expired, steps.took(), now
	w.correct(before)
	w.updateAffinityLimits()
	if err := w.free(now); err != nil {
		return err
	}
	return w.idle(now)
}

// read takes note of all sessions.
func (w *running) read(gone removedPeers, steps *steps) error {
	table := func(kept bool) func([]flow, []session) {
		return func(keys []flow, values []session) {
			for i := range keys {
				w.sweeper.note(&keys[i], &values[i], &w.config.Timeouts, gone.has(&keys[i], &values[i]), kept)
			}
			steps.done()
		}
	}
	if err := each(w.maps.pending, mapPending, table(false)); err != nil {
		return err
	}
	return each(w.maps.sessions, mapSessions, table(true))
}

// expire removes entries. What is in sessions is examined again, as a packet may have come since; and what its
// interface holds is counted.
func (w *running) expire(over []candidateEntry, steps *steps) (uint64, error) {
	removed := uint64(0)
	var pending []flow
	for i := range over {
		c := &over[i]
		if i%batch == batch-1 {
			steps.done()
		}
		if !c.kept {
			pending = append(pending, c.key)
			continue
		}
		gone, err := w.expireKept(c)
		if err != nil {
			return 0, err
		}
		if gone {
			removed++
		} else {
			w.sweeper.count(c, 1)
		}
	}
	return removed + uint64(len(pending)), removeAll(w.maps.pending, mapPending, pending)
}

// expireKept deletes a kept session entry, unless the data plane has used it since the sweep read it. It reports
// whether the entry no longer exists. The share of the client's interface is returned once, with the forward entry.
func (w *running) expireKept(c *candidateEntry) (bool, error) {
	var e session
	if err := w.maps.sessions.Lookup(&c.key, &e); err != nil || e.Seen != c.seen && !w.sweeper.pairs[c.hash].lost {
		return errors.Is(err, ebpf.ErrKeyNotExist), nil
	}
	err := w.maps.sessions.Delete(&c.key)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("delete from map %s: %w", mapSessions, err)
	}
	if e.Flags&sessionReverse == 0 {
		w.returnShare(c.key.Ifindex)
	}
	return true, nil
}

// returnShare counts a session that an interface has no more.
func (w *running) returnShare(ifindex uint32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.maps.shares[0].addSessions(-1)
	if l := w.locals.byIfindex[ifindex]; l != nil {
		w.maps.shares[l.index].addSessions(-1)
	}
}

func (s *sweeper) begin(now uint64, names map[nameKey]name, affinities map[address]uint64) {
	s.now, s.names, s.affinities, s.candidates = now, names, affinities, s.candidates[:0]
	clear(s.pairs)
	clear(s.open)
	clear(s.refs)
	clear(s.remembered)
	clear(s.sticky)
	clear(s.localRefs)
	clear(s.kept)
	s.tally = tally{States: map[string]int{}, crowded: map[uint32]int{}}
}

// reading is what the data plane has counted.
type reading struct {
	open, opened map[uint32]int64 // sessions by instance
	shares       []int64          // by index in locals
}

func (w *running) sessionCounts() reading {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := reading{open: make(map[uint32]int64, len(w.targets)), opened: make(map[uint32]int64, len(w.targets)),
		shares: make([]int64, len(w.maps.shares))}
	for _, t := range w.targets {
		i := t.index
		r.open[i], r.opened[i] = w.maps.stats[i].sessions(), int64(w.maps.stats[i].opened())
	}
	for i := range r.shares {
		r.shares[i] = int64(w.maps.shares[i].sessions())
	}
	return r
}

// counterCorrection returns the correction of a counter from its values before and after a sweep, which has found
// another one. churn is the number of entries added in the meantime; as many may have been removed.
func counterCorrection(before, found, after, churn int64) int64 {
	if least := min(before, after) - churn; found < least {
		return found - least
	}
	if most := max(before, after) + churn; found > most {
		return found - most
	}
	return 0
}

// correct sets right how many sessions instances and interfaces have: entries that pending dropped are still counted,
// and another version may have counted nothing.
func (w *running) correct(before reading) {
	all, found := int64(0), make([]int64, len(w.maps.shares))
	for _, t := range w.targets {
		stats := &w.maps.stats[t.index]
		churn := max(0, int64(stats.opened())-before.opened[t.index])
		stats.addSessions(counterCorrection(before.open[t.index], w.sweeper.open[t.index], stats.sessions(), churn))
		w.tally.Sessions += int(w.sweeper.open[t.index])
		all += churn
	}
	for ifindex, n := range w.sweeper.kept {
		if l := w.locals.byIfindex[ifindex]; l != nil {
			found[l.index] += int64(n)
		}
		found[0] += int64(n)
	}
	for i := range w.maps.shares {
		s := &w.maps.shares[i]
		s.addSessions(counterCorrection(before.shares[i], found[i], int64(s.sessions()), 2*all)) // with an affinity each
	}
}

// free releases removed items that no session refers to.
func (w *running) free(now time.Time) error {
	defer w.syncNames() // before an index is another instance's
	for _, t := range w.targets {
		if t.gone.IsZero() || now.Sub(t.gone) < restFor || w.sweeper.refs[t.index] != 0 {
			continue
		}
		if err := w.freeTarget(t, now); err != nil {
			return err
		}
	}
	for _, l := range w.locals.byIfindex {
		if !l.gone.IsZero() && now.Sub(l.gone) >= absentFor && w.sweeper.localRefs[l.index] == 0 {
			if err := w.locals.free(l, now); err != nil {
				return err
			}
		}
	}
	return nil
}

// idleFor is how long a dynamic virtual service is kept without sessions.
const idleFor = 10 * time.Minute

// idle reports to the agent which dynamic virtual services are not in use, and asks again for those that are in use
// after all until it answers: an answer may be lost.
func (w *running) idle(now time.Time) error {
	for _, s := range w.services {
		used := slices.ContainsFunc(s.targets, w.inUse)
		if used {
			s.used = now
		}
		switch {
		case s.forgotten && len(s.virtuals) == 0: // the answer was another service, which has its addresses
			if err := w.removeService(s.name, now); err != nil {
				return err
			}
		case s.forgotten || used && s.released:
			w.ask(s)
		case s.dynamic && now.Sub(s.used) > idleFor:
			w.live.Release(s.name)
			s.used, s.released, s.asked = now, true, false // not reported again with each sweep
		}
	}
	return nil
}

// ask asks the agent for a virtual service that was released.
func (w *running) ask(s *service) {
	if len(s.virtuals) > 0 {
		w.live.Resolve(s.virtuals[0].addr)
		s.asked = true
	}
}

// inUse reports whether an instance has sessions, or sends by its virtual address from this node. An affinity alone is
// no use: it holds an index, not a virtual service.
func (w *running) inUse(t *target) bool {
	return w.sweeper.refs[t.index] > w.sweeper.remembered[t.index] || w.hasSessions(t) ||
		w.config.Source == sourceInstance && t.place().Local != 0
}

// hasSessions reports whether an instance has sessions now: some may have begun since a sweep has read the tables.
func (w *running) hasSessions(t *target) bool { return w.maps.stats[t.index].sessions() > 0 }

// askAgain asks for a virtual service that the agent has forgotten because it was released here, if sessions have begun
// since. It stays until the answer comes.
func (w *running) askAgain(s *service, now time.Time) bool {
	if s == nil || !s.released || len(s.virtuals) == 0 || !slices.ContainsFunc(s.targets, w.hasSessions) {
		return false
	}
	s.used, s.forgotten = now, true
	w.ask(s)
	return true
}
