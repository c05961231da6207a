// SPDX-License-Identifier: Apache-2.0

package node

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
)

func measured(least ...float64) v1.Module {
	cost := &v1.Cost{}
	for i, l := range least {
		cost.Latency = append(cost.Latency, v1.Latency{Hook: "tc", Direction: []string{"egress", "ingress"}[i], Least: l,
			Worst: 10 * l})
	}
	return v1.Module{Status: &v1.ModuleStatus{Cost: cost}}
}

// A version may exceed the previous cost in each direction by the limit of the rollout. Missing measurements count as
// no cost.
func TestGuardOfCost(t *testing.T) {
	fifty := 50
	for _, c := range []struct {
		name        string
		limit       *int
		before, now v1.Module
		want        string
	}{
		{"nothing is said", nil, measured(10), measured(1000), ""},
		{"within the limit", &fifty, measured(10, 20), measured(60, 70), ""},
		{"one direction", &fifty, measured(10, 20), measured(60, 71),
			"adds 71 ns to the slowest kind of packet (tc, ingress)"},
		{"a direction that is new", &fifty, measured(10), measured(10, 51), "added 0 ns"},
		{"not measured yet", &fifty, measured(10), v1.Module{Status: &v1.ModuleStatus{}}, ""},
		{"not measured before", &fifty, v1.Module{}, measured(1000), ""},
	} {
		g, m := &guard{windows: map[string]window{}, counts: map[string]*trialState{}}, inRollout(nil)
		m.Spec.Rollout.MaxCost = c.limit
		got := g.rollbackReason(m, trial{Version: m.Version(), Cost: costOf(c.before)}, c.now)
		if (got != "") != (c.want != "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q", c.name, got)
		}
	}
}

// Pods that were Ready and no longer are count while the version soaks, in three consecutive samples. Deleted pods do
// not count.
func TestGuardOfReadiness(t *testing.T) {
	r := &readiness{pods: map[string]podReady{}, log: slog.New(slog.DiscardHandler)}
	set := func(uid string, ready bool) {
		p := podReady{}
		if ready {
			p.Status.Conditions = []api.NodeCondition{{Type: "Ready", Status: "True"}}
		}
		r.pods[uid] = p
	}
	m := inRollout(nil)
	m.Spec.Rollout.MaxUnready = new(1)
	before := map[string]string{"a": "default/a", "b": "default/b", "c": "default/c"}
	c := &trialState{pods: before, soakEnd: time.Now().Add(time.Hour)}
	s := &syncer{state: newState("n1"), ready: r, guard: &guard{counts: map[string]*trialState{"web": c}}}
	times := func(n int) (text string) {
		for range n {
			text = s.unready(m)
		}
		return text
	}
	set("other", false)
	set("a", false)
	set("b", true)
	if text := times(9); text != "" { // c was deleted
		t.Errorf("one pod of one that is allowed: %s", text)
	}
	set("b", false)
	if text := times(2); text != "" {
		t.Errorf("for a moment: %s", text)
	}
	set("b", true)
	times(1)
	set("b", false)
	if text := times(2); text != "" {
		t.Errorf("for another moment: %s", text)
	}
	text := times(1)
	if !strings.Contains(text, "of the 3 pods") || !strings.Contains(text, "2 are not, among them default/a") {
		t.Errorf("two pods: %s", text)
	}
	if c.soakEnd = time.Now(); times(5) != "" {
		t.Error("readiness counts after the version has soaked")
	}
	c.soakEnd, m.Spec.Rollout.MaxUnready = time.Now().Add(time.Hour), nil
	if times(5) != "" {
		t.Error("readiness counts though the rollout has no limit")
	}
}

