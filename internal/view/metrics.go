// SPDX-License-Identifier: Apache-2.0

package view

import (
	"maps"
	"runtime"

	"github.com/kerb-edge/kerb/internal/control"
	"github.com/kerb-edge/kerb/internal/kerbabi"
	"github.com/kerb-edge/kerb/internal/promtext"
	"github.com/kerb-edge/kerb/internal/status"
)

// LostMetric returns a metric of a module that the last scrape omitted, or "".
func (v *Views) LostMetric(module string) string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.clashes[module]
}

// Collect adds the agent's and the modules' metrics.
func (v *Views) Collect(out *promtext.Set) {
	v.collectOutcomes(out)
	status.CollectCounts(v.counts(), out)
	supervisors := v.collectOwn(out)
	// Without the lock: a control plane that does not reply must not block changes.
	clashes := status.Scrape(v.Base, v.Log, supervisors, out)
	v.mu.Lock()
	before := v.clashes
	v.clashes = clashes
	v.mu.Unlock()
	if !maps.Equal(before, clashes) {
		v.Lock.Lock()
		defer v.Lock.Unlock()
		v.Now.EnqueueAll()
	}
}

// yield releases v.Lock, so that waiting goroutines can continue, and takes it again.
func (v *Views) yield() {
	v.Lock.Unlock()
	runtime.Gosched()
	v.Lock.Lock()
}

// collectOwn collects the metrics that need no control plane, and returns the control planes.
func (v *Views) collectOwn(out *promtext.Set) map[string]*control.Supervisor {
	v.Lock.Lock()
	defer v.Lock.Unlock()
	out.Histogram("kerb_change_duration_seconds", "Time from an accepted change to the kernel doing it.",
		v.Took)
	out.Counter("kerb_change_failures_total", "Changes that were undone because a step failed.",
		float64(v.Failures.Load()))
	v.Now.Collect(out, v.yield)
	return v.Live.Planes()
}

// collectOutcomes adds the parse outcomes per chain. It omits outcomes without packets, and chains whose counters
// cannot be read.
func (v *Views) collectOutcomes(out *promtext.Set) {
	seen := v.Seen.Load()
	if seen == nil {
		v.Log.Debug("the state of the kernel has not been read yet; kerb_unparsed_packets_total is left out")
		return
	}
	for _, c := range seen.Chains {
		counts, err := v.Dataplane.Outcomes(c)
		if err != nil {
			continue
		}
		for outcome, n := range counts {
			if n > 0 {
				out.Counter("kerb_unparsed_packets_total",
					"Packets that are not plain IP with a complete transport header, by outcome of parsing.", float64(n),
					"chain", c.ID, "hook", string(c.Spec.Side), "direction", string(c.Spec.Direction),
					"outcome", kerbabi.ParseOutcome(outcome).String())
			}
		}
	}
}
