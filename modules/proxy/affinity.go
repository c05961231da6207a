// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/kerb-edge/kerb/sdk"
)

// affinityTerm is what vip.Expires has with vipAffinity: the time-out in seconds in the lower half, and a hash of the
// virtual service in the upper one, never 0.
func affinityTerm(timeout time.Duration, service string) uint64 {
	owner := max(1, uint32(identityOf(service, "")>>32))
	return uint64(owner)<<32 | uint64(uint32(timeout/time.Second))
}

// currentAffinities returns the virtual addresses with affinity, and their time-outs in ns.
func (w *running) currentAffinities() map[address]uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := map[address]uint64{}
	for a, v := range w.addresses {
		if v.value.Flags&vipAffinity != 0 {
			out[addressOf(a)] = uint64(uint32(v.value.Expires)) * uint64(time.Second)
		}
	}
	return out
}

// unansweredFor is how long an affinity lasts, ns, while no session of it has been answered: those of a flood from
// made-up addresses soon make room again.
const unansweredFor = uint64(time.Minute)

// noteAffinity takes one entry of the table sessions that is an affinity. It ends with its time-out, when its address
// has no affinity any more, and as sessions do when their client or their instance is gone.
func (s *sweeper) noteAffinity(k *flow, e *session, lost bool) {
	s.noteClient(k)
	c := candidateEntry{key: *k, kept: true, seen: e.Seen, hash: k.hash(), instance: e.Instance}
	s.count(&c, 1)
	timeout := s.affinities[k.Dst]
	if e.State&stateAnswered == 0 {
		timeout = min(timeout, unansweredFor)
	}
	if lost || s.now-min(s.now, e.Seen) > timeout {
		s.candidates = append(s.candidates, c)
	}
}

func (s *sweeper) noteClient(k *flow) {
	if s.affinities[k.Dst] != 0 {
		s.sticky[k.Ifindex] = true
	}
}

// shareOfFree is PX_SHARE_OF_FREE: what an interface may have of sessions, to what it may have with affinities.
const shareOfFree = 4

// affinityLimit is how many sessions and affinities an interface may have while affinities enter, and what raises it.
func (w *running) affinityLimit() (limit int64, remedy string) {
	free := int64(w.config.Tables.Sessions) - int64(w.maps.shares[0].sessions())
	if n := w.config.Tables.SessionsPerService; n > 0 && free > 0 {
		return (int64(n) + shareOfFree - 1) / shareOfFree, "tables.sessionsPerService"
	}
	return free, "tables.sessions"
}

// updateAffinityLimits determines, after a sweep, the interfaces whose clients use addresses with affinity and have
// reached the limit, so that new ones are not remembered. They are below it again when a tenth is free.
func (w *running) updateAffinityLimits() {
	limit, _ := w.affinityLimit()
	before := w.forgetful
	w.forgetful = map[uint32]bool{}
	for ifindex := range w.sweeper.sticky {
		if l := w.locals.byIfindex[ifindex]; l != nil {
			used := int64(w.maps.shares[l.index].sessions())
			w.forgetful[ifindex] = used >= limit || before[ifindex] && used > limit-limit/10
		}
	}
}

// affinityCondition says whether the instances of new clients are remembered, if an address has affinity.
func (w *running) affinityCondition() []sdk.Condition {
	if !slices.ContainsFunc(slices.Collect(maps.Values(w.addresses)), func(v *virtual) bool { return v.affinity > 0 }) {
		return nil
	}
	c := sdk.Condition{Type: "AffinityKept", Status: "True", Reason: "BelowLimit"}
	ifindex, most := uint32(0), int64(-1)
	for i, full := range w.forgetful {
		if l := w.locals.byIfindex[i]; full && l != nil {
			if used := int64(w.maps.shares[l.index].sessions()); used > most || used == most && i < ifindex {
				ifindex, most = i, used
			}
		}
	}
	if most >= 0 {
		_, remedy := w.affinityLimit()
		c.Status, c.Reason = "False", "OverQuota"
		c.Message = fmt.Sprintf("new clients of %s may change their instance with each connection: it has %d sessions and "+
			"affinities; raise %s", w.locals.nameOf(ifindex), most, remedy)
	}
	return []sdk.Condition{c}
}
