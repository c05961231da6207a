// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
)

// drill is a rollout over nodes that say what a test has them say.
type drill struct {
	t     *testing.T
	m     api.Module
	nodes []api.KerbNode
	wave  wave
	now   time.Time
	last  api.Condition
	lost  map[string]bool // nodes that are not Ready
}

func newDrill(t *testing.T, nodes int, r api.Rollout) *drill {
	t.Helper()
	r.Previous = api.Previous{Package: api.Package{Name: "old"}}
	d := &drill{t: t, now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), m: api.Module{Spec: api.ModuleSpec{
		Package: api.Package{Name: "new"}, Rollout: &r}, Metadata: api.ObjectMeta{Name: "web", Generation: 7}}}
	for i := range nodes {
		d.nodes = append(d.nodes, api.KerbNode{Metadata: api.ObjectMeta{Name: fmt.Sprintf("n%02d", i)}})
	}
	return d
}

// tick is one comparison, some seconds after the one before. It returns the nodes that have the version.
func (d *drill) tick(seconds int) (has []int) {
	d.t.Helper()
	d.now = d.now.Add(time.Duration(seconds) * time.Second)
	p, c := advance(d.m, api.Silence(d.nodes, d.lost), &d.wave, d.now)
	d.m.Status, d.last = &api.ModuleStatus{Rollout: p}, c
	for i, n := range d.nodes {
		if d.m.Updated(n.Metadata.Name) {
			has = append(has, i)
		}
	}
	return has
}

func (d *drill) run(nodes ...int) {
	for _, i := range nodes {
		d.nodes[i].Status = &api.KerbNodeStatus{Updated: []api.NodeVersion{{Name: "web", Version: d.m.Version()}}}
	}
}

// check has nodes say that they could run the version, and the rest of their status be as it is.
func (d *drill) check(nodes ...int) {
	for _, i := range nodes {
		if d.nodes[i].Status == nil {
			d.nodes[i].Status = &api.KerbNodeStatus{}
		}
		d.nodes[i].Status.Checked = []api.NodeVersion{{Name: "web", Version: d.m.Version()}}
	}
}

// checked is a drill whose nodes have all checked the version.
func (d *drill) checked() *drill {
	for i := range d.nodes {
		d.check(i)
	}
	return d
}

// report has a node say that something is wrong, with the version if the rollout has reached the node.
func (d *drill) report(i int, reason string, generation int64) {
	has := d.m.Updated(d.nodes[i].Metadata.Name)
	d.nodes[i].Status = &api.KerbNodeStatus{Modules: []api.ModuleReport{{Name: "web", Reason: reason,
		Generation: generation, Message: strings.Repeat("what the node says ", 30)}}}
	if has && !api.OfNew(reason) {
		d.nodes[i].Status.Updated = []api.NodeVersion{{Name: "web", Version: d.m.Version()}}
	}
}

// expect compares the condition with status, reason and a part of its message.
func (d *drill) expect(status, reason, message string) {
	d.t.Helper()
	if d.last.Status != status || d.last.Reason != reason || !strings.Contains(d.last.Message, message) {
		d.t.Fatalf("condition %+v, want %s %s with %q", d.last, status, reason, message)
	}
	if n := len([]rune(d.last.Message)); n > maxMessage {
		d.t.Errorf("a message of %d runes", n)
	}
}

func (d *drill) same(a, b []int, what string) {
	d.t.Helper()
	if !reflect.DeepEqual(a, b) {
		d.t.Fatalf("%s: nodes %v, before %v", what, b, a)
	}
}

// Waves follow each other when all their nodes run the version, and have done so for the soak time.
func TestWaves(t *testing.T) {
	d := newDrill(t, 60, api.Rollout{SoakSeconds: new(10), Nodes: []string{"n07"}}).checked()
	canary := d.tick(0)
	d.same([]int{7}, canary, "the canary alone")
	d.expect("False", reasonCanaries, "0 have not answered"[1:])
	d.same(canary, d.tick(30), "the canary has not answered")
	d.run(7)
	d.same(canary, d.tick(2), "the canary has just answered")
	d.same(canary, d.tick(9), "the canary has to soak")
	before := d.tick(1)
	waves := 1
	for ; d.m.Status.Rollout.Percent < 100; waves++ {
		d.same(before, d.tick(30), "a wave that has not answered")
		d.run(before...)
		d.nodes[before[waves%len(before)]].Status = nil
		d.same(before, d.tick(2), "a wave of which one node has not answered")
		d.expect("False", reasonWaves, "1 have not answered")
		d.run(before...)
		d.tick(2)
		next := d.tick(10)
		if len(next) <= len(before) {
			t.Fatalf("a wave of %d nodes after one of %d", len(next), len(before))
		}
		before = next
	}
	if waves != 4 || len(before) != 60 {
		t.Errorf("%d waves, %d nodes", waves, len(before))
	}
	d.tick(2)
	d.expect("False", reasonWaves, "60 nodes")
	d.run(before...)
	d.tick(2)
	d.expect("True", reasonComplete, "60 run it")
	d.m.Spec.Package.Name = "newer"
	d.same(nil, d.tick(2), "another version")
	d.expect("False", reasonPreflight, "60 have not answered")
}

