// SPDX-License-Identifier: Apache-2.0

package node

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
	"github.com/kerb-edge/kerb/integrations/kubernetes/names"
)

// observed returns a module of the agent with counters and conditions.
func observed(packets, drops uint64, conditions ...v1.Condition) v1.Module {
	counts := v1.ModuleCount{Packets: packets, Verdicts: []v1.VerdictCount{{Verdict: "next", Packets: packets - drops},
		{Verdict: "drop", Packets: drops}}}
	return v1.Module{Metadata: v1.ObjectMeta{Name: "web", Owner: names.Owner},
		Status: &v1.ModuleStatus{Conditions: conditions, Counts: []v1.ModuleCount{counts}}}
}

func inRollout(limit *int) api.Module {
	return api.Module{Metadata: api.ObjectMeta{Name: "web"}, Spec: api.ModuleSpec{Package: api.Package{Name: "firewall"},
		Rollout: &api.Rollout{Percent: new(0), Nodes: []string{"n1"}, MaxDrops: limit,
			Previous: api.Previous{Package: api.Package{Name: "counter"}}}}}
}

// Drops count only beyond the previous share plus the limit of the rollout, and from ten excess drops on. Unused
// allowance does not accumulate.
func TestGuardOfDrops(t *testing.T) {
	five, none := 5, 0
	for _, c := range []struct {
		name  string
		limit *int
		share float64
		polls []traffic // from 100,000 packets and 1,000 drops
		want  bool
	}{
		{"nothing is said", nil, 0, []traffic{{200_000, 101_000}}, false},
		{"as before", &none, 0.25, []traffic{{104_000, 2_000}, {108_000, 3_000}}, false},
		{"within the limit", &five, 0, []traffic{{110_000, 1_050}, {120_000, 1_100}}, false},
		{"beyond the limit", &five, 0, []traffic{{101_000, 1_010}, {102_000, 1_020}}, true},
		{"a few packets", &none, 0, []traffic{{100_009, 1_009}}, false},
		{"all packets", &five, 0, []traffic{{100_011, 1_011}}, true},
		{"well for a long time, then not", &five, 0.1, []traffic{{9_100_000, 1_000}, {9_100_020, 1_020}}, true},
		{"counts begin again", &five, 0, []traffic{{20, 20}, {40, 20}}, false},
	} {
		g := &guard{windows: map[string]window{}, counts: map[string]*trialState{}}
		m := inRollout(c.limit)
		trial := trial{Version: m.Version(), Share: c.share}
		g.rollbackReason(m, trial, observed(100_000, 1_000))
		got := ""
		for _, p := range c.polls {
			if got != "" {
				t.Errorf("%s: too early: %s", c.name, got)
			}
			got = g.rollbackReason(m, trial, observed(p.packets, p.drops))
		}
		if (got != "") != c.want {
			t.Errorf("%s: %q", c.name, got)
		}
	}
}

// A condition that becomes and stays bad causes a rollback. A condition that was bad before does not, nor does a
// starting control plane.
func TestGuardOfConditions(t *testing.T) {
	condition := func(kind, status, reason string) v1.Condition {
		return v1.Condition{Type: kind, Status: status, Reason: reason, Message: "why"}
	}
	well, starts := condition("ControlPlane", "True", "Running"), condition("ControlPlane", "False", "Starting")
	ill := condition("ControlPlane", "False", "NotRunning")
	for _, c := range []struct {
		name  string
		bad   []string
		polls []v1.Condition
		want  bool
	}{
		{"ill", nil, []v1.Condition{ill, ill, ill}, true},
		{"ill for a moment", nil, []v1.Condition{ill, ill, well, ill, ill, well}, false},
		{"ill before", []string{"ControlPlane"}, []v1.Condition{ill, ill, ill, ill}, false},
		{"ill otherwise before", []string{"ValidVerdicts"}, []v1.Condition{ill, ill, ill}, true},
		{"starts", nil, []v1.Condition{starts, starts, starts, starts}, false},
		{"no pod", nil, slicesOf(condition("Ready", "False", "NoAttachPoint"), 4), false},
		{"cannot run", nil, slicesOf(condition("Ready", "False", "ModuleFailed"), 3), true},
		{"no verdicts", nil, slicesOf(condition("ValidVerdicts", "False", "InvalidVerdict"), 3), true},
	} {
		g := &guard{windows: map[string]window{}, counts: map[string]*trialState{}}
		m, got := inRollout(nil), ""
		for _, p := range c.polls {
			if got == "" { // after a rollback the node samples no more
				got = g.rollbackReason(m, trial{Version: m.Version(), Bad: c.bad}, observed(0, 0, p))
			}
		}
		if (got != "") != c.want || c.want && !strings.Contains(got, "why") {
			t.Errorf("%s: %q", c.name, got)
		}
	}
}

