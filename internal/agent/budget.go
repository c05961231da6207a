// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/pkgs"
	"github.com/kerb-edge/kerb/internal/status"
)

// costs remembers what modules were found to cost. It has a lock of its own, held for no measurement.
type costs struct {
	meter dataplane.Meter
	wake  chan struct{} // asks for a look at modules that are not measured

	mu    sync.Mutex
	known map[string]measured // by costKey
}

// measured is what is known of a module's cost; with an error that is little or nothing.
type measured struct {
	dataplane.Cost
	at  time.Time
	err error
}

func newCosts() *costs { return &costs{wake: make(chan struct{}, 1), known: map[string]measured{}} }

func (c *costs) poke() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

func (c *costs) get(d *deployment) (measured, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m, ok := c.known[d.costKey()]
	return m, ok
}

func (c *costs) put(d *deployment, m measured) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.known[d.costKey()] = m
}

func (c *costs) forget(d *deployment) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.known, d.costKey())
}

// keep forgets all modules but these.
func (c *costs) keep(all []*deployment) {
	c.mu.Lock()
	defer c.mu.Unlock()
	wanted := map[string]bool{}
	for _, d := range all {
		wanted[d.costKey()] = true
	}
	maps.DeleteFunc(c.known, func(key string, _ measured) bool { return !wanted[key] })
}

// measure runs the module on maps of its own.
func (c *costs) measure(d *deployment) measured {
	cost, err := c.meter.Measure(d.module, d.hooks()...)
	m := measured{Cost: cost, at: time.Now(), err: err}
	c.put(d, m)
	return m
}

// costKey: the identity of code and config, and the hooks that were measured.
func (d *deployment) costKey() string {
	return fmt.Sprint(d.module.Name, " ", d.module.ID, " ", d.hooks())
}

// hooks are those that the module runs on where it is attached.
func (d *deployment) hooks() []chain.Hook {
	var out []chain.Hook
	if d.Resource.Spec.Attach.Services != "" {
		out = append(out, d.Hook(true, "veth"))
	}
	if len(d.Resource.Spec.Attach.Interfaces) > 0 {
		out = append(out, d.Hook(false, ""), d.Hook(false, "veth"))
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// limit is a budget and who set it: exceeding the operator's is an error, exceeding the package's is a warning.
type limit struct {
	latency       time.Duration // 0: none
	memory        int64         // bytes, 0: none
	latencyOfSpec bool
	memoryOfSpec  bool
}

// limits of a module: the operator's, or else its package's. Both were parsed when they were accepted.
func (d *deployment) limits() limit {
	own, promised := d.Resource.Spec.Budget, d.pkg.Budget
	l := limit{latencyOfSpec: own.Latency != "", memoryOfSpec: own.Memory != ""}
	if own.Latency == "" {
		own.Latency = promised.Latency
	}
	if own.Memory == "" {
		own.Memory = promised.Memory
	}
	l.latency, _ = time.ParseDuration(own.Latency)
	l.memory, _ = pkgs.ParseBytes(own.Memory)
	return l
}

// excess is a budget that is exceeded.
type excess struct {
	field   string // of the resource
	reason  string // for the condition
	text    string
	refused bool // the operator set the budget
}

// exceeded compares by the best run of the most expensive kind of packet: noise makes packets slower, never faster.
func (d *deployment) exceeded(m measured) (excess, bool) {
	l := d.limits()
	for _, x := range m.Latency {
		if least := x.Least(); l.latency > 0 && least.Least > float64(l.latency.Nanoseconds()) {
			text := fmt.Sprintf("a packet (%s, %s %s) takes at least %s, the budget%s is %s",
				least.Kind, x.Hook, x.Direction, nanoseconds(least.Least), ofWhom(l.latencyOfSpec), l.latency)
			return excess{field: "spec.budget.latency", reason: "LatencyExceeded", text: text, refused: l.latencyOfSpec}, true
		}
	}
	if l.memory > 0 && m.Memory > l.memory {
		text := fmt.Sprintf("the maps take %s of kernel memory, the budget%s is %s",
			pkgs.FormatBytes(m.Memory), ofWhom(l.memoryOfSpec), pkgs.FormatBytes(l.memory))
		return excess{field: "spec.budget.memory", reason: "MemoryExceeded", text: text, refused: l.memoryOfSpec}, true
	}
	return excess{}, false
}

func ofWhom(operator bool) string {
	if operator {
		return ""
	}
	return " of its package"
}

func nanoseconds(n float64) time.Duration { return time.Duration(math.Round(n)) }

// checkBudgets measures the modules that a change brings, those whose code it changes, and those that the operator has set
// a budget for. With another config only, a module is measured afterwards, so that a changed rule is in the kernel at once.
// One that cannot be measured is let through: if the kernel does not take it, the change fails by itself.
func (a *Agent) checkBudgets(t target) error {
	var refused []error
	for _, name := range slices.Sorted(maps.Keys(t.modules)) {
		d := t.modules[name]
		before := a.modules[name]
		if d == nil || d.err != nil || before == d || d.onlyConfigured(before) {
			continue
		}
		refused = append(refused, a.checkBudgetOf(d))
	}
	return errors.Join(refused...)
}

// onlyConfigured reports whether d differs from before in its config only, and the operator has set no budget.
func (d *deployment) onlyConfigured(before *deployment) bool {
	l := d.limits()
	return before != nil && before.pkg != nil && before.pkg.Digest == d.pkg.Digest && !l.latencyOfSpec && !l.memoryOfSpec
}

func (a *Agent) checkBudgetOf(d *deployment) error {
	m, ok := a.costs.get(d)
	if !ok {
		m = a.costs.measure(d)
	}
	e, over := d.exceeded(m)
	if over && e.refused { // not without a second look
		a.costs.forget(d)
		again := a.costs.measure(d)
		if e, over = d.exceeded(again); over && e.refused {
			a.costs.forget(d)
			return d.invalid(e.field, fmt.Errorf("%s; raise the budget, or have the module do less by its configuration", e.text))
		}
		m = again
	}
	a.warn(d, m)
	return nil
}

func (a *Agent) warn(d *deployment, m measured) {
	if m.err != nil && !errors.Is(m.err, dataplane.ErrNotPackets) {
		a.log.Warn("module could not be measured", "module", d.module.Name, "error", m.err)
	}
	if e, over := d.exceeded(m); over {
		a.log.Warn("module exceeds its budget", "module", d.module.Name, "excess", e.text)
	}
}

// measureRestored measures what runs without having been measured, such as after a start of the agent, beside the agent's
// work. What exceeds a budget goes on running: taking it out is the operator's decision.
func (a *Agent) measureRestored(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.costs.wake:
		}
		for _, d := range a.unmeasured() {
			if ctx.Err() != nil {
				return
			}
			a.warn(d, a.costs.measure(d))
			a.recorder.Mark(status.Resource{Kind: v1.KindModule, Name: d.module.Name})
		}
	}
}

