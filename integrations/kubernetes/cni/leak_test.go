// SPDX-License-Identifier: Apache-2.0

package cni_test

import "testing"

// Processes whose first instructions send SYNs and UDP packets start the moment ADD returns. Without Kerb all of it
// reaches a receiver. With Kerb nothing does while the labels of a pod are not known, nor under a module that denies,
// nor while the agent is killed and started again; it does of a pod that no module denies.
func (c *cluster) testLeak(t *testing.T, r *receiver, primary string) {
	c = c.in(t)
	chained := c.network(primary, true)
	names := []string{"plain", "pending", "denied", "allowed", "late"}
	pods := map[string]*pod{}
	for _, name := range names {
		pods[name] = c.sandbox(primary + "-" + name)
	}
	plain, pending, denied, allowed, late := pods["plain"], pods["pending"], pods["denied"], pods["allowed"], pods["late"]
	first := r.flood(t, []*pod{pending, denied, allowed, plain}, plain, func(p *pod) {
		c.mustAdd(p, c.network(primary, p != plain))
	}, func() {})
	t.Logf("after ADD: %v", byName(first))
	requireAll(t, first[plain])
	requireNone(t, first, pending, denied, allowed)
	c.admit(denied, map[string]string{"app": "web"})
	c.admit(allowed, map[string]string{"app": "open"})
	second := r.flood(t, []*pod{late, pending, denied, allowed}, allowed, func(p *pod) {
		if p == late {
			c.mustAdd(p, chained)
		}
	}, func() {
		c.Kill()
		c.Start()
	})
	t.Logf("while the agent is killed and started: %v", byName(second))
	requireAll(t, second[allowed])
	requireNone(t, second, late, pending, denied)
}

// denyAll is the configuration of a firewall that denies everything.
func denyAll() map[string]any {
	return map[string]any{"defaultPolicy": map[string]any{"ingress": "deny", "egress": "deny"}}
}

func byName(got map[*pod]counts) map[string]counts {
	out := map[string]counts{}
	for p, packets := range got {
		out[p.Name] = packets
	}
	return out
}

func requireAll(t *testing.T, got counts) {
	t.Helper()
	for _, kind := range kinds {
		if got[kind] == 0 {
			t.Errorf("no %s reached the receiver, so that the test shows nothing", kind)
		}
	}
}

func requireNone(t *testing.T, got map[*pod]counts, pods ...*pod) {
	t.Helper()
	for _, p := range pods {
		if len(got[p]) > 0 {
			t.Errorf("packets of %s reached the receiver: %v", p.Name, got[p])
		}
	}
}
