// SPDX-License-Identifier: Apache-2.0

package classifier_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"

	"github.com/kerb-edge/kerb/internal/chain"
)

// Enums of maps.h.
const (
	doEvent = iota
	doMark
	doRateLimit
	doDrop
)

const (
	evaluated = iota
	suspicious
	cleared
	fuseBlown
)

const (
	perWindow = uint8(iota)
	perPacket
	everyN
)

// event mirrors struct cls_event, block struct cls_block, fuse struct cls_fuse.
type (
	event struct {
		Time                         uint64
		Source                       key
		Kind, Action, Allowed, Cause uint8
		Version, Class               uint32
		Score                        int32
		Hits                         uint32
		Values                       [32]int32
	}
	block struct {
		Since, Until, Packets, Dropped, Due uint64
		Version, Class                      uint32
		Score                               int32
		Action                              uint8
		_                                   [3]uint8
	}
	fuse struct {
		Blown                 uint64
		Cause, Blocked        uint32
		Window                uint64
		Judged, SourcesBefore uint32
		Packets, Dropped      uint64
		Admitted, Promoted    uint32
		Held, _               uint32
	}
)

// withModel returns a kernel with a model that classifies sources above a threshold of a feature as attackers.
func withModel(t testing.TB, hook chain.Hook, feature string, above int, config settings) *kernel {
	t.Helper()
	k := load(t, hook, config)
	k.use(0, "rpl", feature, above)
	return k
}

// events returns the pending events.
func (k *kernel) events() (out []event) {
	k.t.Helper()
	r, err := ringbuf.NewReader(k.maps["verdicts"])
	if err != nil {
		k.t.Fatal(err)
	}
	defer r.Close()
	r.SetDeadline(time.Unix(1, 0))
	for {
		rec, err := r.Read()
		if errors.Is(err, ringbuf.ErrFlushed) || errors.Is(err, os.ErrDeadlineExceeded) {
			return out
		}
		var e event
		if err == nil {
			_, err = binary.Decode(rec.RawSample, binary.NativeEndian, &e)
		}
		if err != nil {
			k.t.Fatal(err)
		}
		out = append(out, e)
	}
}

func (k *kernel) fuse() (f fuse) {
	k.t.Helper()
	if err := k.maps["fuse"].Lookup(uint32(0), &f); err != nil {
		k.t.Fatal(err)
	}
	return
}

// block returns the block of a source, or nil.
func (k *kernel) block(of key) *block {
	k.t.Helper()
	var b block
	if err := k.maps["blocks"].Lookup(of, &b); errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil
	} else if err != nil {
		k.t.Fatal(err)
	}
	return &b
}

// kinds returns the kinds of events, with their actions.
func kinds(events []event) (out []string) {
	for _, e := range events {
		out = append(out, fmt.Sprint([]string{"evaluated", "suspicious", "cleared", "fuse"}[e.Kind], " ", e.Action))
	}
	return
}

// flood sends n DIS of a node in a window.
func (k *kernel) flood(n uint64, seq *byte, messages int) (v verdict) {
	k.t.Helper()
	for range messages {
		*seq++
		v = k.run(disFrame(n, *seq))
	}
	return v
}

var dropping = settings{"action": uint8(doDrop), "window_ns": second, "repeat_ns": uint64(0), "fuse_share": uint8(100),
	"hits_needed": uint8(2)}

func TestHysteresis(t *testing.T) {
	onHooks(t, with(dropping, settings{"hits_needed": uint8(2), "hits_of": uint8(3), "action_ns": 5 * second}),
		func(t *testing.T, k *kernel) {
			k.use(0, "rpl", "dis", 10)
			var seq byte
			// DIS per window; the following packet ends it.
			for i, w := range []struct {
				dis  int
				want verdict
			}{
				{20, passed}, // evaluated at the first packet of the next window: 1 of 1
				{5, passed},  // 1 of 2
				{20, passed}, // 2 of 3: blocked with the first packet of the next
				{1, passed},
				{1, dropped},
			} {
				k.at((100+uint64(i))*second + second/2)
				if got := k.flood(7, &seq, w.dis); got != w.want {
					t.Fatalf("window %d: %s", i, got)
				}
			}
			got := k.events()
			if fmt.Sprint(kinds(got)) != "[suspicious 3]" {
				t.Fatal(kinds(got))
			}
			e := got[0]
			if e.Source != euiKey(7) || e.Version != 1 || e.Class != 1 || e.Hits != 0b101 || e.Values[0] != 20 ||
				e.Values[17] != 5 || e.Time != 103*second {
				t.Errorf("%+v", e)
			}
			if k.run(disFrame(8, 1)) != passed {
				t.Error("another node is blocked too")
			}

			// The block expires 5 s after it began; a calm node is cleared after three windows.
			k.at(103*second + second/2 + 5*second)
			if k.flood(7, &seq, 1) != passed || k.block(euiKey(7)) != nil || k.fuse().Blocked != 0 {
				t.Fatal("the block has not expired")
			}
			for i := range uint64(4) {
				k.at((110 + i) * second)
				k.flood(7, &seq, 1)
			}
			if got := kinds(k.events()); fmt.Sprint(got) != "[cleared 0]" {
				t.Error(got)
			}
			if n := k.count(countDropped); n != 1 {
				t.Errorf("%d packets were dropped", n)
			}
		})
}

