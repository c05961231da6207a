// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"fmt"
	"slices"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/kerbabi"
)

// A packet may meet several chains of the node: that of the sending service, that of an interface, that of the
// receiving service. The data plane gives it the same number in all of them.

// journey is a packet between chains.
type journey struct {
	trace  uint64
	chains []v1.TracedPacket
	last   time.Time      // time at the last known one of them
	over   bool           // it meets no other one
	kernel *v1.KernelDrop // the last drop of it, or of a copy
}

const (
	// linger is the maximum time to a packet's next chain, for example in a queue, for which it is shown with it.
	linger       = 100 * time.Millisecond
	mostJourneys = 10000
)

// join adds a packet's events at a chain to its previous ones, and shows the packet if no other chain follows.
func (r *Reader) join(p *openPacket) error {
	j := r.journeys[p.trace]
	if j == nil {
		j = &journey{trace: p.trace}
		r.journeys[p.trace] = j
		r.order = append(r.order, j)
	}
	j.chains = append(j.chains, p.TracedPacket)
	j.last = time.Now()
	if n := len(p.Steps); n > 0 && ends(p.Steps[n-1].Verdict) {
		j.over = true
	}
	return nil
}

// kernelDropped records that the kernel dropped a packet after a chain. A packet that a module drops is also dropped by
// the kernel, on the module's behalf.
func (r *Reader) kernelDropped(e dataplane.TraceEvent) error {
	for cpu, p := range r.open {
		if p.trace == e.Trace {
			if err := r.finish(cpu); err != nil {
				return err
			}
		}
	}
	if j := r.journeys[e.Trace]; j != nil && !j.over {
		reason, function := e.KernelReason()
		j.kernel = &v1.KernelDrop{Time: r.boot.Add(time.Duration(e.Time)), Reason: reason, Function: function}
	}
	return nil
}

// ends reports whether a packet with this verdict meets no other chain.
func ends(verdict string) bool {
	v, ok := kerbabi.VerdictNamed(verdict)
	return ok && v.Ends()
}

// arrive shows the packets that have been at their last chain, in the order in which they arrived at their first one.
// The zero time shows all.
func (r *Reader) arrive(now time.Time) error {
	n := 0
	for _, j := range r.order {
		if !j.over && !now.IsZero() && now.Sub(j.last) < linger && len(r.order)-n <= mostJourneys {
			break
		}
		n++
		delete(r.journeys, j.trace)
		slices.SortStableFunc(j.chains, func(a, b v1.TracedPacket) int { return a.Time.Compare(b.Time) })
		if end := &j.chains[len(j.chains)-1]; j.kernel != nil && j.kernel.Time.After(end.Time) {
			end.KernelDrop = j.kernel // otherwise it was a copy, as the packet has met another chain
		}
		p := j.chains[0]
		p.Then = j.chains[1:]
		p.ID = fmt.Sprintf("%d-%d", j.trace>>48, j.trace&(1<<48-1))
		if err := r.show(p); err != nil {
			return err
		}
	}
	r.order = slices.Delete(r.order, 0, n)
	return nil
}
