// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"encoding/binary"
	"time"
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
	case (proto == protoTCP || proto == protoSCTP) && state&(stateClientFIN|stateServerFIN|stateReset|stateClosed) != 0:
		d = t.TCPClosing
	case proto == protoTCP && !answered:
		d = t.TCPSyn
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
	return min(t.timeout(proto, 0), t.timeout(proto, stateAnswered), t.timeout(proto, stateClosed))
}

// forward is the key of a session's forward entry, told from either one.
func forward(k *flow, s *session) flow {
	if s.Flags&sessionReverse == 0 {
		return *k
	}
	f := flow{Src: k.Dst, Dst: s.Addr, SPort: s.DPort, DPort: s.SPort, Ifindex: s.Other, Proto: k.Proto, Hook: hookEgress}
	if s.Flags&sessionHairpin != 0 {
		f.Src, f.Dst = s.Addr, k.Dst
	}
	return f
}

// hash tells sessions apart by their forward keys. If two of them were alike in 64 bits, they would age as one.
func (k *flow) hash() uint64 {
	h := mix(uint64(k.Ifindex)<<16 | uint64(k.Proto)<<8 | uint64(k.Hook))
	for _, half := range [][]byte{k.Src[:8], k.Src[8:], k.Dst[:8], k.Dst[8:], {k.SPort[0], k.SPort[1], k.DPort[0], k.DPort[1], 0, 0, 0, 0}} {
		h = mix(h ^ binary.LittleEndian.Uint64(half))
	}
	return h
}

// tally is what a sweep has found.
type tally struct {
	Entries  int            `json:"entries"`  // in the table, two per session
	Sessions int            `json:"sessions"` // open ones
	States   map[string]int `json:"states"`
	Expired  uint64         `json:"expired"` // entries removed, ever
	Took     time.Duration  `json:"-"`
	At       time.Time      `json:"-"`
}

// sweeper reads the table of sessions in one go. Its memory is used again by the next.
type sweeper struct {
	now        uint64
	pairs      map[uint64]pair
	candidates []candidateEntry
	open       []int64        // sessions by instance
	refs       []int          // entries by instance
	localRefs  map[uint32]int // and by index in locals
	tally      tally
}

// pair is what both entries of a session say together: each sees its own direction.
type pair struct {
	seen  uint64
	state uint8
	lost  bool // cannot go on: its client or its instance is gone
}

type candidateEntry struct {
	key      flow
	hash     uint64
	instance uint32
	local    uint32
	open     bool // counts as a session of the instance
}

func newSweeper(instances int) *sweeper {
	return &sweeper{pairs: map[uint64]pair{}, open: make([]int64, instances), refs: make([]int, instances), localRefs: map[uint32]int{}}
}

// note takes one entry of the table.
func (s *sweeper) note(k *flow, e *session, t *timeouts, lost bool) {
	f := forward(k, e)
	hash := f.hash()
	p := s.pairs[hash]
	p.seen, p.state, p.lost = max(p.seen, e.Seen), p.state|e.State, p.lost || lost
	s.pairs[hash] = p
	open := e.Flags&sessionReverse == 0 && e.State&stateClosed == 0
	s.count(e.Instance, e.Local, open, 1)
	if e.Flags&sessionReverse == 0 {
		s.tally.States[stateName(e.State)]++
	}
	if lost || s.now-min(s.now, e.Seen) > t.shortest(k.Proto) {
		s.candidates = append(s.candidates, candidateEntry{*k, hash, e.Instance, e.Local, open})
	}
}

func (s *sweeper) count(instance, local uint32, open bool, by int) {
	s.tally.Entries += by
	s.localRefs[local] += by
	if int(instance) >= len(s.refs) {
		return
	}
	s.refs[instance] += by
	if open {
		s.open[instance] += int64(by)
	}
}

// over returns the keys of sessions that have ended, and takes them out of the counts.
func (s *sweeper) over(t *timeouts) []flow {
	var keys []flow
	for _, c := range s.candidates {
		p := s.pairs[c.hash]
		if !p.lost && s.now-min(s.now, p.seen) <= t.timeout(c.key.Proto, p.state) {
			continue
		}
		keys = append(keys, c.key)
		s.count(c.instance, c.local, c.open, -1)
	}
	return keys
}

func stateName(state uint8) string {
	switch {
	case state&stateReset != 0:
		return "reset"
	case state&(stateClosed|stateClientFIN|stateServerFIN) != 0:
		return "closing"
	case state&stateAnswered != 0:
		return "established"
	}
	return "new"
}