// `for` is a minimum: a block lasts that long after the last evaluation against the source. Dropped packets count in
// the next window, so that a continuing flood never passes.
func TestBlockOutlastsTheFlood(t *testing.T) {
	onHooks(t, with(dropping, settings{"hits_needed": uint8(1), "hits_of": uint8(1), "action_ns": 5 * second}),
		func(t *testing.T, k *kernel) {
			k.use(0, "rpl", "dis", 10)
			var seq byte
			const windows, perWindow = 20, 20
			for w := range uint64(windows) {
				k.at((100+w)*second + second/2)
				k.flood(7, &seq, perWindow)
			}
			if got := kinds(k.events()); fmt.Sprint(got) != "[suspicious 3]" {
				t.Errorf("a flood without a pause: %v", got)
			}
			if n, want := k.count(countDropped), uint64(windows-1)*perWindow-1; n != want {
				t.Errorf("%d packets of the flood were dropped, not %d", n, want)
			}
			// The first packet after the flood ends its last window at 120.5 s: blocked until 125.5 s, cleared before.
			for w := uint64(20); w < 28; w++ {
				want := dropped
				if w > 24 {
					want = passed
				}
				k.at((100+w)*second + second/2)
				if got := k.flood(7, &seq, 1); got != want {
					t.Errorf("%d s after the flood: %s", w-19, got)
				}
			}
			if got := kinds(k.events()); fmt.Sprint(got) != "[cleared 0]" || k.fuse().Blocked != 0 {
				t.Errorf("%v, %d blocked", got, k.fuse().Blocked)
			}
		})
}

// The same for IP flows, by the remote address.
func TestBlockedFlowsCount(t *testing.T) {
	config := with(dropping, settings{"extractor": uint8(1), "by_peer": true, "hits_needed": uint8(1), "hits_of": uint8(1),
		"action_ns": 2 * second})
	onHooks(t, config, func(t *testing.T, k *kernel) {
		k.use(0, "flow", "packets", 10)
		packet := udp6(1, 2, []byte("flood"))
		for w := range uint64(10) {
			k.at((100+w)*second + second/2)
			k.runs(packet, 20)
		}
		if n := k.count(countDropped); n != 9*20-1 {
			t.Errorf("%d packets of the flood were dropped, not %d", n, 9*20-1)
		}
	})
}

// suspect makes a node suspicious by two windows full of DIS, and sets the clock to the given second.
func (k *kernel) suspect(n uint64, until uint64) {
	k.t.Helper()
	var seq byte
	for i := until - 2; i < until; i++ {
		k.at(i * second)
		k.flood(n, &seq, 20)
	}
	k.at(until * second)
	k.flood(n, &seq, 1)
}

func TestBlockUntilFreed(t *testing.T) {
	onAHook(t, with(dropping, settings{"action_ns": uint64(0)}), func(t *testing.T, k *kernel) {
		k.use(0, "rpl", "dis", 10)
		k.suspect(7, 100)
		k.at(1e6 * second)
		if k.run(disFrame(7, 0)) != dropped {
			t.Fatal("the block has expired")
		}
		if err := k.maps["blocks"].Delete(euiKey(7)); err != nil {
			t.Fatal(err)
		}
		if k.run(disFrame(7, 1)) != passed {
			t.Error("the block is gone, but packets are not passed")
		}
	})
}

func TestRateLimit(t *testing.T) {
	onHooks(t, with(dropping, settings{"action": uint8(doRateLimit), "rate_cost": second / 10, "rate_burst": second / 2}),
		func(t *testing.T, k *kernel) {
			k.use(0, "rpl", "dis", 10)
			k.suspect(7, 100)
			many := func(n int) (through int) {
				for range n {
					if k.run(disFrame(7, 0)) == passed {
						through++
					}
				}
				return
			}
			if n := many(100); n != 6 { // a burst of five, and the one that is due
				t.Errorf("%d of 100 at once", n)
			}
			k.at(101 * second)
			if n := many(100); n != 6 {
				t.Errorf("%d of 100 a second later", n)
			}
			if k.count(countLimited) != 188 {
				t.Errorf("%d over the rate", k.count(countLimited))
			}
		})
}

