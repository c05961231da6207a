// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/lab/wait"
	"github.com/kerb-edge/kerb/internal/resource"
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
	before, cost := n.chainsOn(t, n.web), n.cost(t, "fw")
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
	if after := n.status(t, "fw").Cost; after == nil || after.MeasuredAt != cost.MeasuredAt {
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

// A change of values takes one request to the control plane, which fills the maps once. What a request that is refused
// has filled does not come into force.
func TestRuleChangeAsksOnce(t *testing.T) {
	n := newNode(t)
	n.apply(t, n.both(), denyPorts(4001))
	prepare := func(port int, fill bool) bool {
		t.Helper()
		n.Exclusive.Lock()
		defer n.Exclusive.Unlock()
		all, err := n.Preparer.All([]v1.Module{denyPorts(port)}, n.Now.Modules, fill)
		if err != nil {
			t.Fatal(err)
		}
		return all["fw"].Filled != nil
	}
	fills := func() (last uint64) {
		t.Helper()
		n.Lock.Lock()
		defer n.Lock.Unlock()
		var owner struct{ Rule, Fill uint64 }
		for entries, slot := n.Live.Maps("fw")["owners"].Iterate(), uint32(0); entries.Next(&slot, &owner); {
			last = max(last, owner.Fill)
		}
		return last
	}
	wait.Until(t, "the control plane to have started", func() bool { return prepare(4002, true) })
	before := fills()
	if prepare(4003, false) || fills() != before {
		t.Error("a dry run fills maps")
	}
	for port := 4004; port < 4007; port++ {
		before = fills()
		n.apply(t, nil, denyPorts(port))
		if got := fills() - before; got != 1 {
			t.Errorf("filled %d times", got)
		}
		was := n.policyDrops(t).Packets
		sendDatagrams(t, n.web, n.db, uint16(port), 5)
		if got := n.policyDrops(t).Packets - was; got != 5 {
			t.Errorf("%d of 5 datagrams to port %d dropped", got, port)
		}
	}
	wait.Until(t, "the control plane to have started", func() bool { return prepare(4002, true) })
	n.stop()
	n.start(t)
	n.reconcileNow(t)
	n.apply(t, nil, denyPorts(4002))
	was := n.policyDrops(t).Packets
	sendDatagrams(t, n.web, n.db, 4002, 5)
	if got := n.policyDrops(t).Packets - was; got != 5 {
		t.Errorf("%d of 5 datagrams to port 4002 dropped", got)
	}
}

// Pins that are lost while the agent runs are made again with other maps, which later changes of values are for.
func TestValuesAfterLostPins(t *testing.T) {
	n := newNode(t)
	n.apply(t, n.both(), denyPorts(4001))
	n.Exclusive.Lock() // the agent's first reconciliation may be making pins
	for _, kind := range []string{"modules", "chains", "links"} {
		if err := os.RemoveAll(filepath.Join(n.cfg.Paths.BPF, kind)); err != nil {
			t.Error(err)
		}
	}
	n.Exclusive.Unlock()
	n.reconcileNow(t)
	for _, port := range []int{4001, 4002} {
		n.apply(t, nil, denyPorts(port))
		was := n.policyDrops(t).Packets
		sendDatagrams(t, n.web, n.db, uint16(port), 5)
		if got := n.policyDrops(t).Packets - was; got != 5 {
			t.Errorf("%d of 5 datagrams to port %d dropped", got, port)
		}
	}
}

// valueChanges are configs of built-in modules of which values has the program of first, and shape has not. KEY1 and
// KEY2 are files with keys.
var valueChanges = map[string]struct{ first, values, shape string }{
	"classifier": {
		`{"extractor": "flow", "action": {"do": "drop"}, "allow": ["10.77.0.0/16"]}`,
		`{"extractor": "flow", "action": {"do": "rateLimit", "for": "5s", "rate": 20, "burst": 5}, "mode": "watch",
			"allow": ["10.78.0.0/16", "fd00::/8"], "hysteresis": {"hits": 2, "of": 2, "raise": 0.75, "clear": 0.5},
			"fuse": {"sources": 400, "sourceShare": 60, "least": 3}, "events": "all", "harmless": ["benign"],
			"model": "m", "shadow": "s", "probation": 20}`,
		`{"extractor": "flow", "action": {"do": "drop"}, "window": "10s"}`,
	},
	"proxy": {
		`{"ranges": ["10.77.0.0/16"], "timeouts": {"udp": "30s"}}`,
		`{"ranges": ["10.78.0.0/16"], "tables": {"sessionsPerService": 1000}, "timeouts": {"udp": "40s"},
			"passiveHealth": {"failures": 1}, "unknown": {"holdPackets": 8}}`,
		`{"ranges": ["10.78.0.0/16"], "tables": {"sessions": 1024}}`,
	},
	"intercept": {
		`{"classes": [{"name": "ctrl", "match": {"protocol": "udp", "ports": [8080]}, "action": "steal"},
			{"name": "echo", "match": {"protocol": "udp", "ports": [7000]}, "action": "answer", "answer": {"app": "echo"}}]}`,
		`{"classes": [{"name": "ctrl", "match": {"protocol": "udp", "ports": [8081], "sources": ["10.0.0.0/8"]},
			"action": "copy", "deadline": "1ms", "watchdog": "1s", "maxBytes": 100, "delivery": "ringbuf"},
			{"name": "echo", "match": {"protocol": "udp", "ports": [7001]}, "action": "answer",
			"answer": {"app": "echo", "sourceRate": 10}}]}`,
		`{"classes": [{"name": "ctrl", "match": {"protocol": "udp", "ports": [8080]}, "action": "steal", "ring": "2Mi"},
			{"name": "echo", "match": {"protocol": "udp", "ports": [7000]}, "action": "answer", "answer": {"app": "echo"}}]}`,
	},
	"responder": {
		`{"listeners": [{"app": "echo", "port": 7000}, {"app": "coap", "port": 5683, "resources": [{"path": "a"}]}]}`,
		`{"listeners": [{"app": "coap", "port": 5684, "name": "coap-5683", "maxReply": 500, "resources": [{"path": "a"}]},
			{"app": "echo", "port": 7001, "name": "echo-7000", "sourceRate": 10, "whenOver": "pass", "amplification": 2},
			{"app": "echo", "port": 7002}], "partialChecksums": "pass"}`,
		`{"listeners": [{"app": "echo", "port": 7000}, {"app": "coap", "port": 5683, "resources": [{"path": "b"}]}]}`,
	},
	"tunnel": {
		`{"keys": [{"id": 1, "key": {"fromFile": "KEY1"}}], "network": 7,
			"nodes": [{"address": "192.0.2.9", "subnets": ["10.99.0.0/24"]}]}`,
		`{"keys": [{"id": 2, "key": {"fromFile": "KEY2"}}], "network": 8, "port": 7188, "mtu": 1400,
			"localAddresses": ["192.0.2.1"], "nodes": [{"address": "192.0.2.9", "subnets": ["10.98.0.0/24"]},
			{"address": "192.0.2.8", "subnets": ["10.99.0.0/24"]}]}`,
		`{"nodes": [{"address": "192.0.2.9", "subnets": ["10.98.0.0/24"]}]}`,
	},
}

// A change of values is one step, and the program stays. One that cannot be stored is undone. Values and what needs a
// new program change together.
func TestValueChanges(t *testing.T) {
	for name, configs := range valueChanges {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			keys := t.TempDir()
			for _, key := range []string{"KEY1", "KEY2"} {
				text := strings.Repeat("0"+key[3:], 16)
				if err := os.WriteFile(filepath.Join(keys, key), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			with := func(text string) v1.Module {
				var c map[string]any
				text = strings.ReplaceAll(text, "KEY", keys+"/KEY")
				if err := json.Unmarshal([]byte(text), &c); err != nil {
					t.Fatal(err)
				}
				return module("mod", name, "*", c)
			}
			n.apply(t, n.both(), with(configs.first))
			before := n.chainsOn(t, n.web)
			for _, config := range []string{configs.values, configs.first, configs.values} {
				if r := n.apply(t, nil, with(config)); len(r.Steps) != 1 || !strings.HasPrefix(r.Steps[0], "set values ") {
					t.Fatalf("steps %q", r.Steps)
				}
			}
			if after := n.chainsOn(t, n.web); !maps.Equal(before, after) {
				t.Errorf("chains %v, before %v", after, before)
			}
			if r := n.apply(t, nil, with(configs.shape)); len(r.Steps) == 1 {
				t.Errorf("steps %q", r.Steps)
			}
			if after := n.chainsOn(t, n.web); maps.Equal(before, after) {
				t.Errorf("chains as before: %v", after)
			}
			n.apply(t, nil, with(configs.first))
			n.undoes(t, with(configs.values))
		})
	}
}

// values is the identity of the values that packets meet.
func (n *node) values(t *testing.T) (id string) {
	t.Helper()
	state, err := n.Look(time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	for _, id = range state.Values {
	}
	return id
}

// undoes makes a change that cannot be stored, and checks that it is not in force.
func (n *node) undoes(t *testing.T, next v1.Module) {
	t.Helper()
	before := n.values(t)
	n.Exclusive.Lock()
	err := n.Store.Close()
	n.Exclusive.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.Apply(t.Context(), resource.Request{Resources: resource.Objects(next)}); err == nil {
		t.Error("a closed store takes the change")
	}
	if after := n.values(t); after != before {
		t.Errorf("values %s, before %s", after, before)
	}
}

// When the new rules cannot be stored, the old ones stay in force.
func TestRulesAreUndone(t *testing.T) {
	n := newNode(t)
	n.apply(t, n.both(), denyPorts(4001))
	n.undoes(t, denyPorts(4002))
}
