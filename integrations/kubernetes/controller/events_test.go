// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
	"github.com/kerb-edge/kerb/integrations/kubernetes/events"
	"github.com/kerb-edge/kerb/integrations/kubernetes/watch/watchtest"
	"github.com/kerb-edge/kerb/internal/lab/wait"
)

// recorded advances a drill as the controller does, and collects the Events of the changes that it would write.
type recorded struct {
	*drill
	s    *state
	all  []string
	text string // of the last one
}

func newRecorded(d *drill) *recorded {
	return &recorded{drill: d, s: newState()}
}

// ticks makes some comparisons, two seconds apart.
func (r *recorded) ticks(n int) {
	for range n {
		r.now = r.now.Add(2e9)
		before := r.s.modules["web"].Status
		m := api.ClusterModule{Metadata: r.m.Metadata, Spec: r.m.Spec, Status: before}
		is := r.s.statusOf(m, r.nodes, r.nodes, r.now)
		m.Status = &is
		for _, e := range slices.Concat(rolloutEvents(change{m, before}), problemEvents(change{m, before})) {
			r.all = append(r.all, e.Type+" "+e.Reason)
			r.text = e.Message
		}
		r.s.modules["web"] = m
		r.m.Status = m.Module().Status
	}
}

// runAll has all nodes with the version run it.
func (r *recorded) runAll() {
	for i, n := range r.nodes {
		if r.m.Updated(n.Metadata.Name) {
			r.run(i)
		}
	}
}

// same compares what was recorded since the last call.
func (r *recorded) expectEvents(want ...string) {
	r.t.Helper()
	if !slices.Equal(r.all, want) {
		r.t.Errorf("recorded %q, want %q", r.all, want)
	}
	r.all = nil
}

// Each step of a rollout is one Event, and what does not change is none.
func TestEventsOfRollout(t *testing.T) {
	r := newRecorded(newDrill(t, 40, api.Rollout{SoakSeconds: new(0), Waves: []int{50, 100}, Nodes: []string{"n07"}}))
	r.ticks(3)
	r.expectEvents("Normal RolloutStarted")
	r.checked()
	r.ticks(3)
	r.expectEvents("Normal RolloutCanaries")
	if !strings.Contains(r.text, "n07") {
		t.Error(r.text)
	}
	r.m.Spec.Rollout.Paused = true
	r.runAll()
	r.ticks(3)
	r.expectEvents("Normal RolloutPaused")
	r.m.Spec.Rollout.Paused = false
	r.ticks(3)
	r.expectEvents("Normal RolloutWave")
	r.runAll()
	r.report(7, api.RolledBack, 7)
	r.ticks(3)
	r.expectEvents("Warning RolloutHalted", "Warning RolledBack")
	if !strings.HasPrefix(r.text, "n07: ") {
		t.Error(r.text)
	}
	r.run(7)
	of := r.s.modules["web"]
	rollout := *of.Status.Rollout
	rollout.Halted, rollout.Since = nil, r.now // kubectl kerb rollout resume
	status := *of.Status
	status.Rollout = &rollout
	of.Status = &status
	r.s.modules["web"], r.m.Status = of, &api.ModuleStatus{Rollout: &rollout}
	r.ticks(1)
	for range 3 {
		r.runAll()
		r.ticks(2)
	}
	if len(r.all) < 2 || r.all[len(r.all)-1] != "Normal RolloutCompleted" {
		t.Errorf("recorded %q", r.all)
	}
	r.all = nil
	r.m.Spec.Rollout.Percent, r.m.Spec.Rollout.Nodes = new(0), nil
	r.ticks(3)
	r.expectEvents("Normal RolloutUndone")
}

// What nodes report is one Event for each reason, whatever their number, also without a rollout.
func TestEventsOfNodes(t *testing.T) {
	r := newRecorded(newDrill(t, 100, api.Rollout{}))
	r.m.Spec.Rollout = nil
	r.ticks(2)
	r.expectEvents()
	for i := range 50 {
		r.nodes[i].Status = &api.KerbNodeStatus{Modules: []api.ModuleReport{{Name: "web", Reason: "Refused",
			Message: fmt.Sprint("kernel ", i%20)}}}
	}
	r.ticks(2)
	r.expectEvents("Warning Refused")
	r.nodes[60].Status = r.nodes[0].Status
	r.ticks(2)
	r.expectEvents()
	r.nodes[61].Status = &api.KerbNodeStatus{Modules: []api.ModuleReport{{Name: "web", Reason: "PackageUnavailable"}}}
	r.ticks(2)
	r.expectEvents() // ten entries of the status are taken
	for i := range 60 {
		r.nodes[i].Status = nil
	}
	r.ticks(2)
	r.expectEvents("Warning PackageUnavailable")
}

// A node that was taken over cannot forge Events of a rollout: any unknown reason becomes one of its own, once.
func TestEventsOfUnknownReasons(t *testing.T) {
	r := newRecorded(newDrill(t, 10, api.Rollout{}))
	r.m.Spec.Rollout = nil
	for i, reason := range []string{rolloutHalted, rolloutCompleted, "", "a reason\nwith lines"} {
		r.nodes[i].Status = &api.KerbNodeStatus{Modules: []api.ModuleReport{{Name: "web", Reason: reason}}}
	}
	r.ticks(2)
	r.expectEvents("Warning NodeProblem")
	r.nodes[5].Status = &api.KerbNodeStatus{Modules: []api.ModuleReport{{Name: "web", Reason: rolloutStarted}}}
	r.ticks(2)
	r.expectEvents()
}

