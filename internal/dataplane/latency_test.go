// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/kerbabi"
	"github.com/kerb-edge/kerb/internal/lab/testrun"
	"github.com/kerb-edge/kerb/internal/packet"
)

// never is longer than any packet takes.
const never = time.Hour

// timed loads a chain with its timed copy.
func timed(t *testing.T, side chain.Side, dir chain.Direction, mods ...Module) *Loaded {
	t.Helper()
	l := load(t, side, dir, mods...)
	if err := l.Time(never); err != nil {
		t.Fatal(err)
	}
	return l
}

// repeat runs a packet many times, on one CPU.
func repeat(t *testing.T, p *ebpf.Program, packet []byte, times uint32) {
	t.Helper()
	opts := &ebpf.RunOptions{Data: packet, DataOut: make([]byte, len(packet)+256), Repeat: times}
	if _, err := testrun.Run(p, opts); err != nil {
		t.Fatal(err)
	}
}

// measured are the numbers of packets that the chain and each member have a latency of.
func measured(t *testing.T, l *Loaded) (out []uint64) {
	t.Helper()
	s, err := l.Stats()
	if err != nil {
		t.Fatal(err)
	}
	out = append(out, s.Latency.Histogram().Count())
	for _, m := range s.Members {
		out = append(out, m.Latency.Histogram().Count())
	}
	return out
}

// onOne calls f on one CPU.
func onOne(t *testing.T, f func()) { onCPU(t, allowedCPUs(t)[0], f) }

// allowedCPUs are those that this process may run on.
func allowedCPUs(t *testing.T) (all []int) {
	t.Helper()
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		t.Fatal(err)
	}
	for cpu := range ebpf.MustPossibleCPU() {
		if set.IsSet(cpu) {
			all = append(all, cpu)
		}
	}
	return all
}

// onCPU calls f on a CPU.
func onCPU(t *testing.T, cpu int, f func()) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var before, one unix.CPUSet
	one.Set(cpu)
	if err := errors.Join(unix.SchedGetaffinity(0, &before), unix.SchedSetaffinity(0, &one)); err != nil {
		t.Error(err)
		return
	}
	defer unix.SchedSetaffinity(0, &before)
	f()
}

func needsSampling(t *testing.T) {
	t.Helper()
	needsRoot(t)
	if !haveSampling() {
		t.Skip("the kernel refuses tail calls in programs with functions")
	}
}

// One packet of each period is measured, once there is a timed copy, and all packets are counted once.
func TestLatencyOfOneInPeriod(t *testing.T) {
	needsSampling(t)
	for _, s := range sides {
		t.Run(string(s.side), func(t *testing.T) {
			l := load(t, s.side, s.dir, testModule(t, "pass", "first", nil),
				testModule(t, "drop", "dropper", map[string]any{"port": 53}), testModule(t, "pass", "last", nil))
			passed, dropped := udpPacket(t, 54, nil), udpPacket(t, 53, nil)
			const periods = 20
			onOne(t, func() {
				repeat(t, l.Program, passed, SamplePeriod)
				if err := l.Time(never); err != nil {
					t.Fatal(err)
				}
				if got := measured(t, l); fmt.Sprint(got) != "[0 0 0 0]" {
					t.Errorf("measured %v packets before there was a copy", got)
				}
				repeat(t, l.Program, passed, 2*periods*SamplePeriod)
				repeat(t, l.Program, dropped, periods*SamplePeriod)
				want := []uint64{3 * periods, 3 * periods, 3 * periods, 2 * periods}
				if got := measured(t, l); fmt.Sprint(got) != fmt.Sprint(want) {
					t.Errorf("measured %d packets in the chain and its modules, want %d", got, want)
				}
			})
			size := uint64(len(passed))
			none := Count{}
			drop := Count{periods * SamplePeriod, periods * SamplePeriod * size}
			pass := Count{(1 + 2*periods) * SamplePeriod, (1 + 2*periods) * SamplePeriod * size}
			wantCounts(t, l, counts(pass.plus(drop), none, none, none), counts(pass, drop, none, none),
				counts(pass, none, none, none))
		})
	}
}

