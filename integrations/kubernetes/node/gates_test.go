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

// A version may cost as much more in each direction as the rollout allows. What is not measured costs nothing.
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
		g, m := &guard{windows: map[string]window{}, counts: map[string]*counted{}}, inRollout(nil)
		m.Spec.Rollout.MaxCost = c.limit
		got := g.judge(m, trial{Version: m.Version(), Cost: costOf(c.before)}, c.now)
		if (got != "") != (c.want != "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q", c.name, got)
		}
	}
}

// Pods that were Ready and are not count while the version soaks, three times in a row. Those that are gone do not.
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
	c := &counted{pods: before, until: time.Now().Add(time.Hour)}
	s := &syncer{state: newState("n1"), ready: r, guard: &guard{counts: map[string]*counted{"web": c}}}
	times := func(n int) (text string) {
		for range n {
			text = s.unready(m)
		}
		return text
	}
	set("other", false)
	set("a", false)
	set("b", true)
	if text := times(9); text != "" { // c is gone
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
	if c.until = time.Now(); times(5) != "" {
		t.Error("readiness counts after the version has soaked")
	}
	c.until, m.Spec.Rollout.MaxUnready = time.Now().Add(time.Hour), nil
	if times(5) != "" {
		t.Error("readiness counts though the rollout has no limit")
	}
}
