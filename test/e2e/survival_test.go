// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
)

// trafficTime is how long the agent is killed again and again under traffic.
func trafficTime(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("KERB_E2E_SECONDS")
	if text == "" {
		return 10 * time.Second
	}
	seconds, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("KERB_E2E_SECONDS: %v", err)
	}
	return time.Duration(seconds) * time.Second
}

// stamp marks the stream on its way to web with a generation.
func (n *node) stamp(generation int) v1.Module {
	n.t.Helper()
	if n.stampDir == "" {
		n.stampDir = copyPackage(n.t, "stamp", func(manifest string) string {
			return manifest + "configSchema: {type: object, additionalProperties: false, properties: {generation: {type: integer}}}\n"
		})
	}
	return module("stamp", n.stampDir, "app=web", map[string]any{"generation": generation})
}

// The agent is killed and restarted while traffic flows: no packet is lost, and the programs are the same.
func TestKillUnderTraffic(t *testing.T) {
	n := newRunningNode(t)
	n.apply(n.pass("count", "*"), n.stamp(1))
	before := n.programs()
	udp, web := startStream(t, n.db, n.web), startRequests(t, n.db, n.web)
	restarts := 0
	for end := time.Now().Add(trafficTime(t)); time.Now().Before(end); restarts++ {
		time.Sleep(200 * time.Millisecond)
		n.kill()
		time.Sleep(200 * time.Millisecond)
		n.start()
		n.settled(map[string]int{"count": 4, "stamp": 2})
		if after := n.programs(); after != before {
			t.Fatalf("programs before the kill %s, after the restart %s", before, after)
		}
	}
	udp.finish(1)
	web.finish()
	n.tidy()
	t.Logf("%d restarts", restarts)
}

// The agent is killed anywhere in a change: after a restart the node is as before the change or as after it.
func TestKillDuringApply(t *testing.T) {
	const rounds = 20
	n := newRunningNode(t)
	n.apply(n.pass("count", "*"), n.stamp(1))
	mapBefore := n.mapID("count", "totals")
	udp, web := startStream(t, n.db, n.web), startRequests(t, n.db, n.web)
	allowed := []uint32{1}
	kept, changed := 0, 0
	for i := range rounds {
		old, next := n.generation(), i+2
		allowed = append(allowed, uint32(next))
		before := n.programs()
		answered := make(chan result, 1)
		go func() { answered <- n.tryApply(n.stamp(next)) }()
		time.Sleep(time.Duration(rand.IntN(150)) * time.Millisecond)
		n.kill()
		r := <-answered
		n.start()
		n.settled(map[string]int{"count": 4, "stamp": 2})
		now := n.generation()
		switch {
		case now == next:
			changed++
		case now == old && r.code == 0:
			t.Errorf("round %d: the change was confirmed and is lost", i)
		case now == old:
			kept++
			if after := n.programs(); after != before {
				t.Errorf("round %d: nothing changed, but programs were %s and are %s", i, before, after)
			}
		default:
			t.Errorf("round %d: generation is %d, want %d or %d", i, now, old, next)
		}
		eventually(t, "packets are stamped by the desired generation", func() bool { return int(udp.generation()) == now })
		n.tidy()
	}
	if id := n.mapID("count", "totals"); id != mapBefore {
		t.Errorf("the counters of a module that nobody changed were map %d and are map %d", mapBefore, id)
	}
	udp.finish(allowed...)
	web.finish()
	t.Logf("%d changes were done, %d were not", changed, kept)
}

// generation is the one that the agent wants, by its own words.
func (n *node) generation() int {
	n.t.Helper()
	g, _ := get[v1.Module](n, "module", "stamp").Spec.Config["generation"].(float64)
	return int(g)
}

// SIGTERM ends the agent; what it has put into the kernel goes on, and the next one finds it.
func TestStopLeavesDataPlaneRunning(t *testing.T) {
	n := newRunningNode(t)
	n.apply(n.stamp(1))
	before := n.programs()
	udp := startStream(t, n.db, n.web)
	n.stop()
	if _, err := os.Lstat(n.socket()); err == nil {
		t.Error("the socket is still there")
	}
	n.refused(n.kerb("status"), 4, "no agent answers on "+n.socket())
	time.Sleep(300 * time.Millisecond)
	n.start()
	n.settled(map[string]int{"stamp": 2})
	if after := n.programs(); after != before {
		t.Errorf("programs were %s and are %s", before, after)
	}
	udp.finish(1)
}

// A newer build takes over under traffic: all chains are new, no packet is lost, counters go on.
func TestUpgradeUnderTraffic(t *testing.T) {
	n := newRunningNode(t)
	n.apply(n.pass("count", "*"), n.stamp(1))
	before, counters := n.programIDs(), n.mapID("count", "totals")
	udp, web := startStream(t, n.db, n.web), startRequests(t, n.db, n.web)
	time.Sleep(500 * time.Millisecond)
	n.stop()
	n.binary = newer
	n.start()
	n.settled(map[string]int{"count": 4, "stamp": 2})
	after := n.programIDs()
	if len(after) != len(before) {
		t.Errorf("chains were on %d attach points, are on %d", len(before), len(after))
	}
	for point, program := range after {
		if before[point] == program {
			t.Errorf("%s still runs program %d of the older build", point, program)
		}
	}
	if id := n.mapID("count", "totals"); id != counters {
		t.Errorf("the counters were map %d and are map %d", counters, id)
	}
	time.Sleep(500 * time.Millisecond)
	udp.finish(1)
	web.finish()
	n.tidy()
}

func (n *node) programIDs() map[string]uint32 {
	n.t.Helper()
	out := map[string]uint32{}
	for _, c := range get[[]v1.Chain](n, "chain") {
		for _, p := range c.Points {
			out[p.Interface+"/"+p.Hook] = c.Program
		}
	}
	return out
}
