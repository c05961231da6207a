// SPDX-License-Identifier: Apache-2.0

package apply_test

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kerb-edge/kerb/internal/apply"
	"github.com/kerb-edge/kerb/internal/apply/fake"
	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/plan"
)

func chainOf(side chain.Side, members ...string) chain.Spec {
	c := chain.Spec{Linker: "test", Side: side, Direction: chain.Egress}
	for _, m := range members {
		c.Members = append(c.Members, chain.Member{Name: m[:1], ID: m})
	}
	return c
}

func tc(ifindex int) chain.Point { return chain.Point{Ifindex: ifindex, Side: chain.OnTCIngress} }

// desired has the map sets of all members of its chains.
func desired(points map[chain.Point]chain.Spec) plan.Desired {
	d := plan.Desired{MapSets: map[string]string{}, Points: points}
	for _, c := range points {
		for _, m := range c.Members {
			d.MapSets[m.Name] = m.ID
		}
	}
	return d
}

// with gives a module other values.
func with(d plan.Desired, module, values string) plan.Desired {
	d.Values = map[string]string{module: values}
	return d
}

// Two desired states. What leads from the one to the other has steps of all kinds.
var (
	before = with(desired(map[chain.Point]chain.Spec{
		tc(1): chainOf(chain.OnTCIngress, "a1", "b1"), tc(2): chainOf(chain.OnTCIngress, "b1", "c1"),
		tc(4): chainOf(chain.OnTCIngress, "a1", "b1")}), "b", "old")
	after = with(desired(map[chain.Point]chain.Spec{
		tc(1): chainOf(chain.OnTCIngress, "a2", "b1"), tc(3): chainOf(chain.OnTCIngress, "d1"),
		tc(4): chainOf(chain.OnTCIngress, "b1")}), "b", "new")
)

// strict is the policy of a change: busy points are errors.
func strict() apply.Policy {
	return apply.Policy{Skip: func(chain.Point) bool { return false }, Commit: func() error { return nil }}
}

// lenient is the policy of a reconciliation.
func lenient() apply.Policy {
	return apply.Policy{Skip: func(chain.Point) bool { return true }, Commit: func() error { return nil }}
}

func converge(k *fake.Kernel, want plan.Desired, p apply.Policy) (apply.Result, error) {
	return apply.Converge(k, want, p, slog.New(slog.DiscardHandler))
}

// deployed is a kernel that runs a desired state on the interfaces 1 to 4.
func deployed(t *testing.T, want plan.Desired) *fake.Kernel {
	t.Helper()
	k := fake.New(1, 2, 3, 4)
	if _, err := converge(k, want, strict()); err != nil {
		t.Fatal(err)
	}
	return k
}