// A check, too, allows a version to exceed the previous cost by the limit of the rollout; beyond it, no node starts the
// version. It is measured twice before it fails, and again with backoff, after resume, or with another limit. Without a
// limit it is not measured.
func TestCheckOfCost(t *testing.T) {
	costs := func(least ...float64) *v1.Cost { return measured(least...).Status.Cost }
	for _, c := range []struct {
		name   string
		limit  *int
		before *v1.Cost
		after  []*v1.Cost // of the first measurement, and of the second
		want   string
	}{
		{"nothing is said", nil, costs(10), nil, ""},
		{"within the limit", new(50), costs(10, 20), []*v1.Cost{costs(60, 70)}, ""},
		{"one direction", new(50), costs(10, 20), []*v1.Cost{costs(60, 99), costs(60, 71)},
			"adds 71 ns to the slowest kind of packet (tc, ingress); before, the module added 20 ns, and " +
				"spec.rollout.maxCost allows 50 more; this node has not begun with it"},
		{"disturbed", new(50), costs(10), []*v1.Cost{costs(1000), costs(60)}, ""},
		{"new on the node", new(50), nil, []*v1.Cost{costs(1000)}, ""},
		{"not measured", new(50), costs(10), []*v1.Cost{nil}, ""},
		{"an earlier agent", new(50), costs(10), []*v1.Cost{costs(60)}, ""},
		{"too dear on an earlier agent", new(50), costs(10), []*v1.Cost{costs(61), costs(61)}, "allows 50 more"},
	} {
		a, s := heldPod(t)
		var err error
		if s.guard, err = newGuard(t.TempDir(), s.state); err != nil {
			t.Fatal(err)
		}
		measurements := 0
		a.earlier = strings.HasSuffix(c.name, "an earlier agent")
		a.costs = func() []v1.CostChange {
			measurements++
			return []v1.CostChange{{Module: "another"},
				{Module: "web", Before: c.before, After: c.after[min(measurements, len(c.after))-1]}}
		}
		m := inRollout(nil)
		m.Spec.Rollout.Percent, m.Spec.Rollout.MaxCost = nil, c.limit
		s.state.moduleHandler(ofModules).Replace(nil)
		s.state.namespaceHandler().Replace(nil)
		s.state.podHandler().Replace(nil)
		round := func() rolloutReport {
			s.state.moduleHandler(ofClusterModules).Replace([]api.Module{m})
			if _, err := s.round(t.Context()); err != nil {
				t.Fatal(err)
			}
			return s.state.rollouts()
		}
		is := round()
		switch {
		case measurements != len(c.after):
			t.Errorf("%s: measured %d times", c.name, measurements)
		case c.want == "" && len(is.checked) == 1 && len(is.failed) == 0:
		case c.want != "" && len(is.failed) == 1 && strings.Contains(is.failed[0].Message, c.want) &&
			is.failed[0].Reason == api.CheckFailed:
		default:
			t.Errorf("%s: the node reports %+v, want %q", c.name, is, c.want)
		}
		if got := a.modules["web"].Spec.Package; got != "counter" {
			t.Errorf("%s: the node runs %s", c.name, got)
		}
		if c.want == "" {
			continue
		}
		rules := s.state.view().rules
		for n, pause := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60} {
			for _, ago := range []time.Duration{pause*time.Minute - 30*time.Second, pause * time.Minute} {
				before := measurements
				again := s.state.checks["web"]
				again.at = time.Now().Add(-ago)
				s.state.checks["web"] = again
				s.check(t.Context(), s.state.view())
				if due := ago == pause*time.Minute; s.state.view().rules != rules || (measurements == before+2) != due {
					t.Errorf("%s: %d: after %v it is measured %d times", c.name, n, ago, measurements-before)
				}
			}
		}
		again := s.state.checks["web"]
		again.at = time.Now().Add(-maxRemeasure / 2)
		s.state.checks["web"] = again
		halted := m
		halted.Status = &api.ModuleStatus{Rollout: &api.RolloutStatus{Version: m.Version(), Halted: &api.Halt{Reason: "x"}}}
		before := measurements
		s.state.moduleHandler(ofClusterModules).Replace([]api.Module{halted})
		if s.check(t.Context(), s.state.view()); measurements != before {
			t.Errorf("%s: it is measured though the rollout has halted", c.name)
		}
		round()
		if measurements != before+2 {
			t.Errorf("%s: after resume it is measured %d times", c.name, measurements-before)
		}
		r := *m.Spec.Rollout
		r.MaxCost = new(60)
		m.Spec.Rollout = &r
		if is := round(); len(is.checked) != 1 || len(is.failed) != 0 {
			t.Errorf("%s: with a higher limit the node reports %+v", c.name, is)
		}
	}
}
