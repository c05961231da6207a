// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"fmt"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/kerbabi"
)

// Slow describes packets that a chain kept because they were slow. It uses Points of the reader, and the functions that
// return names.
type Slow struct {
	Filter dataplane.TraceFilter
	Reader Reader
}

// Of returns the packet as in a trace, and whether the filter matches it.
func (s *Slow) Of(kept dataplane.SlowPacket) (out v1.TracedPacket, ok bool) {
	head := kept.Events[0]
	if !matches(s.Filter, head) || s.Filter.SlowerThan > 0 && kept.Took <= s.Filter.SlowerThan {
		return out, false
	}
	if s.Reader.boot.IsZero() {
		s.Reader.boot = bootTime()
	}
	s.Reader.Chains = append(s.Reader.Chains[:0], kept.Chain)
	head.Key = 0 // which chains do not keep
	p := s.Reader.packet(head)
	for _, e := range kept.Events[1:] {
		e.Key = 0
		p.decided = s.Reader.step(p, e) || !kerbabi.Verdict(e.Verdict).Valid()
	}
	if len(kept.Chain.Members) > 0 && !p.decided {
		return out, false // a CPU was overwriting it with another packet
	}
	if p.Interface == "" {
		p.Interface = fmt.Sprintf("ifindex %d, removed", head.Ifindex)
	}
	p.Nanoseconds = uint64(kept.Took)
	p.Frame = p.Frame[:min(len(p.Frame), s.Filter.Bytes)]
	return p.TracedPacket, true
}