// A traced chain counts its packets where the chain that it stands for does, and measures none: measuring continues
// behind it.
func TestLatencyAfterTrace(t *testing.T) {
	needsSampling(t)
	l := timed(t, chain.OnTCIngress, chain.Egress, testModule(t, "pass", "only", nil))
	trace, err := NewTrace(TraceFilter{Port: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer trace.Close()
	c, err := trace.link(l.chain.spec, l.mapSets, 1, l.chain)
	if err != nil {
		t.Fatal(err)
	}
	packet := udpPacket(t, 53, nil)
	onOne(t, func() {
		repeat(t, l.Program, packet, SamplePeriod)
		repeat(t, c.entry(), packet, 2*SamplePeriod)
		if got := measured(t, l); fmt.Sprint(got) != "[1 1]" {
			t.Errorf("measured %d before and in the trace, want one", got)
		}
		repeat(t, l.Program, packet, 2*SamplePeriod)
		if got := measured(t, l); got[0] < 3 || got[1] != got[0] {
			t.Errorf("measured %d with two periods behind the trace, want 3 at least", got)
		}
	})
}

// sampleNext has the next packet on each CPU run in the timed copy, measured or not.
func sampleNext(t *testing.T, l *Loaded, measure bool) {
	t.Helper()
	perCPU, err := perCPUCounts(l.chain.counts)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range perCPU {
		if c[0].Packets&1 == 1 != measure {
			c[0] = Count{c[0].Packets + 1, c[0].Bytes}
		}
		c[1].Bytes = c[0].Packets // struct kerb_counts: sample
	}
	value, err := l.chain.counts.LookupBytes(uint32(0))
	if err != nil {
		t.Fatal(err)
	}
	// The packets that the chain keeps are behind them.
	if _, err := binary.Encode(value, binary.NativeEndian, slices.Concat(perCPU...)); err != nil {
		t.Fatal(err)
	}
	if err := l.chain.counts.Put(uint32(0), value); err != nil {
		t.Fatal(err)
	}
}

// seen is what a packet made a chain do.
type seen struct {
	action int32
	packet []byte
	counts []Verdicts // but for NEXT, which follows from what came in
	drops  string
}

func see(t *testing.T, l *Loaded, packet []byte) (s seen) {
	t.Helper()
	s.action, s.packet = run(t, l.Program, packet)
	var err error
	if s.counts, err = l.Counts(); err != nil {
		t.Fatal(err)
	}
	for i := range s.counts {
		s.counts[i][kerbabi.Next] = Count{}
	}
	for _, m := range l.chain.spec.Members {
		drops, err := l.Drops(m.Name)
		if err != nil {
			t.Fatal(err)
		}
		s.drops += fmt.Sprint(drops, " ")
	}
	outcomes, err := sumPerCPU(l.Outcomes)
	if err != nil {
		t.Fatal(err)
	}
	s.drops += fmt.Sprint(outcomes)
	return s
}

// sampledChains are chains with every verdict, a deferred redirect, and several programs.
func sampledChains(t *testing.T) map[string]func(chain.Side, chain.Direction) []Module {
	pass := func(name string) Module { return testModule(t, "pass", name, nil) }
	out := map[string]func(chain.Side, chain.Direction) []Module{
		"dropper": func(chain.Side, chain.Direction) []Module {
			return []Module{pass("first"), testModule(t, "drop", "dropper", map[string]any{"port": 53}), pass("last")}
		},
		"deferred": func(chain.Side, chain.Direction) []Module {
			return []Module{later(t, "first", loopback), pass("second"), deciding(t, "last", kerbabi.Drop, nil)}
		},
	}
	for _, v := range []kerbabi.Verdict{kerbabi.Next, kerbabi.Drop, kerbabi.Reply, kerbabi.Redirect, 77} {
		out[fmt.Sprint("verdict ", uint8(v))] = func(chain.Side, chain.Direction) []Module {
			return []Module{pass("first"), deciding(t, "middle", v, nil), pass("last")}
		}
	}
	if os.Getenv("KERB_MATRIX") == "" { // else millions of verified instructions take minutes
		out["split"] = func(side chain.Side, _ chain.Direction) []Module {
			if side != chain.OnTCIngress {
				return nil
			}
			return []Module{testModule(t, "huge", "h1", nil), testModule(t, "huge", "h2", nil),
				testModule(t, "drop", "dropper", map[string]any{"port": 53}), pass("last")}
		}
	}
	return out
}

// A packet that is measured leaves the chain as any other does, and is counted as one: verdicts, drops, outcomes of
// parsing, and the packet itself.
func TestMeasuredPacketIsOrdinary(t *testing.T) {
	needsSampling(t)
	packets := [][]byte{udpPacket(t, 53, []byte("dropped")), udpPacket(t, 54, nil),
		representativeFrame("IPv6", packet.Fields{UDP: &packet.Ports{Src: 40000, Dst: 80}}),
		udpPacket(t, 53, nil)[:14+20+4]}
	for name, modules := range sampledChains(t) {
		for _, s := range sides {
			mods := modules(s.side, s.dir)
			if mods == nil {
				continue
			}
			t.Run(fmt.Sprint(name, " ", s.side), func(t *testing.T) {
				plain, copied := load(t, s.side, s.dir, mods...), timed(t, s.side, s.dir, mods...)
				for i, packet := range packets {
					for _, measure := range []bool{false, true} {
						sampleNext(t, copied, measure)
						before := measured(t, copied)[0]
						want, got := see(t, plain, packet), see(t, copied, packet)
						if fmt.Sprint(got) != fmt.Sprint(want) {
							t.Errorf("packet %d: measured %v\nplain %v", i, got, want)
						}
						if n := measured(t, copied)[0] - before; n != 0 != measure {
							t.Errorf("packet %d: %d measured, want %t", i, n, measure)
						}
					}
				}
			})
		}
	}
}

// A module that takes long does so in its own histogram and in the chain's, not in those of its neighbours.
func TestLatencyIsOfItsModule(t *testing.T) {
	needsSampling(t)
	for _, s := range sides {
		t.Run(string(s.side), func(t *testing.T) {
			l := timed(t, s.side, s.dir, testModule(t, "pass", "before", nil),
				testModule(t, "spin", "slow", map[string]any{"steps": 20000}), testModule(t, "pass", "after", nil))
			for range 101 {
				sampleNext(t, l, true)
				run(t, l.Program, udpPacket(t, 53, nil))
			}
			stats, err := l.Stats()
			if err != nil {
				t.Fatal(err)
			}
			median := func(l Latency) uint64 { return l.Histogram().Quantile(0.5) }
			before, slow, after := median(stats.Members[0].Latency), median(stats.Members[1].Latency),
				median(stats.Members[2].Latency)
			if slow < 10*before || slow < 10*after || median(stats.Latency) < slow/2 {
				t.Errorf("ns: %d before, %d of the slow one, %d after, %d of the chain", before, slow, after,
					median(stats.Latency))
			}
			if sum := stats.Members[1].Latency.Sum; sum < 101*slow/4 {
				t.Errorf("the sum of 101 is %d, the median is %d", sum, slow)
			}
		})
	}
}

// Latencies continue as counts do: when a module is replaced, when the chain is removed, and when the agent starts
// again, which does not link a copy that there is.
func TestLatencyOutlivesChains(t *testing.T) {
	needsSampling(t)
	w := newWorld(t, Options{})
	count, first := testModule(t, "pass", "count", nil), testModule(t, "drop", "dropper", map[string]any{"port": 53})
	second := testModule(t, "drop", "dropper", map[string]any{"port": 54})
	byName := func(d Module) map[string]Module { return map[string]Module{"count": count, "dropper": d} }
	send := func(spec chain.Spec, packets int) {
		t.Helper()
		prog, err := ebpf.LoadPinnedProgram(entryPin(w.layout.chain(spec)), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer prog.Close()
		repeat(t, prog, udpPacket(t, 55, nil), uint32(packets))
	}
	want := func(packets uint64) {
		t.Helper()
		all, err := w.Counts()
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"count", "dropper"} {
			l := all.Modules[CountKey{name, chain.OnTCIngress, chain.Egress}].Latency
			if got := l.Histogram().Count(); got != packets {
				t.Errorf("%s: %d packets measured, want %d", name, got, packets)
			}
		}
	}
	time := func(spec chain.Spec, d Module) {
		t.Helper()
		if err := w.Time(spec, byName(d), never); err != nil {
			t.Fatal(err)
		}
	}
	before := w.make(t, nil, count, first)
	time(before, first)
	send(before, SamplePeriod)
	want(1)
	after := w.make(t, map[string]string{"dropper": first.ID}, count, second)
	send(after, 1)
	time(after, second)
	send(after, 2*SamplePeriod-1)
	if err := w.RemoveChain(chain.Pinned{ID: before.ID(), Spec: before}); err != nil {
		t.Fatal(err)
	}
	all, err := w.Counts()
	if err != nil {
		t.Fatal(err)
	}
	l := all.Chains[after.ID()].Latency
	measured := l.Histogram().Count()
	want(1 + measured)
	again, err := Open(w.opts)
	if err != nil {
		t.Fatal(err)
	}
	w.Dataplane = again
	want(1 + measured)
	time(after, second)
	want(1 + measured)
	if measured == 0 {
		t.Error("no packet of the second chain was measured")
	}
	time(before, first) // is gone
}
