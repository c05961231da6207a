// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	gocmp "github.com/google/go-cmp/cmp"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/change"
	"github.com/kerb-edge/kerb/internal/lab/wait"
	"github.com/kerb-edge/kerb/internal/resource"
)

// verdictsDrop are the packets of fw with verdict drop from services: in the API and in the metrics.
func (n *node) verdictsDrop(t *testing.T) (api uint64, metric float64) {
	t.Helper()
	m, err := get(t.Context(), n, resource.Module, "fw")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range m.Status.Counts {
		for _, v := range c.Verdicts {
			if c.Module == "fw" && c.Direction == "egress" && v.Verdict == "drop" {
				api += v.Packets
			}
		}
	}
	for _, s := range n.collect(t, "kerb_module_packets_total") {
		if s.Labels["module"] == "fw" && s.Labels["direction"] == "egress" && s.Labels["verdict"] == "drop" {
			metric += s.Value
		}
	}
	return api, metric
}

// The verdicts of a module are counted on when it is replaced and when another module joins its chain, and agree
// with the chain's.
func TestCountsOfModules(t *testing.T) {
	n := newNode(t)
	n.apply(t, n.both(), denyPort("fw"))
	want := uint64(0)
	check := func(packets int) {
		t.Helper()
		sendDatagrams(t, n.web, n.db, 7000, packets)
		want += uint64(packets)
		if api, metric := n.verdictsDrop(t); api != want || metric != float64(want) {
			t.Errorf("dropped: %d in the API, %v in the metrics, want %d", api, metric, want)
		}
	}
	check(5)
	n.apply(t, nil, denyPort("fw"), module("count", "counter", "*", nil))
	check(3)
	replaced := denyPort("fw")
	replaced.Spec.Config["nonIP"] = "allow"
	n.apply(t, nil, replaced)
	check(2)
	n.remove(t, resource.Ref{Kind: v1.KindModule, Name: "count"})
	check(1)
	chains, err := n.Chains(t.Context())
	if err != nil || len(chains) == 0 {
		t.Fatal(chains, err)
	}
	for _, c := range chains {
		if len(c.Counts) != len(c.Modules) || c.Counts[0].Module != c.Modules[0] {
			t.Errorf("chain of %v: counts %+v", c.Modules, c.Counts)
		}
	}
	n.remove(t, resource.Ref{Kind: v1.KindModule, Name: "fw"})
	if series := n.collect(t, "kerb_module_packets_total"); len(series) != 0 {
		t.Errorf("no module is there: %v", series)
	}
}

// The counters of a node are those of its chains and modules, with numbers that change with all else.
func TestCountsOfNode(t *testing.T) {
	n := newNode(t)
	n.apply(t, n.both(), denyPort("fw"))
	sendDatagrams(t, n.web, n.db, 7000, 5)
	got, err := n.Counts(t.Context())
	chains, failed := n.Chains(t.Context())
	if err = errors.Join(err, failed); err != nil {
		t.Fatal(err)
	}
	want := v1.NodeCounts{Change: got.Change, State: got.State, Chains: []v1.ChainCounts{},
		Modules: []v1.ModuleDrops{{Module: "fw", Drops: n.status(t, "fw").Drops}}}
	for _, c := range chains {
		want.Chains = append(want.Chains, v1.ChainCounts{ID: c.ID, Latency: c.Latency, Counts: c.Counts})
	}
	slices.SortFunc(want.Chains, func(a, b v1.ChainCounts) int { return cmp.Compare(a.ID, b.ID) })
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("want (-), got (+):\n%s", diff)
	}
	if drops := got.Modules[0].Drops; len(drops) != 1 || drops[0].Packets != 5 || len(drops[0].Services) != 1 {
		t.Errorf("the drops of fw are %+v", drops)
	}
	n.apply(t, nil, module("count", "counter", "*", nil))
	more, err := n.Counts(t.Context())
	if err != nil || more.Change != got.Change+1 || more.State == got.State || len(more.Modules) != 2 {
		t.Errorf("after another change: %+v (%v)", more, err)
	}
	state := func() int64 {
		now, err := n.Counts(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return now.State
	}
	wait.Until(t, "nothing more happens", func() bool {
		before := state()
		time.Sleep(300 * time.Millisecond) // conditions that a change affects are evaluated within 100 ms
		return state() == before
	})
	before := state()
	n.Exclusive.Lock()
	err = n.Reconcile()
	n.Exclusive.Unlock()
	if err != nil || state() == before {
		t.Errorf("a reconciliation is not noticed (%v)", err)
	}
}

