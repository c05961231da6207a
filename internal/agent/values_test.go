// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/resource"
	"github.com/kerb-edge/kerb/internal/server"
)

// denyPorts is a firewall with 100 rules. It drops UDP from the service to one port.
func denyPorts(port int) v1.Module {
	rules := []any{map[string]any{"action": "deny", "protocol": "udp", "dstPort": port, "direction": "egress"}}
	for i := range 99 {
		rules = append(rules, map[string]any{"action": "deny", "dst": fmt.Sprintf("203.0.113.%d", i), "direction": "egress"})
	}
	return module("fw", "firewall", "*",
		map[string]any{"rules": rules, "defaultPolicy": map[string]any{"ingress": "allow"}})
}

// A change of rules is in force in all chains, without a new program.
func TestRuleChangeLoadsNothing(t *testing.T) {
	n := newNode(t)
	n.apply(t, n.both(), denyPorts(4001))
	before, cost := n.chainsOn(t, n.web), n.status(t, "fw").Cost
	checkDrops := func(port int) {
		t.Helper()
		was := n.policyDrops(t).Packets
		sendDatagrams(t, n.web, n.db, uint16(port), 5)
		if got := n.policyDrops(t).Packets - was; got != 5 {
			t.Errorf("%d of 5 datagrams to port %d dropped", got, port)
		}
	}
	checkDrops(4001)
	for port := 4002; port < 4005; port++ {
		r := n.apply(t, nil, denyPorts(port))
		if len(r.Steps) != 1 || !strings.HasPrefix(r.Steps[0], "set values ") {
			t.Fatalf("steps %q", r.Steps)
		}
		checkDrops(port)
	}
	if after := n.chainsOn(t, n.web); !maps.Equal(before, after) {
		t.Errorf("chains %v, before %v", after, before)
	}
	if after := n.status(t, "fw").Cost; cost == nil || after == nil || after.MeasuredAt != cost.MeasuredAt {
		t.Errorf("cost %+v, before %+v", after, cost)
	}
	n.stop()
	n.start(t)
	n.reconcileNow(t)
	checkDrops(4004)
	if after := n.chainsOn(t, n.web); !maps.Equal(before, after) {
		t.Errorf("chains after a restart %v, before %v", after, before)
	}
}

// When the new rules cannot be stored, the old ones stay in force.
func TestRulesAreUndone(t *testing.T) {
	n := newNode(t)
	n.apply(t, n.both(), denyPorts(4001))
	values := func() (id string) {
		state, err := n.observeKernel()
		if err != nil {
			t.Fatal(err)
		}
		for _, id = range state.Values {
		}
		return id
	}
	before := values()
	n.changes.Lock()
	err := n.store.Close()
	n.changes.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	next := denyPorts(4002)
	if _, err := n.Apply(t.Context(), server.Request{Resources: resource.Objects(next)}); err == nil {
		t.Error("a closed store takes the change")
	}
	if after := values(); after != before {
		t.Errorf("values %s, before %s", after, before)
	}
}
