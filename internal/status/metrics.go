// SPDX-License-Identifier: Apache-2.0

package status

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sort"
	"strings"
	"sync"

	"github.com/kerb-edge/kerb/internal/apply"
	"github.com/kerb-edge/kerb/internal/control"
	"github.com/kerb-edge/kerb/internal/pkgs"
	"github.com/kerb-edge/kerb/internal/promtext"
	"github.com/kerb-edge/kerb/internal/resource"
	"github.com/kerb-edge/kerb/sdk"
)

// Collect adds the metrics of the state: what is deployed, and the counters of modules. Between two resources it calls
// pause, during which the state may change.
func (nd *Node) Collect(out *promtext.Set, pause func()) {
	out.Gauge("kerb_modules", "Modules deployed.", float64(nd.Desired.Len(resource.Module)))
	out.Gauge("kerb_services", "Services registered.", float64(nd.Desired.Len(resource.Service)))
	out.Gauge("kerb_attach_points", "Attach points that run a chain.", float64(len(nd.Points)))
	for _, p := range nd.Problems(pause) {
		out.Gauge("kerb_problem", "1 for each problem of kerb status.", 1,
			"kind", p.Kind, "name", p.Name, "condition", p.Type, "reason", p.Reason)
	}
	for _, name := range slices.Sorted(maps.Keys(nd.Modules)) {
		if c := nd.Counters(name); c != nil {
			nd.collectModule(name, c, out)
		}
		pause()
	}
}

func (nd *Node) collectModule(name string, c Counters, out *promtext.Set) {
	out.Gauge("kerb_module_memory_bytes", "Kernel memory of a module's maps.", float64(c.Memory()), "module", name)
	collectCost(name, nd.CostOf(nd.Modules[name]), out)
	for _, drop := range nd.Drops(name) {
		out.Counter("kerb_dropped_packets_total", "Packets that a module dropped, by reason.", float64(drop.Packets),
			"module", name, "reason", drop.Reason)
		for _, s := range drop.Services {
			out.Counter("kerb_service_dropped_packets_total", "Packets of a service that a module dropped, by reason.",
				float64(s.Packets), "module", name, "service", s.Service, "reason", drop.Reason)
		}
	}
	if e := c.Events(); e != nil {
		out.Counter("kerb_events_total", "Events that a module sent to its control plane.", float64(e.Sent), "module", name)
		out.Counter("kerb_events_lost_total", "Events of a module that found no room in the ring buffer.", float64(e.Lost),
			"module", name)
	}
}

// collectCost adds the costs as metrics.
func collectCost(module string, m apply.Measured, out *promtext.Set) {
	for _, l := range m.Latency {
		out.Gauge("kerb_module_cost_seconds",
			"Time that a module adds to a packet of the kind that takes longest, when it was measured.", l.Worst().Median/1e9,
			"module", module, "hook", string(l.Hook), "direction", string(l.Direction))
	}
}

// Scrape adds the metrics of control planes, by module. It returns, by module, the name of a metric that is left out,
// for modules with such metrics.
func Scrape(ctx context.Context, log *slog.Logger, supervisors map[string]*control.Supervisor,
	out *promtext.Set) (clashes map[string]string) {
	return exportSamples(scrape(ctx, log, supervisors), out)
}

// scraped is a module's answer to a scrape.
type scraped struct {
	module  string
	pkg     string
	builtin bool
	state   control.State
	stale   bool // of an answer before
	samples []sdk.Sample
}

// scrape scrapes all control planes concurrently. Built-in packages come first in the result.
func scrape(ctx context.Context, log *slog.Logger, supervisors map[string]*control.Supervisor) []scraped {
	names := slices.Sorted(maps.Keys(supervisors))
	out := make([]scraped, len(names))
	var asking sync.WaitGroup
	for i, name := range names {
		asking.Go(func() {
			plane := supervisors[name]
			p := plane.Package()
			samples, stale, err := plane.Metrics(ctx)
			if err != nil {
				log.Warn("a control plane does not answer with metrics; its last ones are served", "module", name, "error", err)
			}
			out[i] = scraped{name, p.Name, p.Source == pkgs.SourceBuiltin, plane.State(), stale, samples}
		})
	}
	asking.Wait()
	sort.SliceStable(out, func(i, j int) bool { return out[i].builtin && !out[j].builtin })
	return out
}

// exportPlanes writes the metrics of control planes. It returns, by module, the name of a metric that is left out
// because it has another meaning in a module that precedes it.
func exportSamples(all []scraped, out *promtext.Set) (clashes map[string]string) {
	families := map[string]sdk.Sample{}
	clashes = map[string]string{}
	for _, m := range all {
		out.Gauge("kerb_control_plane_up", "1 while a module's control plane runs and reports that it is healthy.",
			boolValue(ControlCondition(m.state).Status == "True"), "module", m.module)
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

// family returns the name of a metric. Names of built-in packages and of the agent are reserved: other packages have a
// prefix.
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

// addSample adds a sample of a control plane.
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
