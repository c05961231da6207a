// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/kerbabi"
	"github.com/kerb-edge/kerb/internal/packet"
)

// counts is what a module is expected to have returned.
func counts(next, drop, reply, redirect Count) Verdicts {
	return Verdicts{kerbabi.Next: next, kerbabi.Drop: drop, kerbabi.Reply: reply, kerbabi.Redirect: redirect}
}

func wantCounts(t *testing.T, l *Loaded, want ...Verdicts) {
	t.Helper()
	got, err := l.Counts()
	if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("counts %v (%v), want %v", got, err, want)
	}
}

// Packets that a module in the middle drops are counted for those before it, and not for those behind it.
func TestCountsOfDrops(t *testing.T) {
	for _, s := range sides {
		t.Run(string(s.side), func(t *testing.T) {
			l := load(t, s.side, s.dir, testModule(t, "pass", "before", nil),
				testModule(t, "drop", "dropper", map[string]any{"port": 53}), testModule(t, "pass", "after", nil))
			short, long := udpPacket(t, 53, nil), udpPacket(t, 53, make([]byte, 500))
			v4 := udpPacket(t, 54, make([]byte, 100))
			v6 := representativeFrame("IPv6", packet.Fields{UDP: &packet.Ports{Src: 40000, Dst: 80}})
			for _, frame := range [][]byte{short, long, v4, v6, v6} {
				run(t, l.Program, frame)
			}
			dropped := Count{2, uint64(len(short) + len(long))}
			passed := Count{3, uint64(len(v4) + 2*len(v6))}
			none := Count{}
			wantCounts(t, l, counts(passed.plus(dropped), none, none, none), counts(passed, dropped, none, none),
				counts(passed, none, none, none))
		})
	}
}

// Each verdict is counted for the module that returned it, and a bad one as what is done about it.
func TestCountsByVerdict(t *testing.T) {
	packet := udpPacket(t, 1, nil)
	one, none := Count{1, uint64(len(packet))}, Count{}
	closed := deciding(t, "middle", 77, nil)
	closed.FailClosed = true
	for name, c := range map[string]struct {
		middle Module
		want   Verdicts
	}{
		"next":        {deciding(t, "middle", kerbabi.Next, nil), counts(one, none, none, none)},
		"drop":        {deciding(t, "middle", kerbabi.Drop, nil), counts(none, one, none, none)},
		"reply":       {deciding(t, "middle", kerbabi.Reply, nil), counts(none, none, one, none)},
		"redirect":    {deciding(t, "middle", kerbabi.Redirect, nil), counts(none, none, none, one)},
		"bad, open":   {deciding(t, "middle", 77, nil), counts(one, none, none, none)},
		"bad, closed": {closed, counts(none, one, none, none)},
	} {
		for _, s := range sides {
			t.Run(fmt.Sprint(s.side, " ", name), func(t *testing.T) {
				l := load(t, s.side, s.dir, testModule(t, "pass", "first", nil), c.middle, testModule(t, "pass", "last", nil))
				run(t, l.Program, packet)
				wantCounts(t, l, counts(one, none, none, none), c.want, counts(c.want[kerbabi.Next], none, none, none))
			})
		}
	}
}

// The modules behind a deferred redirect have seen the packet.
func TestCountsOfDeferredRedirect(t *testing.T) {
	packet := udpPacket(t, 1, nil)
	one, none := Count{1, uint64(len(packet))}, Count{}
	for verdict, last := range map[kerbabi.Verdict]Verdicts{
		kerbabi.Next: counts(one, none, none, none),
		kerbabi.Drop: counts(none, one, none, none),
	} {
		l := load(t, chain.OnTCIngress, chain.Egress, later(t, "first", loopback), testModule(t, "pass", "count", nil),
			deciding(t, "last", verdict, nil))
		run(t, l.Program, packet)
		wantCounts(t, l, counts(none, none, none, one), counts(one, none, none, none), last)
	}
}

// A chain in several programs counts a packet once, and what a module of a later one drops.
func TestCountsOfSplitChain(t *testing.T) {
	if os.Getenv("KERB_MATRIX") != "" {
		t.Skip("millions of verified instructions take minutes in an emulated machine")
	}
	l := load(t, chain.OnTCIngress, chain.Egress, testModule(t, "huge", "h1", nil), testModule(t, "huge", "h2", nil),
		testModule(t, "drop", "dropper", map[string]any{"port": 53}), testModule(t, "pass", "last", nil))
	dropped, passed := udpPacket(t, 53, []byte("dropped")), udpPacket(t, 54, nil)
	run(t, l.Program, dropped)
	run(t, l.Program, passed)
	none, drop, pass := Count{}, Count{1, uint64(len(dropped))}, Count{1, uint64(len(passed))}
	all := counts(drop.plus(pass), none, none, none)
	if l.Parts < 2 {
		t.Fatalf("%d parts", l.Parts)
	}
	wantCounts(t, l, all, all, counts(pass, drop, none, none), counts(pass, none, none, none))
}