// Problems that nodes report leave room for Events of rollouts.
func TestEventsOfRolloutsHaveRoom(t *testing.T) {
	limits := events.Limits{Burst: 1, Every: time.Hour, Same: time.Hour, Retry: time.Second}
	r := recorders{rollouts: events.New(nil, leaseName, "h", limits, nil),
		problems: events.New(nil, leaseName, "h", limits, nil)}
	problems := api.ClusterModuleStatus{Problems: []api.Problem{{Reason: "Refused", Nodes: 1, Node: "n1"}}}
	m := api.ClusterModule{Status: &problems}
	for i := range 1000 {
		m.Metadata.Name = fmt.Sprint("m", i)
		r.record(change{m, nil})
	}
	before := r.rollouts.Counts().Dropped
	m.Status = &api.ClusterModuleStatus{Rollout: &api.RolloutStatus{Version: "v"}, Conditions: []api.Condition{
		{Type: conditionRolledOut, Status: "False", Reason: api.CheckFailed}}}
	r.record(change{m, nil})
	if r.rollouts.Counts().Dropped != before || before != 0 || r.problems.Counts().Dropped < 900 {
		t.Errorf("dropped: %+v of rollouts, %+v of problems", r.rollouts.Counts(), r.problems.Counts())
	}
}

// A process writes none of the Events that it has queued before another one led: they would be those of long ago. Those
// of a process whose Lease has only ended, as without an API server, are kept: their statuses are written, and no
// process records them again.
func TestEventsOfFormerLeader(t *testing.T) {
	limits := events.Limits{Burst: 1, Every: time.Hour, Same: time.Hour, Retry: time.Second}
	r := recorders{rollouts: events.New(nil, leaseName, "h", limits, nil),
		problems: events.New(nil, leaseName, "h", limits, nil)}
	m := api.ClusterModule{Status: &api.ClusterModuleStatus{Rollout: &api.RolloutStatus{Version: "v"},
		Problems: []api.Problem{{Reason: "Refused", Nodes: 1, Node: "n1"}}}}
	r.record(change{m, nil})
	server := &leases{}
	s, e := newState(), &elector{client: watchtest.Client(t, server), identity: "a"}
	turn := func(what string, try, leads bool, dropped int) {
		t.Helper()
		if try {
			if err := e.try(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		s.turn(t.Context(), nil, e, r, nil)
		if n := r.counts().Dropped; n != dropped || s.leads != leads {
			t.Errorf("%s: %d Events are dropped, want %d; leads: %v", what, n, dropped, s.leads)
		}
	}
	held := func(holder string) {
		server.Lock()
		defer server.Unlock()
		server.holder, server.version = holder, server.version+1
	}
	turn("the first process", true, true, 0)
	e.waits(leaseTime)
	turn("its Lease has ended", false, false, 0)
	turn("it has the Lease again", true, true, 0)
	e.waits(leaseTime)
	held("b")
	turn("its Lease has ended again", false, false, 0)
	turn("another process has it", true, false, 2)
	e.waits(leaseTime)
	turn("the other one has ended", true, true, 2)
	r.record(change{m, nil})
	e.waits(leaseTime)
	held(noHolder)
	turn("another one has had it, and given it back", true, true, 4)
	r.record(change{m, nil})
	e.waits(leaseTime)
	turn("the Lease has ended again", false, false, 4)
}

// A node that was taken over can halt a rollout by the report that a check has failed. The Event quotes what it says,
// cut, and without control characters.
func TestForgedCheckHalts(t *testing.T) {
	d := newDrill(t, 20, api.Rollout{}).checked()
	d.nodes[3].Status.Modules = []api.ModuleReport{{Name: "web", Generation: 7, Reason: api.CheckFailed,
		Message: "a\x1b[2Jb\r\nc" + strings.Repeat("x", 5000)}}
	d.nodes[3] = usedFields(d.nodes[3])
	r := newRecorded(d)
	var written struct{ Reason, Message string }
	writer := events.New(watchtest.Client(t, http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if err := json.NewDecoder(q.Body).Decode(&written); err != nil {
			t.Error(err)
		}
		fmt.Fprint(w, "{}")
	})), leaseName, "h", eventLimits, slog.New(slog.DiscardHandler))
	r.ticks(1)
	r.expectEvents("Warning RolloutHalted", "Warning CheckFailed")
	of := r.s.modules["web"]
	writer.Record(rolloutEvents(change{of, nil})[0])
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { writer.Run(ctx) })
	wait.Until(t, "the Event is written", func() bool { return writer.Counts().Written == 1 })
	cancel()
	running.Wait()
	text := written.Message
	if written.Reason != rolloutHalted || !strings.Contains(text, "; kubectl kerb rollout undo web") ||
		!strings.Contains(text, ": n03 a [2Jb  cxxx") || strings.Count(text, "x") > maxSaid {
		t.Errorf("%s %q", written.Reason, text)
	}
}
