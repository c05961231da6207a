// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"slices"
	"testing"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
)

// elements returns the elements of a set.
func (n *node) elements(name string) []string {
	n.T.Helper()
	return get[v1.Set](n, "set", name).Spec.Elements
}

// Elements that the agent has confirmed are persisted and in force after it is killed during changes, and at most one
// further element. A rule needs its set, and a set in use cannot be deleted.
func TestElementsOfKilledAgents(t *testing.T) {
	n := newRunningNode(t)
	n.refused(n.tryApply(module("fw", "firewall", "app=db", map[string]any{"rules": []any{
		map[string]any{"action": "deny", "src": map[string]any{"set": "blocked"}}}})), 2, "blocked")
	n.must("set", "load", "blocked", "/dev/null")
	n.apply(module("fw", "firewall", "app=db", map[string]any{"defaultPolicy": map[string]any{"ingress": "allow"},
		"rules": []any{map[string]any{"action": "deny", "src": map[string]any{"set": "blocked"}}}}))
	n.settled(map[string]int{"fw": 2})
	from := func(i int) string { return fmt.Sprintf("198.51.%d.%d", 100+i/250, 1+i%250) }
	number := 0
	for range 3 {
		confirmed := make(chan int)
		go func() {
			defer close(confirmed)
			for i := number; ; i++ {
				if r := n.kerb("set", "add", "blocked", from(i)); r.code != 0 {
					return
				}
				confirmed <- i
			}
		}()
		for i := range confirmed {
			if number = i + 1; number%5 == 0 {
				n.Kill()
				break
			}
		}
		for i := range confirmed { // until the first that fails
			number = i + 1
		}
		n.start()
		all := n.elements("blocked")
		for i := range number {
			if !slices.Contains(all, from(i)) {
				t.Fatalf("%s was confirmed and is lost: %v", from(i), all)
			}
		}
		if len(all) > number+1 {
			t.Errorf("%d elements, of which %d were confirmed", len(all), number)
		}
		number = len(all)
		udp := func(i int) string { return fmt.Sprintf("udp %s:4000 > %s:9", from(i), n.db.Addr4()) }
		n.checkExplain(udp(number-1), "db", "is dropped by fw (policy)")
		n.checkExplain(udp(number), "db", "passes")
	}
	n.must("set", "remove", "blocked", from(0))
	n.checkExplain(fmt.Sprintf("udp %s:4000 > %s:9", from(0), n.db.Addr4()), "db", "passes")
	n.refused(n.kerb("set", "add", "blocked", "198.51.100.0/24"), 2, "198.51.100.0/24")
	n.refused(n.kerb("set", "delete", "blocked"), 5, "fw")
	if got := len(n.elements("blocked")); got != number-1 {
		t.Errorf("%d elements, want %d", got, number-1)
	}
}