// A packet that is not parsed is counted once, however many programs a chain has.
func TestOutcomesOfSplitChain(t *testing.T) {
	for _, s := range sides {
		l := load(t, s.side, s.dir, testModule(t, "pass", "first", nil), testModule(t, "pass", "second", nil),
			testModule(t, "pass", "third", nil))
		linker, err := newLinker(l.chain.spec, l.mapSets)
		if err != nil {
			t.Fatal(err)
		}
		linker.parts = 3
		c, err := linker.chain()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		arp := udpPacket(t, 54, nil)
		arp[12], arp[13] = 8, 6
		run(t, c.entry(), arp)
		outcomes, err := sumPerCPU(c.outcomes)
		if err != nil {
			t.Fatal(err)
		}
		if got := outcomes[kerbabi.ParseNotIP]; len(c.progs) != 3 || got != 1 {
			t.Errorf("%s: %d packets that are not IP in %d programs, want 1 in 3", s.side, got, len(c.progs))
		}
	}
}

func TestUncountedChain(t *testing.T) {
	needsRoot(t)
	for _, s := range sides {
		l, err := LoadUncounted(s.side, s.dir, testModule(t, "pass", "first", nil), later(t, "second", loopback),
			testModule(t, "drop", "last", map[string]any{"port": 53}))
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		run(t, l.Program, udpPacket(t, 53, nil))
		wantCounts(t, l, Verdicts{}, Verdicts{}, Verdicts{})
	}
}