// More failed nodes than are allowed halt the rollout, with what they say, until a user resumes it.
func TestHalt(t *testing.T) {
	d := newDrill(t, 40, api.Rollout{SoakSeconds: new(0), Waves: []int{20, 60, 100}, MaxFailed: 1}).checked()
	d.run(d.tick(0)...)
	wave := d.tick(0)
	d.run(wave...)
	d.report(wave[1], api.RolledBack, 6)
	d.same(wave, d.tick(1), "a report about an earlier generation is no answer")
	d.report(wave[1], api.RolledBack, 7)
	next := d.tick(1)
	if len(next) <= len(wave) {
		t.Fatal("one failed node of one that is allowed stops the rollout")
	}
	d.run(next...)
	d.report(wave[0], "Refused", 7)
	d.report(wave[1], api.RolledBack, 7)
	d.report(next[len(next)-1], "Refused", 7)
	d.same(next, d.tick(1), "three nodes have failed")
	d.expect("False", reasonFailed, "3 of ")
	d.expect("False", reasonFailed, "Refused: what the node says")
	d.expect("False", reasonFailed, "kubectl kerb rollout undo web")
	d.run(next...)
	d.same(next, d.tick(1000), "the nodes are well again: only a user resumes")
	d.expect("False", reasonFailed, "3 of ")
	if !d.m.Holds() {
		t.Error("nodes begin while the rollout has halted")
	}

	d.report(wave[0], "Refused", 7)
	d.m.Status.Rollout.Halted, d.m.Status.Rollout.Accepted, d.m.Status.Rollout.Since = nil, 1, d.now
	if d.tick(1); d.m.Status.Rollout.Percent != 100 {
		t.Errorf("resumed: %+v", d.m.Status.Rollout)
	}
	d.report(wave[1], "Refused", 7)
	d.tick(1)
	d.expect("False", reasonFailed, "2 of 40")
}

// Nodes that are offline hold a wave until its deadline. Canaries that do not answer halt it then, and so do most
// nodes of a wave.
func TestSilentNodes(t *testing.T) {
	d := newDrill(t, 40, api.Rollout{SoakSeconds: new(0), DeadlineSeconds: new(100), Waves: []int{50, 100}}).checked()
	d.run(d.tick(0)...)
	wave := d.tick(0)
	d.run(wave[len(wave)/4:]...)
	d.same(wave, d.tick(99), "some are silent before the deadline")
	if next := d.tick(1); len(next) != 40 {
		t.Fatalf("%d nodes after the deadline", len(next))
	}
	d.tick(99)
	d.expect("False", reasonWaves, "have not answered")
	d.tick(1)
	d.expect("False", reasonSilent, "has not answered; ")

	d = newDrill(t, 40, api.Rollout{SoakSeconds: new(0), DeadlineSeconds: new(100),
		Nodes: []string{"n01", "n02"}}).checked()
	d.tick(0)
	d.run(1)
	d.same([]int{1, 2}, d.tick(99), "a canary is silent")
	d.expect("False", reasonCanaries, "1 have not answered")
	d.same([]int{1, 2}, d.tick(1), "a canary was silent until the deadline")
	d.expect("False", reasonSilent, "n02 has not answered")

	d = newDrill(t, 40, api.Rollout{SoakSeconds: new(0), DeadlineSeconds: new(100),
		Nodes: []string{"edge-7"}}).checked()
	has := d.tick(0)
	d.run(has...)
	d.same(has, d.tick(100), "a canary is no node of the cluster")
	d.expect("False", reasonSilent, "edge-7 has not answered")
}

