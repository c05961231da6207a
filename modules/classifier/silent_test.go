// SPDX-License-Identifier: Apache-2.0

package classifier_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/lab/wait"
	"github.com/kerb-edge/kerb/internal/pkgs/pkgstest"
	"github.com/kerb-edge/kerb/sdk/sdktest"
)

// A window also ends by the timer: a source that floods and then stops is evaluated once. Empty windows are not
// evaluated.
func TestSilentSources(t *testing.T) {
	needTimers(t)
	const often = second / 50
	onHooks(t, with(dropping, settings{"hits_needed": uint8(1), "lapse_ns": often}), func(t *testing.T, k *kernel) {
		k.use(0, "rpl", "dis", 10)
		var seq byte
		k.at(100*second + second/2)
		k.flood(7, &seq, 20)
		k.flood(8, &seq, 3)
		k.stays(countEvaluated, 0)
		k.at(101*second + 1)
		k.becomes(countEvaluated, 2)
		got := k.awaitEvents(1)
		if k.block(euiKey(7)) == nil || k.block(euiKey(8)) != nil {
			t.Errorf("blocked: %+v, the calm one: %+v", k.block(euiKey(7)), k.block(euiKey(8)))
		}
		if fmt.Sprint(kinds(got)) != "[suspicious 3]" || got[0].Source != euiKey(7) || got[0].Time != 101*second ||
			got[0].Values[0] != 20 {
			t.Fatalf("%+v", got)
		}
		k.at(104 * second)
		k.stays(countEvaluated, 2)
		if k.run(disFrame(7, seq+1)) != dropped || k.run(disFrame(8, seq+1)) != passed {
			t.Error("the silent one is not blocked, or the calm one is")
		}
		k.stays(countEvaluated, 2) // the first packet after a pause ends an empty window
		k.at(105 * second)
		k.becomes(countEvaluated, 4) // of both: dropped packets count
	})
}

// Thousands of windows that end at the same time are all evaluated once, in short runs of the timer.
func TestManySilentSources(t *testing.T) {
	needTimers(t)
	const sources = 3000
	config := with(dropping, settings{"action": uint8(doEvent), "lapse_ns": second / 50, "capacity": uint32(1 << 20)})
	onAHook(t, config, func(t *testing.T, k *kernel) {
		k.use(0, "rpl", "dis", 10)
		var seq byte
		k.at(100 * second)
		for n := range uint64(sources) {
			k.flood(n, &seq, 1)
		}
		k.at(101 * second)
		k.becomes(countEvaluated, sources)
		k.at(103 * second)
		k.stays(countEvaluated, sources)
		if n := k.count(countNoRoom); n != 0 {
			t.Errorf("%d found no room", n)
		}
	})
}

// A run of the timer takes a bounded number of steps for any number of sources: the programs do not iterate over maps.
func TestTimerIsBounded(t *testing.T) {
	p := pkgstest.Package(t)
	for _, hook := range hooks {
		spec, err := p.Spec(string(hook))
		if err != nil {
			t.Fatal(err)
		}
		for name, prog := range spec.Programs {
			for _, ins := range prog.Instructions {
				if ins.IsBuiltinCall() && ins.Constant == int64(asm.FnForEachMapElem) {
					t.Errorf("%s, %s: bpf_for_each_map_elem", hook, name)
				}
			}
		}
	}
}

// The same with evaluation in the control plane, and with sliding windows: each window with the flood is evaluated.
func TestSilentSourcesElsewhere(t *testing.T) {
	needTimers(t)
	config := with(dropping, settings{"deferred": inUser, "lapse_ns": second / 50})
	onAHook(t, config, func(t *testing.T, k *kernel) {
		var seq byte
		k.at(100 * second)
		k.flood(7, &seq, 20)
		k.at(101 * second)
		k.until("there is a window", func() bool { return k.len("windows") > 0 })
		if w, ok := k.taken(euiKey(7)); !ok || w.Time != 101*second || w.Values[0] != 20 {
			t.Errorf("%v %+v", ok, w)
		}
	})
	onAHook(t, with(config, settings{"deferred": uint8(0), "sliding": true, "action": uint8(doEvent), "events": uint8(2)}),
		func(t *testing.T, k *kernel) {
			k.use(0, "rpl", "dis", 10)
			var seq byte
			k.at(100 * second)
			k.flood(7, &seq, 20)
			for i := range uint64(6) {
				k.at(100*second + (i+1)*second/4)
				k.becomes(countEvaluated, min(i+1, 4))
			}
			k.stays(countEvaluated, 4)
			for _, e := range k.awaitEvents(4) {
				if e.Values[0] != 20 {
					t.Errorf("%+v", e)
				}
			}
		})
}

// noTimers has the data plane do without timers, as on kernels with PREEMPT_RT, which refuse them.
var noTimers = settings{"kerb_preemptible": true}

