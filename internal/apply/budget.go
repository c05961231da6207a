// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/pkgs"
)

// Budgets remembers the costs of modules. It is safe for concurrent use, and holds no lock while it measures.
type Budgets struct {
	log  *slog.Logger
	wake chan struct{} // requests a measurement of modules that are not measured yet

	mu    sync.Mutex
	known map[string]Measured // by Candidate.Key
}

// Measured is the known part of a module's cost; little or nothing if there is an error.
type Measured struct {
	chain.Cost
	At  time.Time
	Err error
}

// Candidate is a module whose cost is to be measured.
type Candidate struct {
	Module  string
	Key     string // equal for the same code and config on the same hooks
	Limits  Limits
	Measure func() (chain.Cost, error) // runs the module on maps that none of the node's packets use
}

// NewBudgets returns budgets without measurements.
func NewBudgets(log *slog.Logger) *Budgets {
	return &Budgets{log: log, wake: make(chan struct{}, 1), known: map[string]Measured{}}
}

// Poke makes Run look for modules that have not been measured.
func (b *Budgets) Poke() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// Get returns what is known of a module's cost.
func (b *Budgets) Get(key string) (Measured, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	m, ok := b.known[key]
	return m, ok
}

// Check measures a module unless its cost is known. Its error is a *apierrors.Invalid if the module exceeds a budget
// that the operator has set. A module that cannot be measured is accepted: if the kernel rejects it, the change fails
// anyway.
func (b *Budgets) Check(c Candidate) error {
	m, ok := b.Get(c.Key)
	if !ok {
		m = b.measure(c)
	}
	if e, over := c.Limits.Exceeded(m); over && e.refused { // not without a second look
		m = b.measure(c)
		if e, over = c.Limits.Exceeded(m); over && e.refused {
			b.forget(c.Key)
			return &apierrors.Invalid{Resource: v1.KindModule + " " + c.Module, Field: e.field,
				Reason: e.Text + "; raise the budget, or have the module do less by its configuration"}
		}
	}
	b.warn(c, m)
	return nil
}

func (b *Budgets) measure(c Candidate) Measured {
	cost, err := c.Measure()
	m := Measured{Cost: cost, At: time.Now(), Err: err}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.known[c.Key] = m
	return m
}

func (b *Budgets) forget(key string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.known, key)
}

func (b *Budgets) warn(c Candidate, m Measured) {
	if m.Err != nil && !errors.Is(m.Err, chain.ErrNotPackets) {
		b.log.Warn("module could not be measured", "module", c.Module, "error", m.Err)
	}
	if e, over := c.Limits.Exceeded(m); over {
		b.log.Warn("module exceeds its budget", "module", c.Module, "excess", e.Text)
	}
}

// calm is the time without changes after which modules are measured: a measurement would slow down the next change,
// which may replace what is measured. A node that changes all the time is measured after longestWait.
const (
	calm        = 500 * time.Millisecond
	longestWait = 10 * time.Second
)

// awaitCalm returns when Poke was called and then not again for a while, or when ctx ends.
func (b *Budgets) awaitCalm(ctx context.Context) {
	var quiet, late <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-b.wake:
			quiet = time.After(calm)
			if late == nil {
				late = time.After(longestWait)
			}
		case <-quiet:
			return
		case <-late:
			return
		}
	}
}

// Run measures running modules that have not been measured, for example after a start of the agent, until ctx ends:
// list returns the running modules, and done is called for each one that was measured. A module that exceeds its budget
// keeps running: the operator decides whether to remove it.
func (b *Budgets) Run(ctx context.Context, list func() []Candidate, done func(module string)) {
	for {
		if b.awaitCalm(ctx); ctx.Err() != nil {
			return
		}
		for _, c := range b.unmeasured(list()) {
			if ctx.Err() != nil {
				return
			}
			b.warn(c, b.measure(c))
			done(c.Module)
		}
	}
}

// unmeasured returns the modules that have not been measured, and forgets the costs of modules that no longer exist.
func (b *Budgets) unmeasured(all []Candidate) (out []Candidate) {
	b.mu.Lock()
	defer b.mu.Unlock()
	wanted := map[string]bool{}
	for _, c := range all {
		wanted[c.Key] = true
		if _, ok := b.known[c.Key]; !ok {
			out = append(out, c)
		}
	}
	maps.DeleteFunc(b.known, func(key string, _ Measured) bool { return !wanted[key] })
	return out
}

