// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"testing"
	"time"

	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
)

func (d *drill) resume(accepted int) {
	p := *d.m.Status.Rollout
	p.Halted, p.Accepted, p.Since = nil, accepted, d.now
	d.m.Status.Rollout = &p
}

// Nodes that could not run the version, and that resume has accepted, do not allow others to fail.
func TestAcceptedIsNoAllowance(t *testing.T) {
	d := newDrill(t, 60, api.Rollout{SoakSeconds: new(10), Nodes: []string{"n01", "n02"}}).checked()
	for i := 50; i < 58; i++ {
		d.report(i, api.CheckFailed, 7)
	}
	d.tick(0)
	d.expect("False", api.CheckFailed, "8 of 60")
	d.resume(8)
	has := d.tick(2)
	for _, i := range has {
		d.report(i, api.RolledBack, 7)
	}
	d.same(has, d.tick(2), "all canaries went back")
	d.expect("False", reasonFailed, "nodes do not run the new version")
}

// A version that no node runs, or could run, halts even within maxFailed.
func TestNoNodeRuns(t *testing.T) {
	d := newDrill(t, 10, api.Rollout{SoakSeconds: new(0), MaxFailed: 5, Nodes: []string{"n01"}}).checked()
	d.tick(0)
	d.report(1, api.RolledBack, 7)
	d.same([]int{1}, d.tick(2), "the only canary went back")
	d.expect("False", reasonFailed, "1 of 1")

	d = newDrill(t, 2, api.Rollout{MaxFailed: 5})
	d.report(0, api.CheckFailed, 7)
	d.report(1, api.CheckFailed, 7)
	d.tick(0)
	d.expect("False", api.CheckFailed, "2 of 2")
}

// Once complete, a rollout reports, and new nodes run the version, also after a restart of the controller.
func TestCompleteDoesNotHalt(t *testing.T) {
	d := newDrill(t, 10, api.Rollout{SoakSeconds: new(0), Nodes: []string{"n01"}}).checked()
	for range 12 {
		d.run(d.tick(2)...)
	}
	d.expect("True", reasonComplete, "100 %")
	d.report(4, "ModuleFailed", 7)
	d.tick(7 * 86400)
	d.expect("True", reasonComplete, "1 failed")
	m := api.ClusterModule{Metadata: d.m.Metadata, Spec: d.m.Spec, Status: &api.ClusterModuleStatus{
		Rollout: d.m.Status.Rollout, Conditions: []api.Condition{d.last}}}
	s := &state{waves: map[string]*wave{}}
	if is := s.statusOf(m, d.nodes, d.now.Add(time.Hour)); is.Rollout.Halted != nil {
		t.Errorf("another process halts it: %+v", is.Rollout.Halted)
	}
	s.forget()
	if len(s.waves) != 0 || !s.changed {
		t.Errorf("a process that does not lead remembers %v", s.waves)
	}
}

// The deadline of a node that falls silent begins then.
func TestSilentForAMoment(t *testing.T) {
	d := newDrill(t, 10, api.Rollout{SoakSeconds: new(3600), Nodes: []string{"n01"}}).checked()
	d.run(d.tick(0)...)
	d.tick(2)
	d.tick(400)
	d.nodes[1].Status.Updated = nil // its agent starts
	d.tick(2)
	d.expect("False", reasonCanaries, "1 have not answered")
	d.tick(300)
	d.expect("False", reasonSilent, "n01")
}

// A version that mends one that is ill reaches the node that reports it.
func TestMendsAVersion(t *testing.T) {
	d := newDrill(t, 10, api.Rollout{SoakSeconds: new(10), Nodes: []string{"n01"}}).checked()
	d.report(1, "ModuleFailed", 7) // before the rollout has reached it
	d.check(1)
	d.tick(0)
	if d.tick(2); d.m.Progress().Halted != nil {
		t.Fatalf("%+v", d.last)
	}
	d.run(1)
	d.tick(2)
	if wave := d.tick(12); len(wave) < 2 {
		t.Errorf("nodes %v, %+v", wave, d.last)
	}
}
