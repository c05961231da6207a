// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/chain"
)

// NodeTrace is the trace of a node.
type NodeTrace struct {
	Node    string
	Packets []v1.TracedPacket
}

// Join joins the traces of nodes. Packets of two nodes are the same packet if they had the same fingerprint anywhere,
// at about the same time: within is the maximum clock difference of the nodes plus the latency between them. If several
// match, those closest in time are joined. A joined packet has the chains of all nodes in the order in which it met
// them. Packets are returned oldest first.
func Join(traces []NodeTrace, within time.Duration) []v1.TracedPacket {
	j := joiner{within: within, known: map[string][]*joined{}}
	for i, t := range traces {
		packets := slices.Clone(t.Packets)
		slices.SortStableFunc(packets, func(a, b v1.TracedPacket) int { return a.Time.Compare(b.Time) })
		for _, p := range packets {
			j.add(i, t.Node, p)
		}
	}
	out := make([]v1.TracedPacket, 0, len(j.all))
	for _, one := range j.all {
		out = append(out, one.packet())
	}
	slices.SortStableFunc(out, func(a, b v1.TracedPacket) int { return a.Time.Compare(b.Time) })
	for i := range out {
		out[i].ID = fmt.Sprintf("0-%d", i+1) // those of nodes are their own
	}
	return out
}

type joiner struct {
	within time.Duration
	known  map[string][]*joined // by each fingerprint that they had, in the order of time
	all    []*joined
}

// joined is a packet with the traces of its nodes.
type joined struct {
	nodes []int // by number, in the same order as at
	at    []v1.TracedPacket
}

// compare orders packets by the time at which the first node saw them.
func (j *joined) compare(t time.Time) int { return j.at[0].Time.Compare(t) }

func (j *joiner) add(node int, name string, p v1.TracedPacket) {
	p.Node, p.Then = name, slices.Clone(p.Then)
	for i := range p.Then {
		p.Then[i].Node = name
	}
	var found *joined
	least := j.within
	prints := fingerprints(p)
	for _, f := range prints {
		soonest := p.Time.Add(-j.within)
		from, _ := slices.BinarySearchFunc(j.known[f], soonest, (*joined).compare)
		for _, one := range j.known[f][from:] {
			apart := one.at[0].Time.Sub(p.Time)
			if apart > j.within {
				break
			}
			if apart = apart.Abs(); apart <= least && !slices.Contains(one.nodes, node) {
				found, least = one, apart
			}
		}
	}
	if found == nil {
		found = &joined{}
		j.all = append(j.all, found)
	}
	found.nodes, found.at = append(found.nodes, node), append(found.at, p)
	for _, f := range prints {
		known := j.known[f]
		at, _ := slices.BinarySearchFunc(known, found.at[0].Time, (*joined).compare)
		for at < len(known) && known[at] != found && known[at].compare(found.at[0].Time) == 0 {
			at++
		}
		if at == len(known) || known[at] != found {
			j.known[f] = slices.Insert(known, at, found)
		}
	}
}

// fingerprints returns the fingerprints of a packet, in order.
func fingerprints(p v1.TracedPacket) (all []string) {
	for _, at := range append([]v1.TracedPacket{p}, p.Then...) {
		if at.Fingerprint != "" {
			all = append(all, at.Fingerprint)
		}
		for _, s := range at.Steps {
			if s.Fingerprint != "" {
				all = append(all, s.Fingerprint)
			}
		}
	}
	return all
}

// packet returns the packet with the chains of all its nodes.
func (j *joined) packet() v1.TracedPacket {
	slices.SortStableFunc(j.at, func(a, b v1.TracedPacket) int {
		return cmp.Or(rank(a)-rank(b), a.Time.Compare(b.Time))
	})
	for range j.at { // clocks may be wrong about which node was first
		for i := 1; i < len(j.at); i++ {
			if rank(j.at[i]) == rank(j.at[i-1]) && leads(j.at[i], j.at[i-1]) && !leads(j.at[i-1], j.at[i]) {
				j.at[i-1], j.at[i] = j.at[i], j.at[i-1]
			}
		}
	}
	p := j.at[0]
	for _, next := range j.at[1:] {
		then := next.Then
		next.Then = nil
		p.Then = append(append(p.Then, next), then...)
	}
	return p
}

// rank is negative for the packet at the node of the sending service, and positive at that of the receiving service.
func rank(p v1.TracedPacket) (n int) {
	last := append([]v1.TracedPacket{p}, p.Then...)[len(p.Then)]
	if p.Service != "" && p.Direction == string(chain.Egress) {
		n--
	}
	if last.Service != "" && last.Direction == string(chain.Ingress) {
		n++
	}
	return n
}

// leads reports whether a packet left one node in the state in which it arrived at another.
func leads(from, to v1.TracedPacket) bool {
	left := fingerprints(from)
	return len(left) > 0 && left[len(left)-1] == to.Fingerprint
}