// A rollout that is paused continues where it was, and one without nodes waits for some.
func TestPaused(t *testing.T) {
	d := newDrill(t, 0, api.Rollout{SoakSeconds: new(0)})
	d.tick(0)
	d.tick(1000)
	if d.m.Status.Rollout.Percent != 0 {
		t.Fatal("waves without nodes")
	}
	nodes := newDrill(t, 40, api.Rollout{}).checked().nodes
	d.nodes, d.m.Spec.Rollout.Paused = nodes, true
	d.same(nil, d.tick(1), "paused before the canaries")
	d.m.Spec.Rollout.Paused = false
	canary := d.tick(1)
	d.m.Spec.Rollout.Paused = true
	d.run(canary...)
	d.same(canary, d.tick(1), "paused")
	d.expect("False", reasonPaused, "resume web continues it")
	d.m.Spec.Rollout.Paused = false
	if has := d.tick(1); len(has) <= 1 {
		t.Fatal("no wave after the pause")
	}
}

// One node of each kernel and architecture is a canary, besides those that a user has named. If one of them refuses the
// version, no other node begins.
func TestCanaries(t *testing.T) {
	d := newDrill(t, 40, api.Rollout{SoakSeconds: new(0), Nodes: []string{"n03"}})
	kinds := []api.KerbNodeStatus{{Kernel: "6.1.0-28-amd64", Architecture: "amd64"},
		{Kernel: "6.1.0-31-amd64", Architecture: "amd64"}, {Kernel: "6.12.9", Architecture: "amd64"},
		{Kernel: "6.12.9", Architecture: "arm64"}, {Kernel: "5.15", Architecture: "arm64"},
		{Kernel: "6", Architecture: "amd64"}}
	for i := range d.nodes {
		status := kinds[i%len(kinds)]
		d.nodes[i].Status = &status
		d.check(i)
	}
	has := d.tick(0) // n03 is the only one of its kind that is needed
	got := map[int]int{}
	for _, i := range has {
		got[i%len(kinds)]++
	}
	if len(has) != 5 || got[0]+got[1] != 1 || got[2] != 1 || got[3] != 1 || got[4] != 1 || got[5] != 1 || has[0] > 3 {
		t.Fatalf("canaries %v", has)
	}
	d.run(has...)
	d.report(has[2], "Refused", 7)
	d.same(has, d.tick(1), "the verifier of one kernel has refused the version")
	d.expect("False", reasonFailed, "1 of 5 nodes")

	d = newDrill(t, 70, api.Rollout{})
	for i := range d.nodes {
		d.nodes[i].Status = &api.KerbNodeStatus{Kernel: fmt.Sprintf("7.%d.3", i)}
		d.check(i)
	}
	if has := d.tick(0); len(has) != api.MaxCanaries {
		t.Errorf("%d canaries of 70 kernels", len(has))
	}
}

// No node begins before all that answer have checked the version. One whose kernel refuses it halts the rollout, unless
// that is allowed; it is no canary then.
func TestPreflight(t *testing.T) {
	d := newDrill(t, 20, api.Rollout{DeadlineSeconds: new(100), MaxFailed: 1})
	d.tick(0)
	d.same(nil, d.tick(1000), "no node answers")
	d.expect("False", reasonPreflight, "0 could run the new version, 0 could not, 20 have not answered")
	d.checked()
	for _, i := range []int{3, 4} {
		d.report(i, api.CheckFailed, 6)
	}
	d.report(5, "ModuleFailed", 7) // of the version that runs
	d.m.Status = nil
	d.same(nil, d.tick(0), "two nodes have not checked this generation")
	d.same(nil, d.tick(99), "before the deadline")
	d.report(3, api.CheckFailed, 7)
	if has := d.tick(1); len(has) != 1 || has[0] == 3 {
		t.Fatalf("canaries %v, with one node of one that may fail", has)
	}

	d = newDrill(t, 20, api.Rollout{MaxFailed: 1}).checked()
	d.report(3, api.CheckFailed, 7)
	d.report(4, api.CheckFailed, 7)
	d.same(nil, d.tick(0), "two nodes cannot run it")
	d.expect("False", api.CheckFailed, "2 of 20 nodes do not run")
	d.expect("False", api.CheckFailed, "n03 what the node says")
	d.m.Status.Rollout.Halted, d.m.Status.Rollout.Accepted = nil, 2
	if has := d.tick(1); len(has) != 1 {
		t.Errorf("resumed: %v", has)
	}
}