func observe(t *testing.T, k *fake.Kernel) chain.State {
	t.Helper()
	s, err := k.Observe()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// checkRuns fails unless the kernel runs what is desired and has nothing else. Points that are busy run nothing.
func checkRuns(t *testing.T, k *fake.Kernel, want plan.Desired, busy map[chain.Point]error) {
	t.Helper()
	state := observe(t, k)
	mapSets, chains, programs := map[string][]string{}, map[string]bool{}, map[uint32]string{}
	values := map[chain.MapSet]string{}
	for name, id := range want.MapSets {
		mapSets[name] = []string{id}
		if want.Values[name] != "" {
			values[chain.MapSet{Module: name, ID: id}] = want.Values[name]
		}
	}
	if diff := cmp.Diff(values, state.Values); diff != "" {
		t.Errorf("values, want (-), got (+):\n%s", diff)
	}
	if diff := cmp.Diff(mapSets, state.MapSets); diff != "" {
		t.Errorf("map sets, want (-), got (+):\n%s", diff)
	}
	for _, c := range state.Chains {
		chains[c.ID], programs[c.Program] = true, c.ID
	}
	points, running, wanted := map[chain.Point]string{}, map[chain.Point]string{}, map[string]bool{}
	for p, c := range want.Points {
		wanted[c.ID()] = true
		if busy[p] == nil {
			points[p] = c.ID()
		}
	}
	for _, at := range state.Points {
		running[at.Point] = programs[at.Program]
	}
	if diff := cmp.Diff(wanted, chains); diff != "" {
		t.Errorf("chains, want (-), got (+):\n%s", diff)
	}
	if diff := cmp.Diff(points, running); diff != "" {
		t.Errorf("points, want (-), got (+):\n%s", diff)
	}
	if k.Expedited() {
		t.Error("the kernel stays expedited")
	}
}

// checkSettled fails if a second plan has steps.
func checkSettled(t *testing.T, k *fake.Kernel, want plan.Desired, busy map[chain.Point]error) {
	t.Helper()
	for _, s := range plan.Steps(want, observe(t, k)) {
		if busy[s.Point] == nil || s.Action != plan.Attach {
			t.Errorf("the second plan has the step %s", s)
		}
	}
}

func TestConvergeSteps(t *testing.T) {
	k := deployed(t, before)
	r, err := converge(k, after, strict())
	if err != nil {
		t.Fatal(err)
	}
	actions := map[plan.Action]bool{}
	for _, s := range r.Steps {
		actions[s.Action] = true
	}
	if len(actions) != 8 {
		t.Errorf("the plan of this test has steps of %d kinds, want all 8: %v", len(actions), actions)
	}
	checkRuns(t, k, after, nil)
	checkSettled(t, k, after, nil)
}

// calls is how many calls lead from one desired state to the other.
func calls(t *testing.T) int {
	k := deployed(t, before)
	n := k.Calls
	if _, err := converge(k, after, strict()); err != nil {
		t.Fatal(err)
	}
	return k.Calls - n
}

// Whichever call fails, the state is as before, or as desired if only the removal of something old failed.
func TestFailureLeavesStateAsBefore(t *testing.T) {
	undone := 0
	for n := 1; n <= calls(t); n++ {
		k := deployed(t, before)
		was := observe(t, k)
		k.FailAt = k.Calls + n
		_, err := converge(k, after, strict())
		if err == nil {
			if _, err := converge(k, after, strict()); err != nil {
				t.Fatal(err)
			}
			checkRuns(t, k, after, nil)
			continue
		}
		undone++
		if !errors.Is(err, fake.ErrInjected) {
			t.Errorf("call %d: %v, want %v", n, err, fake.ErrInjected)
		}
		if diff := cmp.Diff(was, observe(t, k)); diff != "" {
			t.Errorf("call %d: before (-), after its failure (+):\n%s", n, diff)
		}
		if k.Expedited() {
			t.Errorf("call %d: the kernel stays expedited", n)
		}
	}
	if undone < 9 {
		t.Errorf("only %d calls can be undone", undone)
	}
}

// An error says whether the kernel is as before: it is not if undoing fails, too.
func TestFailedUndoIsTold(t *testing.T) {
	full := errors.New("the disk is full")
	for name, c := range map[string]struct {
		cause  error
		failed func(*fake.Kernel, *apply.Policy)
	}{
		"a step": {fake.ErrInjected, func(k *fake.Kernel, _ *apply.Policy) {
			k.OnCall = func(call string) {
				if strings.HasPrefix(call, "attach") {
					k.FailAt, k.KillAt, k.OnCall = k.Calls, k.Calls+1, nil
				}
			}
		}},
		"the commit": {full, func(k *fake.Kernel, p *apply.Policy) {
			p.Commit = func() error { k.KillAt = k.Calls + 1; return full }
		}},
	} {
		t.Run(name, func(t *testing.T) {
			k, p := deployed(t, before), strict()
			c.failed(k, &p)
			_, err := converge(k, after, p)
			var undo *apply.RollbackError
			if !errors.As(err, &undo) || !errors.Is(undo.Undo, fake.ErrKilled) || !errors.Is(undo.Err, c.cause) ||
				errors.Is(undo.Err, fake.ErrKilled) || !errors.Is(err, c.cause) {
				t.Errorf("%#v", err)
			}
			if text := fmt.Sprint(err); !strings.Contains(text, "not as before") ||
				!strings.HasPrefix(text, fmt.Sprint(undo.Err)) {
				t.Errorf("it says %q", text)
			}
		})
	}
	k := deployed(t, before)
	k.FailAt = k.Calls + 3
	var undo *apply.RollbackError
	if _, err := converge(k, after, strict()); err == nil || errors.As(err, &undo) {
		t.Errorf("a change that is undone: %v", err)
	}
}

func TestFailedCommitLeavesStateAsBefore(t *testing.T) {
	k := deployed(t, before)
	was := observe(t, k)
	p := strict()
	full := errors.New("the disk is full")
	p.Commit = func() error { return full }
	k.OnCall = func(call string) { checkUnused(t, k, call) }
	if _, err := converge(k, after, p); !errors.Is(err, full) {
		t.Errorf("%v, want %v", err, full)
	}
	if diff := cmp.Diff(was, observe(t, k)); diff != "" {
		t.Errorf("before (-), after (+):\n%s", diff)
	}
}

// checkUnused fails if a call removes a chain that runs or a map set that a chain uses.
func checkUnused(t *testing.T, k *fake.Kernel, call string) {
	t.Helper()
	state := observe(t, k)
	running := map[uint32]bool{}
	for _, p := range state.Points {
		running[p.Program] = true
	}
	for _, c := range state.Chains {
		if call == "remove chain "+c.ID && running[c.Program] {
			t.Errorf("%q, which runs", call)
		}
		for _, m := range c.Spec.Members {
			if call == "remove map set "+m.Name+"/"+m.ID {
				t.Errorf("%q, which chain %s uses", call, c.ID)
			}
		}
	}
}

// Wherever the agent is killed, the next one gets to the new state, and also to the old one: the store may have either.
func TestKilledAnywhere(t *testing.T) {
	for n := 1; n <= calls(t); n++ {
		for _, next := range []plan.Desired{before, after} {
			k := deployed(t, before)
			k.KillAt = k.Calls + n
			_, _ = converge(k, after, strict())
			k.KillAt = 0
			k.Restart()
			if _, err := converge(k, next, lenient()); err != nil {
				t.Fatalf("killed at call %d: %v", n, err)
			}
			checkSettled(t, k, next, nil)
			checkRuns(t, k, next, nil)
		}
	}
}

// Points that keep a chain run the old or the new one all the time. What is replaced is removed after the commit.
func TestOrderOfCalls(t *testing.T) {
	k := deployed(t, before)
	p := strict()
	committed := false
	p.Commit = func() error { committed = true; return nil }
	k.OnCall = func(call string) {
		state := observe(t, k)
		for _, at := range state.Points {
			if _, stays := after.Points[at.Point]; stays && at.Program == 0 {
				t.Errorf("nothing runs on %s before %q", at.Point, call)
			}
		}
		if removal := strings.HasPrefix(call, "remove"); removal != committed {
			t.Errorf("%q, with committed %t", call, committed)
		}
		if strings.HasPrefix(call, "detach") && call != "detach "+tc(2).String() {
			t.Errorf("%q", call)
		}
	}
	if _, err := converge(k, after, p); err != nil || !committed {
		t.Errorf("committed %t: %v", committed, err)
	}
}

func TestDryRunChangesNothing(t *testing.T) {
	k := deployed(t, before)
	n := k.Calls
	p := strict()
	p.DryRun, p.Commit = true, func() error { return errors.New("committed") }
	r, err := converge(k, after, p)
	if err != nil || len(r.Steps) == 0 || k.Calls != n {
		t.Errorf("%d steps, %d calls: %v", len(r.Steps), k.Calls-n, err)
	}
}

func TestLeftoversAreRemoved(t *testing.T) {
	k := deployed(t, before)
	for _, g := range []string{"a7", "x1"} { // of a module that runs, and of one that is gone
		if err := k.CreateMapSet(g[:1], g, "", ""); err != nil {
			t.Fatal(err)
		}
	}
	if err := k.CreateChain(chainOf(chain.OnXDP, "a7", "x1")); err != nil {
		t.Fatal(err)
	}
	r, err := converge(k, before, lenient())
	if err != nil || len(r.Steps) != 3 {
		t.Errorf("%d steps, want 3: %v", len(r.Steps), err)
	}
	checkRuns(t, k, before, nil)
}

func TestBusyPoint(t *testing.T) {
	k := deployed(t, before)
	was := observe(t, k)
	k.Foreign[tc(3)] = true
	if _, err := converge(k, after, strict()); !errors.Is(err, chain.ErrBusy) {
		t.Errorf("a change: %v, want %v", err, chain.ErrBusy)
	}
	if diff := cmp.Diff(was, observe(t, k)); diff != "" {
		t.Errorf("before (-), after (+):\n%s", diff)
	}
	r, err := converge(k, after, lenient())
	if err != nil || len(r.Busy) != 1 || !errors.Is(r.Busy[tc(3)], chain.ErrBusy) {
		t.Errorf("a reconciliation: busy %v: %v", r.Busy, err)
	}
	checkRuns(t, k, after, r.Busy)
	delete(k.Foreign, tc(3))
	if r, err = converge(k, after, lenient()); err != nil || len(r.Busy) > 0 {
		t.Errorf("when the point is free: busy %v: %v", r.Busy, err)
	}
	checkRuns(t, k, after, nil)
}

// An interface that vanishes between plan and attach does not stop a change.
func TestInterfaceVanishesMeanwhile(t *testing.T) {
	k := deployed(t, before)
	k.OnCall = func(call string) {
		if strings.HasPrefix(call, "attach") {
			k.OnCall = nil
			k.Vanish(3)
		}
	}
	r, err := converge(k, after, strict())
	if err != nil || !slices.Equal(r.Gone, []chain.Point{tc(3)}) {
		t.Fatalf("gone: %v: %v", r.Gone, err)
	}
	checkRuns(t, k, after, map[chain.Point]error{tc(3): chain.ErrGone})
}

// A module on sockets keeps its chain and its maps until its connections have ended; nothing else waits.
func TestDraining(t *testing.T) {
	at := func(e chain.Entry) chain.Point {
		return chain.Point{Side: chain.OnSockets, Cgroup: 7, Entry: e, Module: "s"}
	}
	c := chain.Spec{Linker: "test", Side: chain.OnSockets, Direction: chain.Both,
		Members: []chain.Member{{Name: "s", ID: "s1"}}}
	want := desired(map[chain.Point]chain.Spec{at(chain.All): c, at(chain.Services): c,
		tc(1): chainOf(chain.OnTCIngress, "a1")})
	k := deployed(t, want)
	checkSettled(t, k, want, nil)
	k.Draining[c.ID()] = 2
	for _, wait := range []int{2, 2, 0} {
		r, err := converge(k, plan.Desired{}, lenient())
		if err != nil || r.Draining != wait {
			t.Errorf("%d removals wait, want %d: %v", r.Draining, wait, err)
		}
		state := observe(t, k)
		kept := slices.Sorted(maps.Keys(state.MapSets))
		if waits := slices.Equal(kept, []string{"s"}) && len(state.Chains) == 1; waits != (wait > 0) ||
			len(state.Points) > 0 {
			t.Errorf("while %d removals wait: %+v", wait, state)
		}
	}
	checkRuns(t, k, plan.Desired{}, nil)
}