// unmeasured lists the modules that can run and are not measured, and forgets the figures of those that are gone.
func (a *Agent) unmeasured() []*deployment {
	a.mu.Lock()
	defer a.mu.Unlock()
	var all, out []*deployment
	for _, name := range slices.Sorted(maps.Keys(a.modules)) {
		d := a.modules[name]
		if d.err != nil {
			continue
		}
		all = append(all, d)
		if _, ok := a.costs.get(d); !ok {
			out = append(out, d)
		}
	}
	a.costs.keep(all)
	return out
}

// cost returns the figures for the status, nil if there are none.
func (a *Agent) cost(d *deployment) *v1.Cost {
	if d == nil || d.err != nil {
		return nil
	}
	if m, ok := a.costs.get(d); ok && m.Memory > 0 {
		return costView(m)
	}
	return nil
}

// budgetConditions are there only for modules with a budget.
func (a *Agent) budgetConditions(d *deployment) []v1.Condition {
	if d.err != nil {
		return nil
	}
	if l := d.limits(); l.latency == 0 && l.memory == 0 {
		return nil
	}
	m, ok := a.costs.get(d)
	return []v1.Condition{d.withinBudget(m, ok)}
}

func costView(m measured) *v1.Cost {
	c := &v1.Cost{Memory: m.Memory, MeasuredAt: m.at}
	for _, l := range m.Latency {
		worst := l.Worst()
		c.Latency = append(c.Latency, v1.Latency{Hook: string(l.Hook), Direction: string(l.Direction), Packet: worst.Kind,
			Worst: tenths(worst.Median), Median: tenths(l.Median()), Least: tenths(l.Least().Least)})
	}
	return c
}

func tenths(n float64) float64 { return math.Round(10*n) / 10 }

func (d *deployment) withinBudget(m measured, known bool) v1.Condition {
	c := v1.Condition{Type: "WithinBudget", Status: "Unknown", Reason: "NotMeasured", Message: "not measured yet"}
	e, over := d.exceeded(m)
	switch {
	case over:
		c.Status, c.Reason, c.Message = "False", e.reason, e.text
	case errors.Is(m.err, dataplane.ErrNotPackets) && d.limits().latency == 0:
		c.Status, c.Reason, c.Message = "True", "MemoryMeasured", ""
	case m.err != nil:
		c.Message = m.err.Error()
	case known:
		c.Status, c.Reason, c.Message = "True", "Measured", ""
	}
	return c
}

// collectCost gives the figures as metrics.
func (a *Agent) collectCost(d *deployment, out chan<- prometheus.Metric) {
	m, _ := a.costs.get(d)
	desc := prometheus.NewDesc("kerb_module_cost_seconds", "Time that a module adds to a packet of the kind that takes longest, when it was measured.",
		[]string{"module", "hook", "direction"}, nil)
	for _, l := range m.Latency {
		out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, l.Worst().Median/1e9, d.module.Name, string(l.Hook), string(l.Direction))
	}
}
