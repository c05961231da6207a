// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os"
	"slices"
	"testing"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
)

// The agent of an earlier build is replaced by this one under traffic: its state and its pinned programs are taken over, no
// packet is lost or counted twice, and the modules can be changed afterwards. make test-upgrade builds the earlier one.
func TestUpgradeOfBuild(t *testing.T) {
	earlier := os.Getenv("KERB_EARLIER")
	if earlier == "" {
		t.Skip("no earlier build: make test-upgrade FROM=<commit>")
	}
	n := newNode(t)
	this := n.Binary
	n.Binary = earlier
	n.start()
	n.apply(n.both())
	n.apply(counter(0), firewall(0), n.stamp(1))
	udp, web := startStream(t, n.db, n.web), startRequests(t, n.db, n.web)
	n.Stop()

	n.Binary = this
	n.start()
	n.settled(map[string]int{"traffic": 4, "fw": 2, "stamp": 2})
	for _, name := range []string{"traffic", "fw", "stamp"} {
		n.Eventually(name+" is ready", func() bool { return n.isReady(name) })
	}
	for round := 1; round <= 3; round++ {
		n.apply(counter(round), firewall(round), n.stamp(1+round))
	}
	udp.finish(1, 2, 3, 4)
	web.finish()
	var arrived uint64
	for _, times := range udp.got {
		arrived += uint64(times)
	}
	if got := n.counted("db", "egress", "udp"); got != arrived {
		t.Errorf("the counter has %d UDP packets from db, %d were sent", got, arrived)
	}
	n.tidy()
}

func (n *node) isReady(module string) bool {
	return slices.ContainsFunc(get[v1.Module](n, "module", module).Status.Conditions, func(c v1.Condition) bool {
		return c.Type == "Ready" && c.Status == "True"
	})
}
