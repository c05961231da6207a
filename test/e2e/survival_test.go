// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/lab/node/nodetest"
)

// trafficTime returns how long the agent is killed repeatedly under traffic.
func trafficTime(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("KERB_E2E_SECONDS")
	if text == "" {
		return 5 * time.Second
	}
	seconds, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("KERB_E2E_SECONDS: %v", err)
	}
	return time.Duration(seconds) * time.Second
}

// stamp marks the stream on its way to web with a generation.
func (n *node) stamp(generation int) v1.Module {
	n.T.Helper()
	if n.stampDir == "" {
		n.stampDir = copyPackage(n.T, "stamp", withGeneration)
	}
	return module("stamp", n.stampDir, "app=web", map[string]any{"generation": generation})
}

// withGeneration adds a config schema with the field generation to a manifest of stamp.
func withGeneration(manifest string) string {
	return manifest + "configSchema: {type: object, additionalProperties: false, properties: {generation: {type: " +
		"integer}}}\n"
}

// The agent is killed and restarted under traffic: no packet is lost, and the programs are the same.
func TestKillUnderTraffic(t *testing.T) {
	n := newRunningNode(t)
	n.apply(n.pass("count", "*"), n.stamp(1))
	before := n.programs()
	udp, web := startStream(t, n.db, n.web), startRequests(t, n.db, n.web)
	restarts := 0
	for end := time.Now().Add(trafficTime(t)); time.Now().Before(end); restarts++ {
		time.Sleep(200 * time.Millisecond) // traffic with an agent
		n.Kill()
		time.Sleep(200 * time.Millisecond) // traffic without an agent
		n.start()
		n.settled(map[string]int{"count": 4, "stamp": 2})
		if after := n.programs(); after != before {
			t.Fatalf("programs before the kill %s, after the restart %s", before, after)
		}
	}
	udp.finish(1)
	web.finish()
	n.checkPins()
	t.Logf("%d restarts", restarts)
}

// The agent is killed in each step of a change: after a restart the node is as before the change or as after it.
func TestKillDuringApply(t *testing.T) {
	const more = 3 // services alongside web, so that most kills happen while some of them are switched
	n := newRunningNode(t)
	like := []*netlab.Host{n.web}
	for i := range more {
		like = append(like, n.Host(fmt.Sprintf("more%d", i)))
		n.apply(service(like[i+1], "app=web"))
	}
	instances := map[string]int{"count": 4 + 2*more, "stamp": 2 + 2*more}
	n.apply(n.flipped(1), n.stamp(1))
	mapBefore := n.mapID("count", "totals")
	udp, web := startStream(t, n.db, n.web), startRequests(t, n.db, n.web)
	allowed := []uint32{1}
	n.Stop()
	agent, half := n.startStepping(), 0
	n.settled(instances)
	for round, confirmed := 1, false; !confirmed; round++ {
		old, before, running := n.generation(), n.programs(), n.running(like)
		allowed = append(allowed, uint32(old+1))
		r, steps := n.killAfter(agent, round, n.stamp(old+1), n.flipped(old+1))
		if confirmed = r.code == 0; !confirmed && !strings.Contains(r.stderr, "agent") {
			t.Errorf("round %d: the message is %q", round, r.stderr)
		}
		switched := changed(running, n.running(like))
		// Attach points are switched concurrently: all whose step has started may be in progress.
		if switched > count(steps, "replace") {
			t.Errorf("round %d: %d attach points are switched after the steps %q", round, switched, steps)
		}
		if switched > 0 && switched < instances["stamp"] {
			half++
		}
		agent = n.startStepping()
		n.settled(instances)
		now, storing := n.generation(), count(steps, "store")
		if want := n.flipped(now).Spec.Order.Priority; get[v1.Module](n, "module", "count").Spec.Order.Priority != want {
			t.Errorf("round %d: of two modules in one change only one has changed", round)
		}
		switch {
		case now != old && now != old+1, now == old+1 && storing == 0, now == old && count(steps[:len(steps)-1], "store") > 0:
			t.Errorf("round %d: generation was %d and is %d after the steps %q", round, old, now, steps)
		case now == old && confirmed:
			t.Errorf("round %d: the change was confirmed and is lost", round)
		case now == old && n.programs() != before:
			t.Errorf("round %d: nothing changed, but programs were %s and are %s", round, before, n.programs())
		}
		want, programs := []string{"count,stamp", "stamp,count"}[now%2], n.programs()
		chains := strings.Count(programs, "/tc-ingress="+want+":") + strings.Count(programs, "/tc-egress="+mirrored(want)+":")
		if !n.runs(n.web, want) || chains != instances["stamp"] {
			t.Errorf("round %d: the node runs %s, want %s on web and its like", round, n.programs(), want)
		}
		n.Eventually("packets are stamped by the desired generation", func() bool { return int(udp.generation()) == now })
		n.checkPins()
		t.Logf("round %d: killed in %q, %d attach points are switched", round, strings.TrimSpace(steps[len(steps)-1]),
			switched)
	}
	if half < more {
		t.Errorf("only %d kills have met a node half switched", half)
	}
	if id := n.mapID("count", "totals"); id != mapBefore {
		t.Errorf("the counters of an unchanged module were map %d and are map %d", mapBefore, id)
	}
	udp.finish(allowed...)
	web.finish()
}