func TestMark(t *testing.T) {
	k := withModel(t, chain.TC, "dis", 10, with(dropping, settings{"action": uint8(doMark), "mark": uint32(77)}))
	k.suspect(7, 100)
	out := skb{}
	opts := ebpf.RunOptions{Data: disFrame(7, 0), Repeat: 1, ContextOut: &out}
	if _, err := k.prog.Run(&opts); err != nil {
		t.Fatal(err)
	}
	if out.Mark != 77 {
		t.Errorf("mark %d", out.Mark)
	}
	if k.run(disFrame(8, 0)) != passed || k.count(countMarked) != 1 {
		t.Errorf("%d packets marked", k.count(countMarked))
	}
}

// skb mirrors the fields of struct __sk_buff that a test run sets.
type skb struct {
	Len, PktType, Mark uint32
	_                  [45]uint32
}

func TestAllowed(t *testing.T) {
	onAHook(t, dropping, func(t *testing.T, k *kernel) {
		k.use(0, "rpl", "dis", 10)
		type prefix struct {
			Len, Half uint32
			Addr      [16]byte
		}
		half, err := k.maps.ActiveHalf()
		if err != nil {
			t.Fatal(err)
		}
		if err := k.maps["allowed"].Put(prefix{32 + 128, uint32(half), euiKey(7).Addr}, uint32(1)); err != nil {
			t.Fatal(err)
		}
		k.suspect(7, 100)
		k.suspect(8, 110)
		if k.run(disFrame(7, 0)) != passed || k.run(disFrame(8, 0)) != dropped {
			t.Error("not by the allow-list")
		}
		got := k.events()
		if fmt.Sprint(kinds(got)) != "[suspicious 0 suspicious 3]" || got[0].Allowed != 1 || got[1].Allowed != 0 {
			t.Error(kinds(got))
		}
	})
}

func TestWatch(t *testing.T) {
	onAHook(t, with(dropping, settings{"watch": true}), func(t *testing.T, k *kernel) {
		k.use(0, "rpl", "dis", 10)
		k.suspect(7, 100)
		if k.run(disFrame(7, 0)) != passed || k.count(countWatched) == 0 {
			t.Error("watch mode acts, or does not count what it would have done")
		}
		if got := kinds(k.events()); fmt.Sprint(got) != "[suspicious 0]" {
			t.Error(got)
		}
	})
}

// Records and the fuse survive a change of the config. Their contents for windows of another length do not count as
// evaluations, and evaluation continues, although recorded window numbers may be higher than the next ones.
func TestWindowsOfAnotherLength(t *testing.T) {
	for _, before := range []uint64{1, 200, 1e6} { // the number of the window
		onHooks(t, dropping, func(t *testing.T, k *kernel) {
			k.use(0, "rpl", "dis", 10)
			var seq byte
			k.at(100 * second)
			k.flood(7, &seq, 20)
			r, err := k.maps["records"].LookupBytes(euiKey(7))
			if err != nil {
				t.Fatal(err)
			}
			binary.NativeEndian.PutUint64(r[16:], before) // slice
			r[len(r)-4] ^= 2                              // span, the last member
			f := k.fuse()
			f.Window, f.Admitted = before, 4096
			if err := errors.Join(k.maps["records"].Put(euiKey(7), r), k.maps["fuse"].Put(uint32(0), f)); err != nil {
				t.Fatal(err)
			}
			k.at(101 * second)
			k.flood(7, &seq, 1)
			k.flood(8, &seq, 1)
			if n := k.count(countEvaluated); n != 0 {
				t.Errorf("after window %d: %d evaluations of a window that was another one", before, n)
			}
			if r, err = k.maps["records"].LookupBytes(euiKey(8)); err != nil || r == nil || k.fuse().Window != 101 {
				t.Errorf("after window %d: a new source: %v %v, the fuse is in window %d", before, r, err, k.fuse().Window)
			}
			k.at(102 * second)
			k.flood(7, &seq, 20)
			k.at(103 * second)
			k.flood(7, &seq, 1)
			if n, bad := k.count(countEvaluated), k.count(countPositive); n != 2 || bad != 1 {
				t.Errorf("after window %d: %d evaluations, %d against it", before, n, bad)
			}
		})
	}
}

