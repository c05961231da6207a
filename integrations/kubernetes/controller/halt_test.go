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
	s := newState()
	if is := s.statusOf(m, d.nodes, nil, d.now.Add(time.Hour)); is.Rollout.Halted != nil {
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

// A node that is lost after it has said that it runs the version does not answer: a canary halts the rollout at the
// deadline, and of a wave it holds the next one until then. What it has said of a problem remains.
func TestLostNodes(t *testing.T) {
	d := newDrill(t, 40, api.Rollout{SoakSeconds: new(60), DeadlineSeconds: new(100), Waves: []int{50, 100},
		Nodes: []string{"n01"}}).checked()
	canary := d.tick(0)
	d.run(canary...)
	d.tick(2)
	d.lost = map[string]bool{"n01": true}
	d.same(canary, d.tick(60), "the canary is lost while it soaks")
	d.expect("False", reasonCanaries, "0 run it, 0 failed, 1 have not answered")
	d.same(canary, d.tick(100), "the canary is lost")
	d.expect("False", reasonSilent, "n01 has not answered")

	d = newDrill(t, 40, api.Rollout{SoakSeconds: new(60), DeadlineSeconds: new(100), Waves: []int{50, 100}}).checked()
	d.run(d.tick(0)...)
	d.tick(2)
	wave := d.tick(60)
	d.run(wave...)
	d.tick(2)
	d.lost = map[string]bool{d.nodes[wave[0]].Metadata.Name: true}
	d.same(wave, d.tick(60), "a node of a wave is lost")
	d.same(wave, d.tick(100), "its wave soaks from its deadline on")
	d.lost = nil
	d.report(wave[0], api.RolledBack, 7)
	d.lost = map[string]bool{d.nodes[wave[0]].Metadata.Name: true}
	d.tick(2)
	d.expect("False", reasonFailed, "RolledBack")

	d = newDrill(t, 2, api.Rollout{DeadlineSeconds: new(100)}).checked()
	d.lost = map[string]bool{"n00": true, "n01": true}
	d.same(nil, d.tick(1000), "nodes that are lost have checked the version")
}

// Events of Nodes count if their readiness changes, and a node that is lost later does not change the status of a
// rollout that is complete.
func TestLostAfterComplete(t *testing.T) {
	d := newDrill(t, 3, api.Rollout{SoakSeconds: new(0)}).checked()
	s := newState()
	m := api.ClusterModule{Metadata: d.m.Metadata, Spec: d.m.Spec}
	d.run(0, 1, 2)
	host := func(name, status string) (n api.Node) {
		n.Metadata.Name, n.Metadata.ResourceVersion = name, d.now.String()
		n.Status.Conditions = []api.NodeCondition{{Type: "MemoryPressure", Status: status}, {Type: "Ready", Status: status}}
		return n
	}
	same := func(m api.ClusterModule) api.ClusterModule { return m }
	handler(s, ofModules, s.modules, same).Replace([]api.ClusterModule{m})
	handler(s, ofNodes, s.nodes, usedFields).Replace(d.nodes)
	if s.due(d.now) != nil {
		t.Fatal("rollouts continue before it is known which nodes are Ready")
	}
	hosts := handler(s, ofHosts, s.hosts, readiness)
	hosts.Replace([]api.Node{host("n00", "True"), host("n01", "True")})
	for range 8 {
		d.now = d.now.Add(2 * time.Second)
		for name, m := range s.due(d.now) {
			s.modules[name] = m.ClusterModule
		}
	}
	if c := s.modules["web"].Status.Conditions[0]; c.Status != "True" {
		t.Fatalf("%+v", c)
	}
	if hosts.Set(host("n01", "True")); s.changed {
		t.Error("a heartbeat counts as a change")
	}
	if hosts.Set(host("n01", "Unknown")); !s.changed {
		t.Error("a node is lost, and nothing changes")
	}
	if due := s.due(d.now.Add(time.Hour)); len(due) != 0 {
		t.Errorf("written: %+v", due["web"].Status)
	}
}

// resume cannot accept all canaries: a version that no node runs goes no further. A canary that a user has named and
// that cannot run the version does not stand for others of its kind.
func TestResumedWithoutCanaries(t *testing.T) {
	d := newDrill(t, 20, api.Rollout{SoakSeconds: new(10), MaxFailed: 3, Nodes: []string{"n01", "n02"}}).checked()
	canaries := d.tick(0)
	d.report(1, api.RolledBack, 7)
	d.report(2, api.RolledBack, 7)
	d.tick(2)
	d.expect("False", reasonFailed, "then change it, or spec.rollout.nodes")
	d.resume(2)
	d.tick(2)
	d.same(canaries, d.tick(3600), "no canary runs the version")
	d.expect("False", reasonFailed, "2 of 2")

	d = newDrill(t, 20, api.Rollout{SoakSeconds: new(10), DeadlineSeconds: new(100), Nodes: []string{"n01"}}).checked()
	canaries = d.tick(0)
	d.lost = map[string]bool{"n01": true}
	d.tick(2)
	d.tick(100)
	d.expect("False", reasonSilent, "n01 has not answered")
	d.resume(1)
	d.tick(2)
	d.same(canaries, d.tick(3600), "the only canary is lost")

	d = newDrill(t, 20, api.Rollout{SoakSeconds: new(10), Nodes: []string{"n01"}}).checked()
	d.report(1, api.CheckFailed, 7)
	d.tick(0)
	d.resume(1)
	if has := d.tick(2); len(has) != 2 {
		t.Errorf("canaries %v", has)
	}
	if d.tick(2); d.m.Progress().Halted != nil {
		t.Errorf("halted before a canary has answered: %+v", d.last)
	}
}