// Chains that run are measured a moment after a change, which the module, the chain and the metrics show. They are
// measured also when the agent starts again and when the module is replaced.
func TestLatencyOfModules(t *testing.T) {
	n := newNode(t)
	n.apply(t, n.both(), denyPort("fw"))
	measured := func() (packets uint64) {
		for _, c := range n.status(t, "fw").Counts {
			if c.Latency != nil && c.Direction == "egress" {
				packets += c.Latency.Packets
			}
		}
		return packets
	}
	more := func(what string) {
		t.Helper()
		before := measured()
		wait.Until(t, what, func() bool {
			sendDatagrams(t, n.web, n.db, 7000, 4096)
			return measured() > before
		})
	}
	more("a packet is measured")
	chains, err := n.Chains(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var took int
	for _, c := range chains {
		if c.Latency != nil && c.Latency.Packets > 0 && c.Latency.P99 >= c.Latency.P50 {
			took++
		}
	}
	if took == 0 {
		t.Errorf("no chain shows how long packets take: %+v", chains)
	}
	var sum float64
	for _, s := range n.collect(t, "kerb_module_latency_seconds_count") {
		if s.Labels["module"] == "fw" && s.Labels["direction"] == "egress" {
			sum += s.Value
		}
	}
	if got := measured(); sum != float64(got) {
		t.Errorf("%v packets in the metrics, %d in the API", sum, got)
	}
	n.stop()
	n.start(t)
	more("a packet is measured after a restart")
	replaced := denyPort("fw")
	replaced.Spec.Config["nonIP"] = "allow"
	before := measured()
	n.apply(t, nil, replaced)
	if got := measured(); got < before {
		t.Errorf("%d packets measured before the module was replaced, %d after", before, got)
	}
	more("a packet is measured after the module was replaced")
}

// A timed copy that could not be made is made after a later change.
func TestTimedCopyLater(t *testing.T) {
	n := newNode(t)
	n.apply(t, n.both(), denyPort("fw"))
	dirs, err := filepath.Glob(filepath.Join(n.cfg.Paths.BPF, "chains", "*"))
	if err != nil || len(dirs) == 0 {
		t.Fatal(dirs, err)
	}
	var samples *ebpf.Map
	var id uint32
	for _, dir := range dirs {
		if samples, err = ebpf.LoadPinnedMap(filepath.Join(dir, "samples"), nil); err != nil {
			t.Fatal(err)
		}
		defer samples.Close()
		wait.Until(t, "the chain has a timed copy", func() bool { return samples.Lookup(uint32(0), &id) == nil })
	}
	dir := dirs[len(dirs)-1]
	obstacle := filepath.Join(dir, "latency", "obstacle")
	if err := errors.Join(samples.Delete(uint32(0)), os.Remove(filepath.Dir(obstacle)),
		os.MkdirAll(obstacle, 0o700)); err != nil {
		t.Fatal(err)
	}
	refused := map[string]bool{}
	change.Calm{Pipeline: n.Pipeline, Refused: refused}.TimeChains(t.Context())
	if err := samples.Lookup(uint32(0), &id); err == nil {
		t.Fatal("there is a copy although its latencies cannot be pinned")
	}
	if err := errors.Join(os.Remove(obstacle), os.Remove(filepath.Dir(obstacle))); err != nil {
		t.Fatal(err)
	}
	change.Calm{Pipeline: n.Pipeline, Refused: refused}.TimeChains(t.Context())
	if err := samples.Lookup(uint32(0), &id); err != nil {
		t.Errorf("no copy after the obstacle is gone: %v", err)
	}
	if len(refused) != 0 {
		t.Errorf("remembered, although the verifier has refused none: %v", refused)
	}
}