func slicesOf(c v1.Condition, n int) (out []v1.Condition) {
	for range n {
		out = append(out, c)
	}
	return out
}

// The baseline of a new version has the agent's counts of the last hours. After a failed version it starts after that
// version.
func TestDropBaseline(t *testing.T) {
	g := &guard{windows: map[string]window{}, counts: map[string]*trialState{}}
	if got := g.windows["web"].share(traffic{1000, 100}); got != 0.1 {
		t.Errorf("without samples: %v", got)
	}
	sample := func(packets, drops uint64) {
		g.sample([]v1.Module{observed(packets, drops)})
		w := g.windows["web"]
		w.rotated = w.rotated.Add(-sampleTime)
		g.windows["web"] = w
	}
	sample(1000, 1000)
	sample(2000, 1000)
	sample(3000, 1000)
	if got := g.windows["web"].share(traffic{4000, 1500}); got != 0.25 {
		t.Errorf("drops of hours ago count: %v", got)
	}
	m := inRollout(new(int))
	g.rollbackReason(m, trial{Version: m.Version()}, observed(4000, 1500))
	if why := g.rollbackReason(m, trial{Version: m.Version()}, observed(5000, 2500)); why == "" {
		t.Fatal("a version that drops all packets stays")
	}
	if got := g.windows["web"].share(traffic{6000, 2500}); got != 0 {
		t.Errorf("drops of the version that failed count: %v", got)
	}
}

// An unreadable file of trials does not prevent a start, and a readable one prevents a retry of the failed version.
func TestTrialsOnDisk(t *testing.T) {
	dir, m := t.TempDir(), inRollout(nil)
	m.Metadata.Generation = 7
	file := filepath.Join(dir, rolloutsFile)
	for _, c := range []struct{ text, runs string }{
		{`{"web": {"version": "` + m.Version() + `", "failure": "drops"}}`, "counter"},
		{`{"web": {"version": "another", "failure": "drops"}}`, "firewall"},
		{`{"web": {"version": "` + m.Version() + `"}}`, "firewall"},
		{`{"web": {"version": "` + m.Version() + `", "failure": "drops", "limit": 3}}`, "firewall"},
		{`{"we`, "firewall"}, {`null`, "firewall"}, {``, "firewall"},
	} {
		if err := os.WriteFile(file, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		s := newState("n1")
		g, err := newGuard(dir, s)
		if g == nil || (err != nil) != (c.text == `{"we` || c.text == "") {
			t.Errorf("%s: %v", c.text, err)
		}
		s.moduleHandler(ofClusterModules).Replace([]api.Module{m})
		if got := s.view().modules[0].Spec.Package.Name; got != c.runs {
			t.Errorf("with %s the node runs %s", c.text, got)
		}
		r := s.rollouts().failed
		if back := c.runs == "counter"; back != (len(r) == 1) || back && (r[0].Message != "drops" || r[0].Generation != 7) {
			t.Errorf("with %s the node reports %+v", c.text, r)
		}
	}
}