// sendThrough runs packets through a pinned chain.
func (w *world) sendThrough(t *testing.T, spec chain.Spec, packets int) {
	t.Helper()
	prog, err := ebpf.LoadPinnedProgram(entryPin(w.layout.chain(spec)), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer prog.Close()
	for range packets {
		run(t, prog, udpPacket(t, 53, nil))
	}
}

// make creates the map sets and the chain of modules.
func (w *world) make(t *testing.T, from map[string]string, mods ...Module) chain.Spec {
	t.Helper()
	spec := chain.Spec{Side: chain.OnTCIngress, Direction: chain.Egress}
	byName := map[string]Module{}
	for _, m := range mods {
		if err := create(w.Dataplane, m, from[m.Name]); err != nil {
			t.Fatal(err)
		}
		byName[m.Name] = m
		spec.Members = append(spec.Members, chain.Member{Name: m.Name, ID: m.ID, FailClosed: m.FailClosed})
	}
	if err := w.CreateChain(spec, byName); err != nil {
		t.Fatal(err)
	}
	return spec
}

func (w *world) wantPackets(t *testing.T, module string, verdict kerbabi.Verdict, want uint64) {
	t.Helper()
	all, err := w.Counts()
	if err != nil {
		t.Fatal(err)
	}
	got := all.Modules[CountKey{module, chain.OnTCIngress, chain.Egress}].Verdicts[verdict].Packets
	if got != want {
		t.Errorf("%s: %d packets %s, want %d", module, got, verdict, want)
	}
}

// Counts continue when a module is replaced, when the modules of the chain change, and when the agent starts again. A
// module that is removed takes its counts along.
func TestCountsOutliveChains(t *testing.T) {
	w := newWorld(t, Options{})
	count, first := testModule(t, "pass", "count", nil), testModule(t, "drop", "dropper", map[string]any{"port": 53})
	second := testModule(t, "drop", "dropper", map[string]any{"port": 54})
	before := w.make(t, nil, count, first)
	w.sendThrough(t, before, 3)
	after := w.make(t, map[string]string{"dropper": first.ID}, count, second)
	w.sendThrough(t, after, 2)
	w.sendThrough(t, before, 1) // packets under way
	remove := func(spec chain.Spec) {
		t.Helper()
		if err := w.RemoveChain(chain.Pinned{ID: spec.ID(), Spec: spec}); err != nil {
			t.Fatal(err)
		}
	}
	want := func(passed, dropped, counted uint64) {
		t.Helper()
		w.wantPackets(t, "dropper", kerbabi.Next, passed)
		w.wantPackets(t, "dropper", kerbabi.Drop, dropped)
		w.wantPackets(t, "count", kerbabi.Next, counted)
	}
	want(2, 4, 6)
	remove(before)
	want(2, 4, 6)
	other := w.make(t, nil, second, count) // in another order
	w.sendThrough(t, other, 1)
	want(3, 4, 7)
	remove(after)
	want(3, 4, 7)
	again, err := Open(w.opts)
	if err != nil {
		t.Fatal(err)
	}
	w.Dataplane = again
	want(3, 4, 7)
	remove(other)
	if err := w.RemoveMapSet("dropper", first.ID); err != nil {
		t.Fatal(err)
	}
	want(3, 4, 7)
	if err := w.RemoveMapSet("dropper", second.ID); err != nil {
		t.Fatal(err)
	}
	want(0, 0, 7)
}

// No packet is missing where all CPUs count at the same time.
func TestCountsOfAllCPUs(t *testing.T) {
	const packets = 200_000
	frame := udpPacket(t, 54, nil)
	l := load(t, chain.OnTCIngress, chain.Egress, testModule(t, "pass", "first", nil),
		testModule(t, "drop", "dropper", map[string]any{"port": 54}))
	cpus := allowedCPUs(t)
	var work sync.WaitGroup
	for _, cpu := range cpus {
		work.Go(func() { onCPU(t, cpu, func() { repeat(t, l.Program, frame, packets) }) })
	}
	work.Wait()
	all, none := uint64(len(cpus)*packets), Count{}
	dropped := Count{all, all * uint64(len(frame))}
	wantCounts(t, l, counts(dropped, none, none, none), counts(none, dropped, none, none))
	wantDrops(t, l.Maps["dropper"], all, all)
}

// An agent that is killed between adding the counts of a chain to what its modules keep and removing the chain adds
// them once.
func TestCountsOfHalfRemovedChain(t *testing.T) {
	w := newWorld(t, Options{})
	spec := w.make(t, nil, testModule(t, "pass", "count", nil))
	w.sendThrough(t, spec, 3)
	if err := w.retire(w.layout.chain(spec)); err != nil {
		t.Fatal(err)
	}
	w.wantPackets(t, "count", kerbabi.Next, 3)
	if err := w.RemoveChainSpec(spec); err != nil {
		t.Fatal(err)
	}
	w.wantPackets(t, "count", kerbabi.Next, 3)
	if _, err := os.Stat(filepath.Join(w.layout.chain(spec), countsPin)); !os.IsNotExist(err) {
		t.Errorf("the chain is still there: %v", err)
	}
}

// A chain whose counts cannot be read is an error, and its modules have none: they would have counted less than before,
// and all of it again when it is read next. Those of others are there.
func TestCountsOfUnreadableChain(t *testing.T) {
	w := newWorld(t, Options{})
	spec := w.make(t, nil, testModule(t, "pass", "count", nil))
	other := w.make(t, nil, testModule(t, "pass", "count", nil), testModule(t, "pass", "other", nil))
	w.sendThrough(t, spec, 3)
	w.sendThrough(t, other, 2)
	w.wantPackets(t, "count", kerbabi.Next, 5)
	pin := filepath.Join(w.layout.chain(spec), countsPin)
	if err := errors.Join(os.Rename(pin, pin+"away"), os.Mkdir(pin, 0o700)); err != nil {
		t.Fatal(err)
	}
	got, err := w.Counts()
	if err == nil || len(got.Modules) != 1 || len(got.Chains) != 1 || got.Chains[other.ID()].Members == nil {
		t.Errorf("the counts are %+v (%v)", got, err)
	}
	if n := got.Modules[CountKey{"other", chain.OnTCIngress, chain.Egress}].Verdicts[kerbabi.Next].Packets; n != 2 {
		t.Errorf("the other chain has counted %d packets", n)
	}
	if err := errors.Join(os.Remove(pin), os.Rename(pin+"away", pin)); err != nil {
		t.Fatal(err)
	}
	w.wantPackets(t, "count", kerbabi.Next, 5)
}

// What is worked out of two counters never falls, even if one of them is read too early.
func TestCountsNeverFall(t *testing.T) {
	var r countReader
	key := countedOnce{CountKey{Module: "m"}, 1}
	r.rising(key, counts(Count{5, 500}, Count{}, Count{}, Count{}))
	if v := r.rising(key, counts(Count{4, 400}, Count{1, 100}, Count{}, Count{})); v[kerbabi.Next] != (Count{5, 500}) {
		t.Errorf("%v", v)
	}
	key.retired = 2
	if v := r.rising(key, counts(Count{4, 400}, Count{}, Count{}, Count{})); v[kerbabi.Next] != (Count{4, 400}) {
		t.Errorf("of a module that was removed and created again: %v", v)
	}
}

// Packets are counted while a chain is traced, as part of what the plain chain counts.
func TestCountsDuringTrace(t *testing.T) {
	w := newWorld(t, Options{})
	m := testModule(t, "drop", "dropper", map[string]any{"port": 53})
	spec := w.make(t, nil, m)
	trace, err := NewTrace(TraceFilter{})
	if err != nil {
		t.Fatal(err)
	}
	defer trace.Close()
	c, err := w.traced(trace.tracer, spec, map[string]Module{m.Name: m})
	if err != nil {
		t.Fatal(err)
	}
	run(t, c.entry(), udpPacket(t, 53, nil))
	w.sendThrough(t, spec, 2)
	w.wantPackets(t, "dropper", kerbabi.Drop, 3)
}
