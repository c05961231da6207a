// SPDX-License-Identifier: Apache-2.0

package classifier_test

import (
	"fmt"
	"runtime"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/sdk/sdktest"
)

// The verifier's work bounds how many modules fit into one program with the classifier (1,000,000 in all).
const maxVerified = 220000

func TestVerifies(t *testing.T) {
	for name, config := range map[string]settings{
		"rpl": {}, "zep": {"frames": uint8(2), "sliding": true, "when": perPacket, "action": uint8(doDrop)},
		"flow": {"extractor": uint8(1), "sliding": true, "when": everyN, "action": uint8(doRateLimit),
			"packet_fuse": true, "fuse_packets": uint8(50)},
		"timer": {"deferred": uint8(2), "lapse_ns": second}, "user": {"deferred": inUser},
		"lapse":                {"sliding": true, "lapse_ns": second},
		"timer without timers": with(noTimers, settings{"deferred": uint8(2), "lapse_ns": second}),
		"lapse without timers": with(noTimers, settings{"sliding": true, "lapse_ns": second}),
	} {
		t.Run(name, func(t *testing.T) {
			for _, hook := range hooks {
				t.Run(string(hook), func(t *testing.T) { verifies(t, hook, config) })
			}
		})
	}
}

func verifies(t *testing.T, hook chain.Hook, config settings) {
	sdktest.NeedRoot(t)
	l, err := dataplane.Load(sideOf(hook), chain.Ingress, module(t, compile(t, "{}"), config))
	sdktest.Explain(t, err)
	defer l.Close()
	sdktest.CheckVerified(t, l.Program, maxVerified)
}

// TestFlood sends a million messages in a window, and as many repetitions of one.
func TestFlood(t *testing.T) {
	const million = 1000000
	for repeat, want := range map[uint64][3]int32{0: {million, 0, million}, 250e6: {1, million - 1, 1}} {
		t.Run(fmt.Sprint(repeat), func(t *testing.T) {
			onAHook(t, settings{"deferred": inUser, "repeat_ns": repeat}, func(t *testing.T, k *kernel) {
				k.at(100 * second)
				k.runs(disFrame(7, 1), million)
				k.at(106 * second)
				k.run(disFrame(7, 2))
				w, ok := k.taken(euiKey(7))
				if got := [3]int32{w.Values[0], w.Values[7], w.Values[6]}; !ok || got != want {
					t.Errorf("%v DIS, repeats, messages; want %v", got, want)
				}
			})
		})
	}
}

// TestTwoCPUs checks that packets of the same sources on two CPUs are counted exactly, also while windows end.
func TestTwoCPUs(t *testing.T) {
	const each, windows = 40000, 10
	k := load(t, chain.XDP, settings{"repeat_ns": uint64(0), "window_ns": second, "deferred": inUser})
	var messages int64
	for w := range uint64(windows) {
		k.at((100 + w) * second)
		var wg sync.WaitGroup
		for cpu := range min(2, runtime.NumCPU()) {
			wg.Add(1)
			go func() {
				defer wg.Done()
				runtime.LockOSThread() // never unlocked, so that the thread exits with its affinity
				var set unix.CPUSet
				set.Set(cpu)
				if err := unix.SchedSetaffinity(0, &set); err != nil {
					t.Error(err)
				}
				k.runs(disFrame(7, 1), each)
			}()
		}
		wg.Wait()
		if w > 0 {
			got, ok := k.taken(euiKey(7))
			if !ok {
				t.Fatalf("no window %d", w)
			}
			messages += int64(got.Values[0])
		}
	}
	k.at((100 + windows) * second)
	k.run(disFrame(7, 1))
	last, _ := k.taken(euiKey(7))
	messages += int64(last.Values[0])
	if want := int64(min(2, runtime.NumCPU())) * each * windows; messages != want ||
		k.count(countMessages) != uint64(want)+1 {
		t.Errorf("%d messages in windows, %d in all; %d were sent", messages, k.count(countMessages), want)
	}
}

// TestForgedSources sends from 100,000 forged sources in one window, while honest nodes send once in each third of the
// flood.
func TestForgedSources(t *testing.T) {
	const forged, honest, capacity = 100000, 100, 4096
	onAHook(t, settings{"deferred": inUser, "capacity": uint32(capacity)}, func(t *testing.T, k *kernel) {
		hear := func(seq byte) {
			for n := range uint64(honest) {
				k.run(disFrame(n, seq))
			}
		}
		k.at(100 * second)
		hear(0)
		for i := range uint64(forged) {
			if i%(forged/3) == 0 {
				hear(byte(1 + i/(forged/3)))
			}
			k.run(disFrame(1e6+i, byte(i)))
		}
		for n := range uint64(honest) {
			var r [1024]byte
			if err := k.maps["records"].Lookup(euiKey(n), r[:k.maps["records"].ValueSize()]); err != nil {
				t.Fatalf("honest node %d: %v", n, err)
			}
		}
		admitted := k.count(countAdmitted)
		if most := uint64(honest + 2*capacity/8); admitted > most {
			t.Errorf("%d sources got a record, more than %d", admitted, most)
		}
		if probation := k.count(countProbation); admitted+probation < forged {
			t.Errorf("%d got a record, %d were newcomers, of %d", admitted, probation, forged)
		}
		k.at(106 * second)
		hear(9)
		for n := range uint64(honest) {
			if w, ok := k.taken(euiKey(n)); !ok || w.Values[0] != 5 {
				t.Fatalf("honest node %d: %v %v", n, ok, w.Values[:8])
			}
		}
	})
}

// TestNewcomers adds many sources at once: all that keep sending are admitted, an eighth of the table per window.
func TestNewcomers(t *testing.T) {
	const capacity, nodes = 256, 100 // 32 at once, 32 more a window
	k := load(t, chain.XDP, settings{"capacity": uint32(capacity), "probation_packets": uint32(4)})
	var known []uint64
	for w := range uint64(3) {
		k.at((100 + 5*w) * second)
		for i := range 4 {
			for n := range uint64(nodes) {
				k.run(disFrame(n, byte(4*int(w)+i)))
			}
		}
		known = append(known, k.count(countAdmitted))
	}
	if fmt.Sprint(known) != "[64 100 100]" {
		t.Errorf("%v have a record after each window", known)
	}
}