// goneFor is how long sessions that refer to an instance that is gone are kept, to be reset or to find another one.
const goneFor = 5 * time.Minute

// sweep removes sessions that have ended, corrects how many each instance has, and frees instances and interfaces that are
// gone when no session refers to them.
func (w *plane) sweep(now time.Time) error {
	begin := time.Now()
	s := w.sweeper
	s.begin(monotonic())
	before := w.sessionCounts()
	gone := w.gone(now)
	err := each(w.maps.sessions, mapSessions, func(keys []flow, values []session) {
		for i := range keys {
			s.note(&keys[i], &values[i], &w.config.Timeouts, gone.has(&keys[i], &values[i]))
		}
	})
	if err != nil {
		return err
	}
	over := s.over(&w.config.Timeouts)
	if err := removeAll(w.maps.sessions, mapSessions, over); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	expired := w.tally.Expired + uint64(len(over))
	w.tally = s.tally
	w.tally.Expired, w.tally.Took, w.tally.At = expired, time.Since(begin), now
	w.correct(before)
	if err := w.free(now); err != nil {
		return err
	}
	w.idle(now)
	return nil
}

func (s *sweeper) begin(now uint64) {
	s.now, s.candidates = now, s.candidates[:0]
	clear(s.pairs)
	clear(s.open)
	clear(s.refs)
	clear(s.localRefs)
	s.tally = tally{States: map[string]int{}}
}

// goneThings are the clients and instances whose sessions cannot go on.
type goneThings struct {
	clients   map[uint32]bool // ifindex: there
	instances []*target
	before    time.Time
}

func (w *plane) gone(now time.Time) goneThings {
	w.mu.Lock()
	defer w.mu.Unlock()
	g := goneThings{clients: map[uint32]bool{}, instances: make([]*target, len(w.byIndex)), before: now.Add(-goneFor)}
	for ifindex, l := range w.locals.byIfindex {
		g.clients[ifindex] = l.gone.IsZero() || now.Sub(l.gone) < absentFor
	}
	for _, t := range w.targets {
		if !t.gone.IsZero() && t.gone.Before(g.before) {
			g.instances[t.index] = t
		}
	}
	return g
}

// absentFor is how long sessions of a client are kept whose interface is missing: a service that is only being registered
// again goes on.
const absentFor = 30 * time.Second

func (g *goneThings) has(k *flow, e *session) bool {
	client := k.Ifindex
	if e.Flags&sessionReverse != 0 {
		client = e.Other
	}
	return !g.clients[client] || int(e.Instance) < len(g.instances) && g.instances[e.Instance] != nil
}

// sessionCounts are the data plane's numbers of sessions by instance.
func (w *plane) sessionCounts() []int64 {
	out := make([]int64, len(w.maps.stats))
	for i := range out {
		out[i] = w.maps.stats[i].sessions()
	}
	return out
}

// correct sets right how many sessions instances have: entries that the full table dropped, and those just removed, are still
// counted. Between both readings of a number any value may have been true.
func (w *plane) correct(before []int64) {
	for _, t := range w.targets {
		found, after := w.sweeper.open[t.index], w.maps.stats[t.index].sessions()
		least, most := min(before[t.index], after), max(before[t.index], after)
		if found < least {
			w.maps.stats[t.index].addSessions(found - least)
		} else if found > most {
			w.maps.stats[t.index].addSessions(found - most)
		}
		w.tally.Sessions += int(found)
	}
}

// free gives back what is gone and no session refers to.
func (w *plane) free(now time.Time) error {
	for identity, t := range w.targets {
		if t.gone.IsZero() || now.Sub(t.gone) < restFor || w.sweeper.refs[t.index] != 0 {
			continue
		}
		if err := write(w.maps.owners, mapOwners, t.index, uint64(0)); err != nil {
			return err
		}
		delete(w.targets, identity)
		w.byIndex[t.index] = nil
		w.indices.release(t.index, now)
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

// idle tells the agent which dynamic virtual services nobody uses.
func (w *plane) idle(now time.Time) {
	for _, s := range w.services {
		for _, t := range s.targets {
			if w.sweeper.refs[t.index] != 0 {
				s.used = now
			}
		}
		if s.dynamic && now.Sub(s.used) > idleFor {
			w.live.Idle(s.name)
			s.used = now // not told again with each sweep
		}
	}
}