// hasTimers reports whether the data plane uses timers on this kernel.
func hasTimers(t *testing.T) bool {
	t.Helper()
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		t.Fatal(err)
	}
	return !strings.Contains(unix.ByteSliceToString(u.Version[:]), "PREEMPT_RT")
}

func needTimers(t *testing.T) {
	t.Helper()
	if !hasTimers(t) {
		t.Skip("on this kernel, which has PREEMPT_RT, the data plane uses no timers")
	}
}

// A kernel with PREEMPT_RT refuses timers, which the explanation of the error says.
func TestTimersAreRefused(t *testing.T) {
	if hasTimers(t) {
		t.Skip("this kernel has no PREEMPT_RT")
	}
	sdktest.NeedRoot(t)
	config := settings{"kerb_preemptible": false, "lapse_ns": second}
	_, err := dataplane.Load(sideOf(hooks[0]), chain.Ingress, module(t, compile(t, "{}"), config))
	var rejected *dataplane.RejectedError
	if !errors.As(err, &rejected) || !strings.Contains(rejected.Plain, "BPF timer") {
		t.Errorf("%v", err)
	}
}

// Without timers, packets of other sources end windows, each a few, at most once per clock tick.
func TestSilentSourcesWithoutTimers(t *testing.T) {
	const sources, perPacket = 20, 8
	config := with(dropping, noTimers, settings{"hits_needed": uint8(1), "lapse_ns": second / 50})
	onHooks(t, config, func(t *testing.T, k *kernel) {
		k.use(0, "rpl", "dis", 10)
		var seq byte
		k.at(100*second + second/2)
		for n := range uint64(sources) {
			k.flood(n, &seq, 20)
		}
		k.at(101*second + 1)
		k.stays(countEvaluated, 0)
		for i := range uint64(4) {
			k.at(101*second + 1 + i)
			k.run(disFrame(99, byte(i)))
			if got, want := k.count(countEvaluated), min(perPacket*(i+1), sources); got != want {
				t.Fatalf("after packet %d, %d windows are evaluated, want %d", i, got, want)
			}
		}
		for n := range uint64(sources) {
			if k.block(euiKey(n)) == nil {
				t.Errorf("source %d is not blocked", n)
			}
		}
		if k.block(euiKey(99)) != nil {
			t.Error("the source of the packets is blocked")
		}
	})
}

// Without timers, evaluations that are to run on one run on later packets.
func TestPendingEvaluationsWithoutTimers(t *testing.T) {
	config := with(dropping, noTimers, settings{"deferred": uint8(2), "hits_needed": uint8(1)})
	onHooks(t, config, func(t *testing.T, k *kernel) {
		k.use(0, "rpl", "dis", 10)
		var seq byte
		k.at(100 * second)
		k.flood(7, &seq, 20)
		k.at(101 * second)
		k.run(disFrame(7, seq+1)) // ends the window
		k.at(101*second + 1)
		k.run(disFrame(8, seq+1))
		if got := k.count(countEvaluated); got != 1 || k.block(euiKey(7)) == nil {
			t.Errorf("%d evaluations, want 1; block %+v", got, k.block(euiKey(7)))
		}
	})
}

// until waits for a condition on the maps.
func (k *kernel) until(what string, ok func() bool) {
	k.t.Helper()
	wait.Until(k.t, what, ok, func() any {
		var all []uint64
		for what := range uint32(countNoRoom + 1) {
			all = append(all, k.count(what))
		}
		return fmt.Sprintf("counts %v, %d windows armed", all, k.armed())
	})
}

// armed returns the number of window ends that the timer has not reached yet.
func (k *kernel) armed() (n int) {
	var lapse [64]byte
	for k.maps["lapsing"].LookupAndDelete(nil, lapse[:k.maps["lapsing"].ValueSize()]) == nil {
		n++
	}
	return n
}

// becomes waits until a count has a value. The data plane acts right after it counts.
func (k *kernel) becomes(what uint32, want uint64) {
	k.t.Helper()
	k.until(fmt.Sprintf("count %d is %d", what, want), func() bool { return k.count(what) >= want })
	if got := k.count(what); got != want {
		k.t.Fatalf("count %d is %d, want %d", what, got, want)
	}
}

// awaitEvents waits for a number of events, which an evaluation sends last.
func (k *kernel) awaitEvents(n int) (all []event) {
	k.t.Helper()
	k.until(fmt.Sprintf("there are %d events", n), func() bool {
		all = append(all, k.events()...)
		return len(all) >= n
	})
	return all
}

// stays checks that a count is unchanged after several runs of the timer.
func (k *kernel) stays(what uint32, want uint64) {
	k.t.Helper()
	time.Sleep(100 * time.Millisecond) // several runs of the timer
	if got := k.count(what); got != want {
		k.t.Fatalf("count %d is %d, want %d", what, got, want)
	}
}
