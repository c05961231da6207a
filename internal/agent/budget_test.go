// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"testing"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/lab/wait"
	"github.com/kerb-edge/kerb/internal/resource"
)

func (n *node) status(t *testing.T, name string) *v1.ModuleStatus {
	t.Helper()
	m, err := get(t.Context(), n, resource.Module, name)
	if err != nil {
		t.Fatal(err)
	}
	return m.Status
}

func condition(st *v1.ModuleStatus, kind string) v1.Condition {
	for _, c := range st.Conditions {
		if c.Type == kind {
			return c
		}
	}
	return v1.Condition{}
}

// A module that exceeds the operator's latency budget is rejected, and the previous one keeps running.
func TestBudgetRefuses(t *testing.T) {
	n := newNode(t)
	quick := module("m", testPackage(t, "spin"), "*", map[string]any{"steps": 0})
	quick.Spec.Budget.Latency = "1us"
	n.apply(t, n.both(), quick)
	before := n.chainsOn(t, n.web)
	slow := quick
	slow.Spec.Config = map[string]any{"steps": 4000}
	for _, dryRun := range []bool{true, false} {
		_, err := n.Apply(t.Context(), resource.Request{Resources: resource.Objects(slow), DryRun: dryRun})
		var invalid *apierrors.Invalid
		if !errors.As(err, &invalid) || invalid.Field != "spec.budget.latency" {
			t.Fatalf("dry run %t: 4000 steps within 1us: %v", dryRun, err)
		}
	}
	if after := n.chainsOn(t, n.web); after["tc-ingress"] != before["tc-ingress"] ||
		after["tc-egress"] != before["tc-egress"] {
		t.Errorf("before the refused change %v, after it %v", before, after)
	}
	if m, err := get(t.Context(), n, resource.Module, "m"); err != nil || m.Metadata.Generation != 1 ||
		condition(m.Status, "WithinBudget").Status != "True" {
		t.Errorf("after the refused change: %+v, %v", m.Status, err)
	}
	slow.Spec.Budget.Latency = "1s"
	n.apply(t, nil, slow)
	if c := condition(n.status(t, "m"), "WithinBudget"); c.Status != "True" {
		t.Errorf("4000 steps within 1s: %+v", c)
	}
}

// Exceeded budgets of a package are reported in the status and the metrics, also after a restart.
func TestPackageBudgetWarns(t *testing.T) {
	n := newNode(t)
	n.apply(t, n.both(), module("slow", testPackage(t, "spin"), "*", nil),
		module("free", testPackage(t, "pass"), "*", nil))
	broken := func() bool {
		st := n.status(t, "slow")
		return st.Cost != nil && condition(st, "WithinBudget").Reason == "LatencyExceeded"
	}
	wait.Until(t, "a module that takes longer than its package says is measured", broken)
	n.cost(t, "free")
	st := n.status(t, "slow")
	if ready := condition(st, "Ready"); ready.Status != "True" || len(st.Cost.Latency) != 2 ||
		st.Cost.Memory != st.Memory || time.Since(st.Cost.MeasuredAt) > time.Hour {
		t.Errorf("it runs on both sides: %+v %+v", ready, st.Cost)
	}
	for _, l := range st.Cost.Latency {
		if l.Hook != "tc" || l.Least < 1000 || l.Worst < l.Median || l.Packet == "" {
			t.Errorf("4000 steps take %+v", l)
		}
	}
	if c := condition(n.status(t, "free"), "WithinBudget"); c.Type != "" {
		t.Errorf("a package without budget: %+v", c)
	}
	if got := n.costMetrics(t); len(got) != 4 || got["slow egress"] < 1e-6 || got["slow ingress"] < 1e-6 {
		t.Errorf("metrics: %v", got)
	}
	n.stop()
	n.start(t)
	wait.Until(t, "a restored module is measured", broken)
}

// costMetrics are the values of kerb_module_cost_seconds by module and direction.
func (n *node) costMetrics(t *testing.T) map[string]float64 {
	t.Helper()
	out := map[string]float64{}
	for _, m := range n.collect(t, "kerb_module_cost_seconds") {
		out[m.Labels["module"]+" "+m.Labels["direction"]] = m.Value
	}
	return out
}

// cost waits for a module to be measured.
func (n *node) cost(t *testing.T, name string) (cost *v1.Cost) {
	t.Helper()
	wait.Until(t, "the module "+name+" is measured", func() bool {
		cost = n.status(t, name).Cost
		return cost != nil
	})
	return cost
}

// A change waits for measurements only where they may reject it.
func TestMeasuresBeforeForBudgets(t *testing.T) {
	n := newNode(t)
	for budget, want := range map[string]bool{"": false, "1s": true} {
		m := module("m", testPackage(t, "pass"), "*", nil)
		m.Spec.Budget.Latency = budget
		prepared, err := n.Preparer.All([]v1.Module{m}, nil, false)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := n.Apply(t.Context(), resource.Request{Resources: resource.Objects(m), DryRun: true}); err != nil {
			t.Fatal(err)
		}
		if _, measured := n.Budgets.Get(prepared["m"].Candidate().Key); measured != want {
			t.Errorf("budget %q: measured %t, want %t", budget, measured, want)
		}
	}
}

// An equal module is not measured again, nor one whose order alone changes.
func TestCostsAreRemembered(t *testing.T) {
	n := newNode(t)
	m := module("m", testPackage(t, "pass"), "*", nil)
	n.apply(t, n.both(), m)
	first := n.cost(t, "m")
	m.Spec.Order.Priority = 7
	n.apply(t, nil, m)
	if second := n.status(t, "m").Cost; second == nil || !first.MeasuredAt.Equal(second.MeasuredAt) {
		t.Errorf("measured %+v, then %+v", first, second)
	}
}

// A change fills the maps of a module once, and those that it measures the module on, if it does so, once.
func TestMapsAreFilledOnce(t *testing.T) {
	n := newNode(t)
	m := module("probe", probePackage(t), "*", nil)
	want := 0
	for i, budget := range []string{"", "1s", "1s", ""} {
		m.Spec.Budget.Latency, m.Spec.Config = budget, map[string]any{"number": i}
		n.apply(t, n.both(), m)
		n.cost(t, "probe")
		if want += 2; n.probe(t).Fills != want {
			t.Errorf("after %d changes maps were filled %d times, want %d", i+1, n.probe(t).Fills, want)
		}
	}
}

// A change that a budget rejects, and a dry run, leave the maps of what runs as they are.
func TestRejectedChangeLeavesMaps(t *testing.T) {
	n := newNode(t)
	fw := module("fw", "firewall", "*", nil)
	n.apply(t, n.both(), fw)
	// the firewall corrects the counts before since
	usage, since, got := n.Live.Maps("fw")["usage"], uint64(7), [3]uint64{}
	fw.Spec.Config = map[string]any{"state": map[string]any{"enabled": false}} // without state, Fill forgets the usage
	for _, budget := range []string{"1ns", "1s"} {
		fw.Spec.Budget.Latency = budget
		if err := usage.Put(uint32(n.web.OuterIndex()), [3]uint64{5, 6, since}); err != nil {
			t.Fatal(err)
		}
		_, err := n.Apply(t.Context(), resource.Request{Resources: resource.Objects(fw), DryRun: budget == "1s"})
		if (err != nil) != (budget == "1ns") {
			t.Fatalf("budget %s: %v", budget, err)
		}
		if err := usage.Lookup(uint32(n.web.OuterIndex()), &got); err != nil || got[2] != since {
			t.Errorf("budget %s: the running firewall has %v, %v; want %v at the end", budget, got, err, since)
		}
	}
}
