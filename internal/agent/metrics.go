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

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kerb-edge/kerb/internal/apply"
	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/control"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/kerbabi"
	"github.com/kerb-edge/kerb/internal/pkgs"
	"github.com/kerb-edge/kerb/internal/plan"
	"github.com/kerb-edge/kerb/internal/resource"
	"github.com/kerb-edge/kerb/sdk"
)

// metrics are what the agent counts of itself, and what can be read without its lock.
type metrics struct {
	changes  prometheus.Histogram
	failures prometheus.Counter
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

func newMetrics() *metrics {
	return &metrics{
		changes: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "kerb_change_duration_seconds",
			Help: "Time from an accepted change to the kernel doing it.", Buckets: prometheus.ExponentialBuckets(0.001, 2, 14)}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{Name: "kerb_change_failures_total",
			Help: "Changes that were undone because a step failed."}),
	}
}

func (m *metrics) failed() { m.failures.Inc() }

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

// Collector gives the agent's and the modules' metrics.
func (a *Agent) Collector() prometheus.Collector { return collector{a} }

// collector makes its metrics at each scrape; which there are depends on the modules.
type collector struct{ agent *Agent }

// Describe announces nothing: the collector is unchecked.
func (collector) Describe(chan<- *prometheus.Desc) {}

// Collect reads the counters of the data planes.
func (c collector) Collect(out chan<- prometheus.Metric) {
	a := c.agent
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
func (a *Agent) collectOwn(out chan<- prometheus.Metric) map[string]*control.Plane {
	a.mu.Lock()
	defer a.mu.Unlock()
	out <- a.metrics.changes
	out <- a.metrics.failures
	gauge := func(name, help string, value float64) {
		out <- prometheus.MustNewConstMetric(prometheus.NewDesc(name, help, nil, nil), prometheus.GaugeValue, value)
	}
	gauge("kerb_modules", "Modules deployed.", float64(a.desired.Len(resource.Module)))
	gauge("kerb_services", "Services registered.", float64(a.desired.Len(resource.Service)))
	gauge("kerb_attach_points", "Attach points that run a chain.", float64(len(a.points)))
	planes := map[string]*control.Plane{}
	for _, name := range slices.Sorted(maps.Keys(a.live)) {
		a.collectModule(name, out)
		if plane := a.live[name].plane; plane != nil {
			planes[name] = plane
		}
	}
	return planes
}

func (a *Agent) collectModule(name string, out chan<- prometheus.Metric) {
	l, d := a.live[name], a.modules[name]
	memory := prometheus.NewDesc("kerb_module_memory_bytes", "Kernel memory of a module's maps.", []string{"module"}, nil)
	out <- prometheus.MustNewConstMetric(memory, prometheus.GaugeValue, float64(dataplane.Memory(l.maps)), name)
	cost, _ := a.costOf(d)
	collectCost(name, cost, out)
	dropped := prometheus.NewDesc("kerb_dropped_packets_total", "Packets that a module dropped, by reason.", []string{"module", "reason"}, nil)
	ofServices := prometheus.NewDesc("kerb_service_dropped_packets_total", "Packets of a service that a module dropped, by reason.",
		[]string{"module", "service", "reason"}, nil)
	for _, drop := range a.drops(d, l) {
		out <- prometheus.MustNewConstMetric(dropped, prometheus.CounterValue, float64(drop.Packets), name, drop.Reason)
		for _, s := range drop.Services {
			out <- prometheus.MustNewConstMetric(ofServices, prometheus.CounterValue, float64(s.Packets), name, s.Service, drop.Reason)
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
func exportPlanes(all []scraped, out chan<- prometheus.Metric) (clashes map[string]string) {
	gauge := func(name, help, module string, kind prometheus.ValueType, value float64) {
		out <- prometheus.MustNewConstMetric(prometheus.NewDesc(name, help, []string{"module"}, nil), kind, value, module)
	}
	families := map[string]sdk.Sample{}
	clashes = map[string]string{}
	for _, m := range all {
		gauge("kerb_control_plane_up", "1 while a module's control plane runs and says that all is well.", m.module, prometheus.GaugeValue,
			boolValue(controlCondition(m.state).Status == "True"))
		gauge("kerb_control_plane_restarts_total", "Times that a module's control plane was started again.", m.module, prometheus.CounterValue, float64(m.state.Restarts))
		gauge("kerb_control_plane_stale", "1 while a module's control plane does not answer with metrics, so that its last ones are served.", m.module, prometheus.GaugeValue,
			boolValue(m.stale))
		for _, s := range m.samples {
			name := m.family(s)
			first, known := families[name]
			if known && (first.Help != s.Help || first.Counter != s.Counter) {
				clashes[m.module] = name
				continue
			}
			families[name] = s
			out <- sampleMetric(m.module, name, s)
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

// sampleMetric is what a control plane measured.
func sampleMetric(module, name string, s sdk.Sample) prometheus.Metric {
	keys := slices.Sorted(maps.Keys(s.Labels))
	values := []string{module}
	for _, k := range keys {
		values = append(values, s.Labels[k])
	}
	kind := prometheus.GaugeValue
	if s.Counter {
		kind = prometheus.CounterValue
	}
	desc := prometheus.NewDesc(name, s.Help, append([]string{"module"}, keys...), nil)
	metric, err := prometheus.NewConstMetric(desc, kind, s.Value, values...)
	if err != nil {
		return prometheus.NewInvalidMetric(desc, err)
	}
	return metric
}

func collectEvents(name string, l *liveModule, out chan<- prometheus.Metric) {
	e := events(l)
	if e == nil {
		return
	}
	sent := prometheus.NewDesc("kerb_events_total", "Events that a module sent to its control plane.", []string{"module"}, nil)
	lost := prometheus.NewDesc("kerb_events_lost_total", "Events of a module that found no room in the ring buffer.", []string{"module"}, nil)
	out <- prometheus.MustNewConstMetric(sent, prometheus.CounterValue, float64(e.Sent), name)
	out <- prometheus.MustNewConstMetric(lost, prometheus.CounterValue, float64(e.Lost), name)
}

func (a *Agent) collectOutcomes(out chan<- prometheus.Metric) {
	state, err := a.look()
	if err != nil {
		a.log.Warn("cannot read the state of the kernel", "error", err)
		return
	}
	desc := prometheus.NewDesc("kerb_unparsed_packets_total", "Packets that are not plain IP with a complete transport header, by outcome of parsing.",
		[]string{"chain", "hook", "direction", "outcome"}, nil)
	for _, c := range state.Chains {
		counts, err := a.dp.Outcomes(c)
		if err != nil {
			continue
		}
		for outcome, n := range counts {
			if n > 0 {
				out <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(n), c.ID, string(c.Spec.Side), string(c.Spec.Direction), kerbabi.ParseOutcome(outcome).String())
			}
		}
	}
}

// collectCost gives the figures as metrics.
func collectCost(module string, m apply.Measured, out chan<- prometheus.Metric) {
	desc := prometheus.NewDesc("kerb_module_cost_seconds", "Time that a module adds to a packet of the kind that takes longest, when it was measured.",
		[]string{"module", "hook", "direction"}, nil)
	for _, l := range m.Latency {
		out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, l.Worst().Median/1e9, module, string(l.Hook), string(l.Direction))
	}
}

func sortedPoints[V any](m map[chain.Point]V) []chain.Point {
	return slices.SortedFunc(maps.Keys(m), chain.Point.Compare)
}
