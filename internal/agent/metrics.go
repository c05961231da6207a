// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kerb-edge/kerb/internal/apply"
	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/control"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/kerbabi"
	"github.com/kerb-edge/kerb/internal/pkgs"
	"github.com/kerb-edge/kerb/internal/plan"
	"github.com/kerb-edge/kerb/internal/promtext"
	"github.com/kerb-edge/kerb/internal/resource"
	"github.com/kerb-edge/kerb/sdk"
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
	now := maps.Clone(a.points)
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
	planes := a.collectOwn(out)
	// Outside the lock: one that does not answer must not keep the agent from changes.
	clashes := exportPlanes(a.askPlanes(planes), out)
	if a.metrics.setClashes(clashes) {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.markAll()
	}
}

// collectOwn reads what needs no control plane, and returns those that there are.
func (a *Agent) collectOwn(out *promtext.Set) map[string]*control.Plane {
	a.mu.Lock()
	defer a.mu.Unlock()
	out.Histogram("kerb_change_duration_seconds", "Time from an accepted change to the kernel doing it.", a.metrics.changes)
	out.Counter("kerb_change_failures_total", "Changes that were undone because a step failed.", float64(a.metrics.failures.Load()))
	out.Gauge("kerb_modules", "Modules deployed.", float64(a.desired.Len(resource.Module)))
	out.Gauge("kerb_services", "Services registered.", float64(a.desired.Len(resource.Service)))
	out.Gauge("kerb_attach_points", "Attach points that run a chain.", float64(len(a.points)))
	planes := map[string]*control.Plane{}
	for _, name := range slices.Sorted(maps.Keys(a.live)) {
		a.collectModule(name, out)
		if plane := a.live[name].plane; plane != nil {
			planes[name] = plane
		}
	}
	return planes
}

func (a *Agent) collectModule(name string, out *promtext.Set) {
	l, d := a.live[name], a.modules[name]
	out.Gauge("kerb_module_memory_bytes", "Kernel memory of a module's maps.", float64(dataplane.Memory(l.maps)), "module", name)
	cost, _ := a.costOf(d)
	collectCost(name, cost, out)
	for _, drop := range a.drops(d, l) {
		out.Counter("kerb_dropped_packets_total", "Packets that a module dropped, by reason.", float64(drop.Packets),
			"module", name, "reason", drop.Reason)
		for _, s := range drop.Services {
			out.Counter("kerb_service_dropped_packets_total", "Packets of a service that a module dropped, by reason.",
				float64(s.Packets), "module", name, "service", s.Service, "reason", drop.Reason)
		}
	}
	collectEvents(name, l, out)
}

// scraped is what a module's control plane answered to a scrape.
type scraped struct {
	module  string
	pkg     string
	builtin bool
	state   control.State
	stale   bool // of an answer before
	samples []sdk.Sample
}

// askPlanes asks all control planes at once. Those of built-in packages come first in the answer.
func (a *Agent) askPlanes(planes map[string]*control.Plane) []scraped {
	names := slices.Sorted(maps.Keys(planes))
	out := make([]scraped, len(names))
	var asking sync.WaitGroup
	for i, name := range names {
		asking.Go(func() {
			plane := planes[name]
			p := plane.Package()
			samples, stale, err := plane.Metrics(a.base)
			if err != nil {
				a.log.Warn("a control plane does not answer with metrics; its last ones are served", "module", name, "error", err)
			}
			out[i] = scraped{name, p.Name, p.Source == pkgs.SourceBuiltin, plane.State(), stale, samples}
		})
	}
	asking.Wait()
	slices.SortStableFunc(out, func(x, y scraped) int { return cmp.Compare(boolValue(y.builtin), boolValue(x.builtin)) })
	return out
}

// exportPlanes writes the metrics of control planes, and returns the modules some of whose metrics are left out, with the name of
// one: it means something else in another module, which comes before it.
func exportPlanes(all []scraped, out *promtext.Set) (clashes map[string]string) {
	families := map[string]sdk.Sample{}
	clashes = map[string]string{}
	for _, m := range all {
		out.Gauge("kerb_control_plane_up", "1 while a module's control plane runs and says that all is well.",
			boolValue(controlCondition(m.state).Status == "True"), "module", m.module)
		out.Counter("kerb_control_plane_restarts_total", "Times that a module's control plane was started again.",
			float64(m.state.Restarts), "module", m.module)
		out.Gauge("kerb_control_plane_stale",
			"1 while a module's control plane does not answer with metrics, so that its last ones are served.",
			boolValue(m.stale), "module", m.module)
		for _, s := range m.samples {
			name := m.family(s)
			first, known := families[name]
			if known && (first.Help != s.Help || first.Counter != s.Counter) {
				clashes[m.module] = name
				continue
			}
			families[name] = s
			addSample(out, m.module, name, s)
		}
	}
	return clashes
}

// family is the name of a metric. Those of built-in packages and of the agent are reserved: packages of others have a prefix.
func (m scraped) family(s sdk.Sample) string {
	prefix := "kerb_x_"
	if m.builtin {
		prefix = "kerb_"
	}
	return prefix + strings.ReplaceAll(m.pkg, "-", "_") + "_" + s.Name
}

func boolValue(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// addSample adds what a control plane measured.
func addSample(out *promtext.Set, module, name string, s sdk.Sample) {
	labels := []string{"module", module}
	for _, key := range slices.Sorted(maps.Keys(s.Labels)) {
		labels = append(labels, key, s.Labels[key])
	}
	if s.Counter {
		out.Counter(name, s.Help, s.Value, labels...)
	} else {
		out.Gauge(name, s.Help, s.Value, labels...)
	}
}

func collectEvents(name string, l *liveModule, out *promtext.Set) {
	e := events(l)
	if e == nil {
		return
	}
	out.Counter("kerb_events_total", "Events that a module sent to its control plane.", float64(e.Sent), "module", name)
	out.Counter("kerb_events_lost_total", "Events of a module that found no room in the ring buffer.", float64(e.Lost), "module", name)
}

func (a *Agent) collectOutcomes(out *promtext.Set) {
	state, err := a.look()
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

// collectCost gives the figures as metrics.
func collectCost(module string, m apply.Measured, out *promtext.Set) {
	for _, l := range m.Latency {
		out.Gauge("kerb_module_cost_seconds",
			"Time that a module adds to a packet of the kind that takes longest, when it was measured.", l.Worst().Median/1e9,
			"module", module, "hook", string(l.Hook), "direction", string(l.Direction))
	}
}

func sortedPoints[V any](m map[chain.Point]V) []chain.Point {
	return slices.SortedFunc(maps.Keys(m), chain.Point.Compare)
}