// running returns the programs on the attach points of hosts.
func (n *node) running(hosts []*netlab.Host) (ids []ebpf.ProgramID) {
	n.T.Helper()
	for _, h := range hosts {
		ids = slices.Concat(ids, n.attached(h, tcxIngress), n.attached(h, tcxEgress))
	}
	return ids
}

func changed(before, after []ebpf.ProgramID) (count int) {
	for i := range after {
		if after[i] != before[i] {
			count++
		}
	}
	return count
}

// count returns the number of steps of a kind.
func count(steps []string, kind string) (count int) {
	for _, s := range steps {
		if strings.Contains(s, kind) {
			count++
		}
	}
	return count
}

// flipped returns module count, before module stamp in even generations and after it in odd ones.
func (n *node) flipped(generation int) v1.Module {
	n.T.Helper()
	m := n.pass("count", "*")
	m.Spec.Order.Priority = 50 + 100*(generation%2)
	return m
}

// generation returns the generation in the agent's desired state.
func (n *node) generation() int {
	n.T.Helper()
	g, _ := get[v1.Module](n, "module", "stamp").Spec.Config["generation"].(float64)
	return int(g)
}

// Concurrent changes of several operators are serialized, each a transaction.
func TestConcurrentChanges(t *testing.T) {
	const operators = 6
	n := newRunningNode(t)
	n.apply(n.stamp(1))
	udp := startStream(t, n.db, n.web)
	var wait sync.WaitGroup
	for i := range operators {
		name := fmt.Sprintf("c%d", i)
		module := n.pass(name, "*")
		wait.Go(func() {
			for range 3 {
				if r := n.tryApply(module); r.code != 0 {
					t.Errorf("apply %s: %s", name, r.stderr)
				}
				if r := n.kerb("module", "delete", name); r.code != 0 {
					t.Errorf("delete %s: %s", name, r.stderr)
				}
			}
			if r := n.tryApply(module); r.code != 0 {
				t.Errorf("apply %s: %s", name, r.stderr)
			}
		})
	}
	wait.Wait()
	if !n.runs(n.web, "c0,c1,c2,c3,c4,c5,stamp") || !n.runs(n.db, "c0,c1,c2,c3,c4,c5") {
		t.Errorf("web runs %v, db %v", n.hooks("web"), n.hooks("db"))
	}
	udp.finish(1)
	n.checkPins()
}

