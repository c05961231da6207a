// SPDX-License-Identifier: Apache-2.0

package counter

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/pkgs"
	"github.com/kerb-edge/kerb/sdk"
)

// compile builds the package alongside the source tree. The kernels of the matrix have no compiler; there it uses
// prebuilt objects.
func compile(t testing.TB) *pkgs.Package {
	t.Helper()
	dir := "."
	if os.Getenv("KERB_MATRIX") == "" {
		dir = t.TempDir()
		build(t, dir)
	}
	p, err := pkgs.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func build(t testing.TB, dir string) {
	t.Helper()
	for _, file := range []string{"kerb.yaml", "counter.bpf.c"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, file), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var out strings.Builder
	if err := pkgs.Build(context.Background(), dir, pkgs.Options{Out: &out}); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
}

func module(t testing.TB) dataplane.Module {
	t.Helper()
	p := compile(t)
	if err := p.CheckMemory("", nil); err != nil {
		t.Fatal(err)
	}
	return dataplane.Module{Name: "counter", ID: "0123456789", Frags: p.Frags,
		Spec: func(h chain.Hook) (*ebpf.CollectionSpec, error) { return p.Spec(string(h)) }}
}

// counter is a loaded chain with this module only, for both directions.
type counter struct {
	egress, ingress *ebpf.Program
	live            sdk.Live
}

func load(t testing.TB, side chain.Side, change func(*dataplane.Module)) *counter {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root for BPF")
	}
	if err := rlimit.RemoveMemlock(); err != nil {
		t.Fatal(err)
	}
	mod := module(t)
	if change != nil {
		change(&mod)
	}
	l, err := dataplane.Load(side, chain.Egress, mod)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	ingress, err := l.Relink(chain.Spec{Side: side, Direction: chain.Ingress,
		Members: []chain.Member{{Name: mod.Name, ID: mod.ID}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ingress.Close() })
	return &counter{l.Program, ingress, sdk.Live{Module: "counter", Maps: l.Maps["counter"],
		Attachments: func() []sdk.Attachment {
			return []sdk.Attachment{{Service: "web", Interface: "lo", Ifindex: 1}}
		}}}
}

// run passes a frame through a program repeatedly, one run at a time, since an interrupted run of several is restarted.
func run(t *testing.T, p *ebpf.Program, frame []byte, times int) {
	t.Helper()
	for range times {
		if _, err := p.Run(&ebpf.RunOptions{Data: frame, Repeat: 1}); err != nil {
			t.Fatal(err)
		}
	}
}

func ip4(proto byte, payload int) []byte {
	f := make([]byte, 14+20+payload)
	f[12] = 0x08
	f[14], f[17], f[23] = 0x45, byte(20+payload), proto
	f[14+20+12] = 5 << 4 // TCP: 20 bytes of header
	return f
}

func ip6(proto byte, payload int) []byte {
	f := make([]byte, 14+40+payload)
	f[12], f[13] = 0x86, 0xdd
	f[14], f[19], f[20] = 0x60, byte(payload), proto
	f[14+40+12] = 5 << 4
	return f
}

func TestCounts(t *testing.T) {
	for _, side := range []chain.Side{chain.OnTCIngress, chain.OnXDP} {
		t.Run(string(side), func(t *testing.T) {
			c := load(t, side, nil)
			run(t, c.egress, ip4(6, 20), 3)
			run(t, c.egress, ip4(17, 26), 1) // UDP length 0 is allowed
			run(t, c.egress, ip6(6, 20), 2)
			run(t, c.egress, ip6(132, 20), 1)
			run(t, c.ingress, ip4(6, 20), 5)
			arp := make([]byte, 60)
			arp[12], arp[13] = 0x08, 0x06
			run(t, c.egress, arp, 4)
			report, err := (running{c.live}).read()
			if err != nil {
				t.Fatal(err)
			}
			want := &Report{Counts: []Entry{
				{"web", "lo", "egress", "ipv4", "tcp", Count{3, 3 * 54}},
				{"web", "lo", "egress", "ipv4", "udp", Count{1, 60}},
				{"web", "lo", "egress", "ipv6", "sctp", Count{1, 74}},
				{"web", "lo", "egress", "ipv6", "tcp", Count{2, 2 * 74}},
				{"web", "lo", "egress", "other", "other", Count{4, 4 * 60}},
				{"web", "lo", "ingress", "ipv4", "tcp", Count{5, 5 * 54}},
			}, Totals: map[string]Count{"egress": {11, 3*54 + 60 + 74 + 2*74 + 240}, "ingress": {5, 5 * 54}},
				Overflow: map[string]Count{"egress": {}, "ingress": {}}}
			if side == chain.OnXDP {
				for i := range want.Counts {
					want.Counts[i].Interface = report.Counts[i].Interface // test runs have a separate interface
				}
			}
			if diff := cmp.Diff(want, report); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// Every packet is counted, also when all CPUs make the same new entry at once.
func TestExactOnSeveralCPUs(t *testing.T) {
	for name, places := range map[string]uint32{"places": 2048, "hash table": 1} {
		t.Run(name, func(t *testing.T) { exactOnSeveralCPUs(t, places) })
	}
}

func exactOnSeveralCPUs(t *testing.T, places uint32) {
	c := load(t, chain.OnTCIngress, func(m *dataplane.Module) {
		m.Settings.MaxEntries = map[string]uint32{mapPlaces: places}
	})
	const repeat, rounds = 3000, 20
	var wg sync.WaitGroup
	for cpu := range runtime.NumCPU() {
		wg.Add(1)
		go func() {
			defer wg.Done()
			runtime.LockOSThread()
			var set unix.CPUSet
			set.Set(cpu)
			if err := unix.SchedSetaffinity(0, &set); err != nil {
				t.Error(err)
				return
			}
			for round := range rounds {
				for range repeat { // one at a time: a run of several is restarted after a signal
					if _, err := c.egress.Run(&ebpf.RunOptions{Data: ip4(byte(100+round), 20)}); err != nil {
						t.Error(err)
						return
					}
				}
			}
		}()
	}
	wg.Wait()
	report, err := (running{c.live}).read()
	if err != nil {
		t.Fatal(err)
	}
	if len(report.Counts) != rounds {
		t.Errorf("%d entries, want %d", len(report.Counts), rounds)
	}
	for _, e := range report.Counts {
		if want := uint64(repeat * runtime.NumCPU()); e.Packets != want || e.Bytes != want*54 {
			t.Errorf("protocol %s: %+v, want %d packets", e.Protocol, e.Count, want)
		}
	}
}

func TestFullTableCountsInOverflow(t *testing.T) {
	c := load(t, chain.OnTCIngress, func(m *dataplane.Module) {
		m.Settings.MaxEntries = map[string]uint32{mapPlaces: 1, mapCounts: 2} // no key of the test has place 0
	})
	for proto := range byte(5) {
		run(t, c.egress, ip4(100+proto, 20), 2)
	}
	report, err := (running{c.live}).read()
	if err != nil {
		t.Fatal(err)
	}
	if len(report.Counts) != 2 || report.Overflow["egress"] != (Count{6, 6 * 54}) ||
		report.Totals["egress"].Packets != 10 {
		t.Errorf("%+v", report)
	}
}

func TestSweepForgetsVanishedInterfaces(t *testing.T) {
	c := load(t, chain.OnTCIngress, func(m *dataplane.Module) { m.Settings.MaxEntries = map[string]uint32{mapPlaces: 1} })
	run(t, c.egress, ip4(6, 20), 1)
	run(t, c.egress, ip6(6, 20), 1)
	gone := map[uint32]bool{}
	entries := func() (n int) {
		t.Helper()
		err := eachEntry(c.live.Maps, func(key, []Count) { n++ })
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	shown := func(live sdk.Live) int {
		t.Helper()
		report, err := (running{live}).read()
		if err != nil {
			t.Fatal(err)
		}
		return len(report.Counts)
	}
	for _, step := range []struct {
		there bool
		left  int
	}{{true, 2}, {false, 2}, {true, 2}, {false, 2}, {false, 0}} {
		live := c.live
		if !step.there {
			live.Attachments = func() []sdk.Attachment { return nil }
		}
		var err error
		if gone, err = (running{live}).sweep(gone); err != nil {
			t.Fatal(err)
		}
		if n := entries(); n != step.left {
			t.Fatalf("interface there: %t, then %d entries, want %d", step.there, n, step.left)
		}
		if n := shown(live); n > 0 != (step.there && step.left > 0) {
			t.Fatalf("interface there: %t, then %d entries are shown", step.there, n)
		}
	}
}

// A node whose interfaces stay needs no sweep, unless the previous one failed.
func TestSweepsAreDue(t *testing.T) {
	var s sweeps
	now := time.Now()
	for i, step := range []struct {
		after time.Duration
		there []uint32
		gone  bool // the previous sweep found counters of another one
		due   bool
		fails bool
	}{{0, nil, false, true, false}, {sweepEvery, nil, false, false, false},
		{sweepEvery, []uint32{7}, false, true, true}, {sweepEvery, []uint32{7}, false, true, false},
		{sweepEvery, []uint32{7}, false, false, false}, {sweepEvery, []uint32{8}, false, true, false},
		{sweepEvery, []uint32{8}, true, true, false}, {sweepEvery, []uint32{8}, false, false, false},
		{sweepAll, []uint32{8}, false, true, true}, {sweepEvery, []uint32{8}, false, true, false}} {
		now = now.Add(step.after)
		s.gone = nil
		if step.gone {
			s.gone = map[uint32]bool{7: true}
		}
		live := sdk.Live{Attachments: func() (all []sdk.Attachment) {
			for _, ifindex := range step.there {
				all = append(all, sdk.Attachment{Ifindex: ifindex})
			}
			return all
		}}
		due, failure := false, error(nil)
		if step.fails {
			failure = errors.New("no memory")
		}
		err := s.next(running{live}, now, func(before map[uint32]bool) (map[uint32]bool, error) {
			due = true
			return before, failure
		})
		if due != step.due || !errors.Is(err, failure) {
			t.Errorf("step %d: due is %v, error %v", i, due, err)
		}
	}
}

// A place is freed only if no CPU can allocate it at the same time.
func TestSweepFreesPlaces(t *testing.T) {
	c := load(t, chain.OnTCIngress, nil)
	cpus := ebpf.MustPossibleCPU()
	all, some := make([]place, cpus), make([]place, cpus)
	for cpu := range all {
		all[cpu] = place{key{Ifindex: 77, Proto: 6}, Count{1, 1}}
	}
	some[0] = all[0]
	for at, value := range [][]place{all, some} {
		if err := c.live.Maps[mapPlaces].Put(uint32(at), value); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := (running{c.live}).sweep(map[uint32]bool{77: true}); err != nil {
		t.Fatal(err)
	}
	var got []uint32
	err := eachPlace(c.live.Maps, func(at uint32, perCPU []place) error {
		if perCPU[0].Key.Ifindex == 77 {
			got = append(got, at)
		}
		return nil
	})
	if want := []uint32{1}; err != nil || cpus > 1 && !cmp.Equal(got, want) {
		t.Errorf("places %v are taken (%v), want %v", got, err, want)
	}
}

func TestHandlerAndCollect(t *testing.T) {
	c := load(t, chain.OnTCIngress, nil)
	run(t, c.ingress, ip4(6, 20), 7)
	w := httptest.NewRecorder()
	(running{c.live}).Handler().ServeHTTP(w, httptest.NewRequest("GET", "/counts", nil))
	var report Report
	if err := json.Unmarshal(w.Body.Bytes(), &report); err != nil || w.Code != 200 {
		t.Fatalf("%d %v %s", w.Code, err, w.Body)
	}
	if len(report.Counts) != 1 || report.Counts[0].Packets != 7 {
		t.Errorf("%s", w.Body)
	}
	samples, err := (running{c.live}).Collect()
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"service": "web", "interface": "lo", "direction": "ingress", "family": "ipv4",
		"protocol": "tcp"}
	if s := samples[0]; s.Name != "packets_total" || s.Value != 7 || !cmp.Equal(s.Labels, want) {
		t.Errorf("%+v", s)
	}
}

func TestConfigIsEmpty(t *testing.T) {
	if _, err := Control().Compile(json.RawMessage(`{}`)); err != nil {
		t.Error(err)
	}
	var wrong *sdk.ConfigError
	if _, err := Control().Compile(json.RawMessage(`{"size": 1}`)); !errors.As(err, &wrong) {
		t.Errorf("%v is no ConfigError", err)
	}
}

// BenchmarkCount reports the fastest of b.N rounds, since other load only slows rounds down.
func BenchmarkCount(b *testing.B) {
	const repeat = 100_000
	for name, size := range map[string]uint32{"place": 2048, "hash": 1} {
		b.Run(name, func(b *testing.B) {
			c := load(b, chain.OnTCIngress, func(m *dataplane.Module) {
				m.Settings.MaxEntries = map[string]uint32{mapPlaces: size}
			})
			best := time.Duration(math.MaxInt64)
			for range b.N {
				start := time.Now()
				if _, err := c.egress.Run(&ebpf.RunOptions{Data: ip4(6, 20), Repeat: repeat}); err != nil {
					b.Fatal(err)
				}
				best = min(best, time.Since(start))
			}
			b.ReportMetric(float64(best.Nanoseconds())/repeat, "ns/packet")
			b.ReportMetric(0, "ns/op")
		})
	}
}
