// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"maps"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kerb-edge/kerb/internal/control"
	"github.com/kerb-edge/kerb/internal/kerbabi"
	"github.com/kerb-edge/kerb/internal/plan"
	"github.com/kerb-edge/kerb/internal/promtext"
	"github.com/kerb-edge/kerb/internal/status"
)

// metrics are what the agent counts of itself, and what can be read without its lock.
type metrics struct {
	changes  *promtext.Histogram
	failures atomic.Uint64
	points   atomic.Pointer[plan.Placements]

	mu      sync.Mutex
	clashes map[string]string // of the last scrape: module to a metric of it that is left out
}

// setClashes reports whether they have changed.
func (m *metrics) setClashes(clashes map[string]string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	before := m.clashes
	m.clashes = clashes
	return !maps.Equal(before, clashes)
}

// clash is a metric of a module that is left out; empty if none is.
func (m *metrics) clash(module string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.clashes[module]
}

func newMetrics() *metrics { return &metrics{changes: promtext.NewHistogram(0.001, 14)} }

func (m *metrics) failed() { m.failures.Add(1) }

func (m *metrics) changed(d time.Duration) { m.changes.Observe(d.Seconds()) }

// publish makes the agent's present known to those that must not take its lock.
func (m *metrics) publish(a *Agent) {
	now := maps.Clone(a.now.Points)
	m.points.Store(&now)
}

func (m *metrics) placements() plan.Placements {
	if p := m.points.Load(); p != nil {
		return *p
	}
	return nil
}

// Collect adds the agent's and the modules' metrics.
func (a *Agent) Collect(out *promtext.Set) {
	a.collectOutcomes(out)
	status.CollectCounts(a.counts(), out)
	supervisors := a.collectOwn(out)
	// Outside the lock: one that does not answer must not keep the agent from changes.
	clashes := status.Scrape(a.base, a.log, supervisors, out)
	if a.metrics.setClashes(clashes) {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.markAll()
	}
}

// yield lets those continue that wait for a.mu, which is held.
func (a *Agent) yield() {
	a.mu.Unlock()
	runtime.Gosched()
	a.mu.Lock()
}

// collectOwn reads what needs no control plane, and returns those that there are.
func (a *Agent) collectOwn(out *promtext.Set) map[string]*control.Supervisor {
	a.mu.Lock()
	defer a.mu.Unlock()
	out.Histogram("kerb_change_duration_seconds", "Time from an accepted change to the kernel doing it.",
		a.metrics.changes)
	out.Counter("kerb_change_failures_total", "Changes that were undone because a step failed.",
		float64(a.metrics.failures.Load()))
	supervisors := map[string]*control.Supervisor{}
	a.now.Collect(out, a.yield)
	for name, l := range a.live {
		if l.plane != nil {
			supervisors[name] = l.plane
		}
	}
	return supervisors
}

func (a *Agent) collectOutcomes(out *promtext.Set) {
	state, err := a.look(0)
	if err != nil {
		a.log.Warn("cannot read the state of the kernel", "error", err)
		return
	}
	for _, c := range state.Chains {
		counts, err := a.dp.Outcomes(c)
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
