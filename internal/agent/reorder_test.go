// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/lab/wait"
	"github.com/kerb-edge/kerb/internal/resource"
	"github.com/kerb-edge/kerb/internal/store"
)

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
