// SPDX-License-Identifier: Apache-2.0

package node

import (
	"testing"
	"time"

	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
)

// In waves, a node runs a new version only after checking it, and does not start it while the rollout is halted. A
// failed check is repeated periodically, and immediately for another version.
func TestChecksPrecedeVersions(t *testing.T) {
	s, m := newState("n1"), inRollout(nil)
	r := *m.Spec.Rollout
	r.Percent, r.Nodes = nil, nil
	m.Spec.Rollout = &r
	set := func(p *api.RolloutStatus) {
		m.Status = &api.ModuleStatus{Rollout: p}
		s.moduleHandler(ofClusterModules).Replace([]api.Module{m})
	}
	expect := func(what, runs string, unchecked, checked, failed int) {
		t.Helper()
		if got := s.view().modules[0].Spec.Package.Name; got != runs {
			t.Errorf("%s: the node runs %s", what, got)
		}
		if n := len(s.unchecked()); n != unchecked {
			t.Errorf("%s: %d versions to check", what, n)
		}
		if r := s.rollouts(); len(r.checked) != checked || len(r.failed) != failed || len(r.begun) != 0 {
			t.Errorf("%s: the node reports %+v", what, r)
		}
	}
	version := m.Version()
	set(&api.RolloutStatus{Version: version, Percent: 100})
	expect("not checked", "counter", 1, 0, 0)
	s.checks["web"] = check{Version: version, Failure: "no", at: time.Now()}
	expect("could not run it", "counter", 0, 0, 1)
	s.checks["web"] = check{Version: version, Failure: "no", at: time.Now().Add(-2 * fullEvery)}
	expect("could not some time ago", "counter", 1, 0, 1)
	s.checks["web"] = check{Version: "another", at: time.Now()}
	expect("another version was checked", "counter", 1, 0, 0)
	s.checks["web"] = check{Version: version, at: time.Now()}
	expect("checked", "firewall", 0, 1, 0)
	set(&api.RolloutStatus{Version: version, Percent: 100, Halted: &api.Halt{Reason: "NodesFailed"}})
	expect("halted before it began", "counter", 0, 1, 0)
	set(&api.RolloutStatus{Version: "another", Percent: 100, Canaries: []string{"n1"}})
	expect("the percentage of another version", "counter", 0, 1, 0)
	s.trials["web"] = trial{Version: version}
	set(&api.RolloutStatus{Version: version, Percent: 100, Halted: &api.Halt{Reason: "NodesFailed"}})
	if got := s.view().modules[0].Spec.Package.Name; got != "firewall" {
		t.Errorf("halted after it began: the node runs %s", got)
	}
}