// TestFuse uses a model that classifies all sources as attackers.
func TestFuse(t *testing.T) {
	everybody := func(k *kernel) {
		k.use(0, "rpl", "messages", 0)
		var seq byte
		for w := uint64(100); w < 104; w++ {
			k.at(w * second)
			for n := range uint64(12) {
				k.flood(n, &seq, 1)
			}
		}
	}
	for name, c := range map[string]struct {
		config settings
		cause  uint32
		most   uint32 // sources that were blocked before it tripped
	}{
		"sources": {settings{"fuse_sources": uint32(5)}, 1, 5},
		"share":   {settings{"fuse_share": uint8(50), "fuse_least": uint32(2)}, 2, 6},
	} {
		t.Run(name, func(t *testing.T) {
			onAHook(t, with(dropping, c.config), func(t *testing.T, k *kernel) {
				everybody(k)
				f := k.fuse()
				if f.Blown == 0 || f.Cause != c.cause || f.Blocked > c.most {
					t.Fatalf("%+v", f)
				}
				for n := range uint64(12) {
					if k.run(disFrame(n, 0)) != passed {
						t.Errorf("node %d is cut off", n)
					}
				}
				blew := 0
				for _, e := range k.events() {
					if e.Kind == fuseBlown {
						blew++
					}
				}
				if blew != 1 {
					t.Errorf("%d events of the fuse", blew)
				}
			})
		})
	}
	t.Run("packets", func(t *testing.T) {
		onAHook(t, with(dropping, settings{"packet_fuse": true, "fuse_packets": uint8(60)}), func(t *testing.T, k *kernel) {
			k.use(0, "rpl", "dis", 10)
			k.suspect(7, 100)
			drops := 0
			for i := range 400 {
				k.run(disFrame(8, byte(i)))
				if k.run(disFrame(7, byte(i))) == dropped {
					drops++
				}
			}
			if k.fuse().Blown != 0 || drops != 400 {
				t.Fatalf("half of the packets is too much: %+v, %d dropped", k.fuse(), drops)
			}
			for i := range 400 {
				k.run(disFrame(7, byte(i)))
			}
			if k.fuse().Cause != 3 || k.run(disFrame(7, 0)) != passed {
				t.Errorf("%+v", k.fuse())
			}
		})
	})
	t.Run("honest network", func(t *testing.T) {
		onAHook(t, with(dropping, settings{"fuse_share": uint8(50), "fuse_least": uint32(2)}), func(t *testing.T, k *kernel) {
			k.use(0, "rpl", "dis", 10)
			var seq byte
			for w := uint64(100); w < 106; w++ {
				k.at(w * second)
				for n := range uint64(12) {
					k.flood(n, &seq, map[bool]int{true: 20, false: 1}[n < 4]) // 4 attackers of 12
				}
			}
			if f := k.fuse(); f.Blown != 0 || f.Blocked != 4 {
				t.Errorf("%+v", f)
			}
		})
	})
}

func TestShadow(t *testing.T) {
	onAHook(t, with(dropping, settings{"events": uint8(2)}), func(t *testing.T, k *kernel) {
		k.use(0, "rpl", "dis", 10)
		k.use(1, "rpl", "messages", 5)
		var seq byte
		for i := range uint64(10) { // 15 DIS: both; 7: the shadow only; 1: none
			k.at((100 + i) * second)
			k.flood(9, &seq, 1)
			k.flood(8, &seq, 7)
			if i == 5 {
				k.flood(7, &seq, 15)
			}
		}
		k.flood(7, &seq, 1)
		both, none, live, shadow := k.count(countBothPositive), k.count(countBothHarmless), k.count(countOnlyLive),
			k.count(countOnlyShadow)
		if both != 1 || none != 9 || live != 0 || shadow != 9 || k.count(countSameClass) != 10 {
			t.Error(both, none, live, shadow, k.count(countSameClass))
		}
		if n := len(k.events()); n != 19 || k.count(countEvaluated) != 19 {
			t.Errorf("%d events of %d evaluations", n, k.count(countEvaluated))
		}
		if k.block(euiKey(8)) != nil {
			t.Error("the shadow acts")
		}
	})
}

func TestNoModel(t *testing.T) {
	onAHook(t, dropping, func(t *testing.T, k *kernel) {
		k.suspect(7, 100)
		if k.run(disFrame(7, 0)) != passed || k.count(countNoModel) != 2 || k.count(countEvaluated) != 0 ||
			len(k.events()) != 0 {
			t.Error("something is evaluated without a model")
		}
	})
}