// Limits are the limits of a module, and who set them: exceeding the operator's is an error, exceeding the package's a
// warning.
type Limits struct {
	latency           time.Duration // 0: none
	memory            int64         // bytes, 0: none
	latencyByOperator bool
	memoryByOperator  bool
}

// LimitsOf returns the operator's limits, or the package's where the operator has set none. Both were validated when
// they were accepted.
func LimitsOf(operator v1.Budget, promised pkgs.Budget) Limits {
	l := Limits{latencyByOperator: operator.Latency != "", memoryByOperator: operator.Memory != ""}
	if operator.Latency == "" {
		operator.Latency = promised.Latency
	}
	if operator.Memory == "" {
		operator.Memory = promised.Memory
	}
	l.latency, _ = time.ParseDuration(operator.Latency)
	l.memory, _ = pkgs.ParseBytes(operator.Memory)
	return l
}

// ByOperator reports whether the operator has set a limit.
func (l Limits) ByOperator() bool { return l.latencyByOperator || l.memoryByOperator }

// Excess is a budget that is exceeded.
type Excess struct {
	Text    string
	field   string // of the resource
	reason  string // of the condition
	refused bool   // the operator set the budget
}

// Exceeded compares the best run of the most expensive kind of packet: noise makes packets slower, never faster.
func (l Limits) Exceeded(m Measured) (Excess, bool) {
	for _, x := range m.Latency {
		if least := x.Least(); l.latency > 0 && least.Least > float64(l.latency.Nanoseconds()) {
			text := fmt.Sprintf("a packet (%s, %s %s) takes at least %s, the budget%s is %s", least.Kind, x.Hook, x.Direction,
				time.Duration(math.Round(least.Least)), owner(l.latencyByOperator), l.latency)
			return Excess{Text: text, field: "spec.budget.latency", reason: "LatencyExceeded", refused: l.latencyByOperator},
				true
		}
	}
	if l.memory > 0 && m.Memory > l.memory {
		text := fmt.Sprintf("the maps take %s of kernel memory, the budget%s is %s",
			pkgs.FormatBytes(m.Memory), owner(l.memoryByOperator), pkgs.FormatBytes(l.memory))
		return Excess{Text: text, field: "spec.budget.memory", reason: "MemoryExceeded", refused: l.memoryByOperator}, true
	}
	return Excess{}, false
}

func owner(operator bool) string {
	if operator {
		return ""
	}
	return " of its package"
}

// Conditions returns the condition of a module that has a budget, none for other modules.
func (l Limits) Conditions(m Measured, known bool) []v1.Condition {
	if l.latency == 0 && l.memory == 0 {
		return nil
	}
	c := v1.Condition{Type: "WithinBudget", Status: "Unknown", Reason: "NotMeasured", Message: "not measured yet"}
	e, over := l.Exceeded(m)
	switch {
	case over:
		c.Status, c.Reason, c.Message = "False", e.reason, e.Text
	case errors.Is(m.Err, chain.ErrNotPackets) && l.latency == 0:
		c.Status, c.Reason, c.Message = "True", "MemoryMeasured", ""
	case m.Err != nil:
		c.Message = m.Err.Error()
	case known:
		c.Status, c.Reason, c.Message = "True", "Measured", ""
	}
	return []v1.Condition{c}
}

// View returns the figures for the status, nil if there are none.
func (m Measured) View() *v1.Cost {
	if m.Memory == 0 {
		return nil
	}
	c := &v1.Cost{Memory: m.Memory, MeasuredAt: m.At}
	for _, l := range m.Latency {
		worst := l.Worst()
		c.Latency = append(c.Latency, v1.Latency{Hook: string(l.Hook), Direction: string(l.Direction), Packet: worst.Kind,
			Worst: tenths(worst.Median), Median: tenths(l.Median()), Least: tenths(l.Least().Least)})
	}
	return c
}

// ChainCost returns what the modules of a chain add to the most expensive kind of packet, in ns; nil if not all are
// measured. A cheap module may cost 0 because of measurement noise.
func ChainCost(spec chain.Spec, of func(module string) Measured) *float64 {
	sum := 0.0
	for _, m := range spec.Members {
		latency := of(m.Name).Latency
		i := slices.IndexFunc(latency, func(l chain.Latency) bool {
			return l.Hook == spec.Side.Hook() && l.Direction == spec.Direction
		})
		if i < 0 {
			return nil
		}
		sum += tenths(latency[i].Worst().Median)
	}
	sum = tenths(sum)
	return &sum
}

func tenths(n float64) float64 { return math.Round(10*n) / 10 }
