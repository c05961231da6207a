// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apply"
	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/lab/wait"
	"github.com/kerb-edge/kerb/internal/plan"
	"github.com/kerb-edge/kerb/internal/resource"
	"github.com/kerb-edge/kerb/internal/store"
)

func TestReordered(t *testing.T) {
	spec := func(names ...string) (out chain.Spec) {
		out.Direction = chain.Ingress
		for _, name := range names {
			out.Members = append(out.Members, chain.Member{Name: name})
		}
		return out
	}
	standIn := func(s chain.Spec) chain.Spec {
		s.Members[0].ID = dataplane.UnavailableID
		return s
	}
	at := chain.Point{Ifindex: 7, Side: chain.OnTCEgress}
	for _, c := range []struct {
		action  plan.Action
		was, is chain.Spec
		want    map[chain.Point]string
	}{
		{plan.Replace, spec("fw", "px"), spec("px", "fw"),
			map[chain.Point]string{at: "web ingress: px, fw (before: fw, px)"}},
		{plan.Replace, spec("fw", "px"), spec("fw", "px"), nil},
		{plan.Replace, spec("fw"), spec("px", "fw"), nil},
		{plan.Replace, spec("fw", "px"), standIn(spec("px", "fw")), nil},
		{plan.Replace, standIn(spec("px", "fw")), spec("fw", "px"), nil},
		{plan.Detach, spec("fw", "px"), spec(), nil},
	} {
		r := apply.Result{Steps: []plan.Step{{Action: c.action, Point: at, Chain: c.is, Old: chain.Pinned{Spec: c.was}}}}
		points := plan.Placements{at: {Service: "web"}}
		got := reordered(r, points)
		if diff := cmp.Diff(c.want, got, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%v to %v: want (-), got (+):\n%s", memberNames(c.was), memberNames(c.is), diff)
		}
		if r.Busy = map[chain.Point]error{at: chain.ErrBusy}; len(reordered(r, points)) > 0 {
			t.Error("a point that another program holds has no other order")
		}
		if r.Busy, r.Gone = nil, []chain.Point{at}; len(reordered(r, points)) > 0 {
			t.Error("a point that has vanished has no other order")
		}
	}
}

// An agent that finds chains in the order of an earlier build, and a state without order.direction as that build wrote
// it, replaces them and reports which; another start, and a change of the order by the operator, report nothing.
func TestOrderChangedByUpgrade(t *testing.T) {
	n := newNode(t)
	earlier := module("px", testPackage(t, "pass"), "*", nil)
	earlier.Spec.Order.Direction = v1.OrderSame
	n.apply(t, n.both(), module("fw", testPackage(t, "drop"), "app=web", map[string]any{}), earlier)
	n.orderIs(t, "fw,px", "fw,px")
	n.noOrderCondition(t)
	n.stop()
	n.editState(t, func(m *v1.Module) { m.Spec.Order.Direction = "" })
	n.start(t)
	n.orderIs(t, "px,fw", "fw,px")
	c := n.orderConditions(t)
	if len(c) != 1 || c[0].Status != "False" || c[0].Reason != "OrderChanged" ||
		!strings.Contains(c[0].Message, ": web ingress: px, fw (before: fw, px).") {
		t.Errorf("after the upgrade: %+v", c)
	}
	n.stop()
	n.start(t)
	n.orderIs(t, "px,fw", "fw,px")
	n.noOrderCondition(t)
	n.apply(t, nil, earlier)
	n.orderIs(t, "fw,px", "fw,px")
	n.noOrderCondition(t)
}

// editState changes all modules in the state of the agent, which is stopped.
func (n *node) editState(t *testing.T, edit func(*v1.Module)) {
	t.Helper()
	s, err := store.Open(n.cfg.Paths.Store())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	state, err := s.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range resource.Module.All(state) {
		edit(&m)
		state.Put(&m)
	}
	if err := s.Commit(state); err != nil {
		t.Fatal(err)
	}
}

// orderIs waits until web's chains have these modules.
func (n *node) orderIs(t *testing.T, ingress, egress string) {
	t.Helper()
	wait.Until(t, fmt.Sprintf("%s to the service, %s from it", ingress, egress), func() bool {
		got := n.chainsOn(t, n.web)
		return strings.HasPrefix(got["tc-egress"], ingress+" ") && strings.HasPrefix(got["tc-ingress"], egress+" ")
	})
}

func (n *node) noOrderCondition(t *testing.T) {
	t.Helper()
	if c := n.orderConditions(t); len(c) > 0 {
		t.Errorf("the order has not changed since the start: %+v", c)
	}
}

func (n *node) orderConditions(t *testing.T) []v1.Condition {
	t.Helper()
	st, err := n.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(st.Conditions, func(c v1.Condition) bool { return c.Type != "ChainOrderKept" })
}