// TestWhen evaluates the window so far for each packet, and for each 5th.
func TestWhen(t *testing.T) {
	for name, c := range map[string]struct {
		config settings
		want   []int32 // messages at each evaluation
	}{
		"packet":  {settings{"when": perPacket}, []int32{1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6}},
		"packets": {settings{"when": everyN, "every": uint32(5)}, []int32{5, 4}},
		"flow":    {settings{"when": everyN, "every": uint32(5), "window_ns": uint64(0)}, []int32{5, 10}},
	} {
		t.Run(name, func(t *testing.T) {
			onAHook(t, with(dropping, settings{"events": uint8(2)}, c.config), func(t *testing.T, k *kernel) {
				k.use(0, "rpl", "dis", 1000)
				var seq byte
				for w := range uint64(2) {
					k.at((100 + w) * second)
					k.flood(7, &seq, 6)
				}
				var got []int32
				for _, e := range k.events() {
					got = append(got, e.Values[6])
				}
				if fmt.Sprint(got) != fmt.Sprint(c.want) {
					t.Errorf("%v, want %v", got, c.want)
				}
			})
		})
	}
}

func TestLaterPacket(t *testing.T) {
	onAHook(t, with(dropping, settings{"deferred": uint8(1), "events": uint8(2)}), func(t *testing.T, k *kernel) {
		k.use(0, "rpl", "dis", 10)
		var seq byte
		k.at(100 * second)
		k.flood(7, &seq, 3)
		k.flood(8, &seq, 3)
		k.at(101 * second)
		k.flood(7, &seq, 2) // both are deferred: the second has no pause before it
		k.flood(8, &seq, 2)
		for i := range uint64(3) {
			k.at(101*second + (i+1)*second/10)
			k.flood(9, &seq, 1)
		}
		got := k.events()
		if len(got) != 2 || got[0].Source != euiKey(7) || got[1].Source != euiKey(8) || got[0].Values[0] != 3 {
			t.Error(got)
		}
	})
}

func TestTimer(t *testing.T) {
	needTimers(t)
	onAHook(t, with(dropping, settings{"deferred": uint8(2), "events": uint8(2)}), func(t *testing.T, k *kernel) {
		k.use(0, "rpl", "dis", 10)
		var seq byte
		for w := range uint64(2) {
			k.at((100 + w) * second)
			for n := range uint64(100) {
				k.flood(n, &seq, 1)
			}
		}
		if n := len(k.awaitEvents(100)); n != 100 || k.count(countEvaluated) != 100 || k.count(countNoRoom) != 0 {
			t.Errorf("%d events and %d evaluations of 100 sources, %d found no room", n, k.count(countEvaluated),
				k.count(countNoRoom))
		}
	})
}

// TestSecured tests the three policies for encrypted frames.
func TestSecured(t *testing.T) {
	frame := macFrame{version: 1, flags: 1 << 3, compress: true, dstPAN: pan, dst: uint16(1), src: node(7),
		payload: make([]byte, 20)}
	for policy, want := range []verdict{passed, passed, dropped} {
		t.Run(fmt.Sprint(policy), func(t *testing.T) {
			onAHook(t, with(dropping, settings{"secured": uint8(policy), "deferred": inUser}), func(t *testing.T, k *kernel) {
				for w := range uint64(2) {
					k.at((100 + w) * second)
					for range 3 {
						if got := k.run(frame.bytes()); got != want {
							t.Fatal(got)
						}
					}
				}
				w, counted := k.taken(euiKey(7))
				if counted != (policy == 1) || (counted && (w.Values[5] != 3 || w.Values[12] != 3)) || k.count(countSecured) != 6 {
					t.Errorf("counted %v: %v; %d secured", counted, w.Values, k.count(countSecured))
				}
			})
		})
	}
}

// TestFragments sends a blocked node's datagram in fragments.
func TestFragments(t *testing.T) {
	whole := disFrame(7, 1)
	mac, payload := whole[:len(whole)-10], whole[len(whole)-10:]
	first := append(append(append([]byte{}, mac...), 0xc0, 100, 0, 9), payload...)
	later := append(append(append([]byte{}, mac...), 0xe0, 100, 0, 9, 8), make([]byte, 30)...)
	onAHook(t, dropping, func(t *testing.T, k *kernel) {
		k.use(0, "rpl", "dis", 10)
		if k.run(later) != passed || k.count(countNoSource) != 1 {
			t.Fatal("a fragment without a first one has a source")
		}
		k.suspect(7, 100)
		if k.run(first) != dropped || k.run(later) != dropped {
			t.Error("fragments of a blocked node pass")
		}
	})
}