// SIGTERM ends the agent; its programs in the kernel continue, and the next agent adopts them.
func TestStopLeavesDataPlaneRunning(t *testing.T) {
	n := newRunningNode(t)
	n.apply(n.stamp(1))
	before := n.programs()
	udp := startStream(t, n.db, n.web)
	n.Stop()
	if _, err := os.Lstat(n.Socket()); err == nil {
		t.Error("the socket still exists")
	}
	n.refused(n.kerb("status"), 4, "no agent answers on "+n.Socket())
	time.Sleep(300 * time.Millisecond) // traffic without an agent
	n.start()
	n.settled(map[string]int{"stamp": 2})
	if after := n.programs(); after != before {
		t.Errorf("programs were %s and are %s", before, after)
	}
	udp.finish(1)
}

// A newer build adopts the node under traffic: all chains are new, no packet is lost, counters continue.
func TestUpgradeUnderTraffic(t *testing.T) {
	n := newRunningNode(t)
	n.apply(n.pass("count", "*"), n.stamp(1))
	before, counters := n.programIDs(), n.mapID("count", "totals")
	udp, web := startStream(t, n.db, n.web), startRequests(t, n.db, n.web)
	time.Sleep(500 * time.Millisecond) // traffic before the upgrade
	n.Stop()
	n.Binary = newer
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
	time.Sleep(500 * time.Millisecond) // traffic after it
	udp.finish(1)
	web.finish()
	n.checkPins()
}

func (n *node) programIDs() map[string]uint32 {
	n.T.Helper()
	out := map[string]uint32{}
	for _, c := range get[[]v1.Chain](n, "chain") {
		for _, p := range c.Points {
			out[p.Interface+"/"+p.Hook] = c.Program
		}
	}
	return out
}

// After any pins are lost while no agent runs, the next one restores the desired state.
func TestLostPins(t *testing.T) {
	for name, lose := range map[string]string{
		"all, as by a reboot":      "",
		"links":                    "links/*",
		"the entry of every chain": "chains/*/prog0",
		"one chain":                "chains/tc-egress_*",
		"half of a removal":        "chains",
		"everything but the links": "[cm]*",
		"map sets":                 "modules/*",
	} {
		t.Run(name, func(t *testing.T) {
			n := newRunningNode(t)
			n.apply(n.pass("count", "*"), n.stamp(1))
			n.Kill()
			n.losePins(lose)
			n.start()
			n.settled(map[string]int{"count": 4, "stamp": 2})
			n.Eventually("web and db run their chains", func() bool {
				return n.runs(n.web, "count,stamp") && n.runs(n.db, "count")
			})
			udp := startStream(t, n.db, n.web)
			n.Eventually("packets are stamped", func() bool { return udp.generation() == 1 })
			udp.finish(1)
			n.checkPins()
		})
	}
}

func (n *node) losePins(pattern string) {
	n.T.Helper()
	paths, err := filepath.Glob(filepath.Join(n.BPF, pattern))
	if err != nil {
		n.T.Fatal(err)
	}
	if pattern == "chains" { // a purge that was killed
		err = os.Rename(paths[0], filepath.Join(n.BPF, "tmp_chains"))
		paths = nil
	}
	for _, path := range paths {
		err = errors.Join(err, os.RemoveAll(path))
	}
	if err != nil {
		n.T.Fatal(err)
	}
}

// A purge that is killed at any moment leaves nothing that makes a later purge or agent fail.
func TestKillDuringPurge(t *testing.T) {
	n := newRunningNode(t)
	n.apply(n.pass("count", "*"), n.stamp(1))
	var whole time.Duration // of the first one, which is not killed
	for i := range 8 {
		n.Kill()
		ctx, cancel := context.WithTimeout(context.Background(), cmp.Or(whole*time.Duration(i)/8, nodetest.Patience))
		begin := time.Now()
		_ = n.Command(ctx, append([]string{"purge"}, n.Flags()...)...).Run() // until it is killed
		cancel()
		whole = cmp.Or(whole, time.Since(begin))
		if i%2 == 1 {
			n.must("purge", n.Flags()...)
		}
		n.start()
		n.settled(map[string]int{"count": 4, "stamp": 2})
		n.Eventually("web runs its chain", func() bool { return n.runs(n.web, "count,stamp") })
		n.checkPins()
	}
}
