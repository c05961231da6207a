// SPDX-License-Identifier: Apache-2.0

package bpftest

import (
	"errors"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/dataplane"
)

const (
	eventRing = 4096 // bytes of the rings in testdata/events.bpf.c
	eventRoom = 16   // that an event of it takes: 8 and a header
	discarded = 9
	toOther   = 10
)

// event is that of testdata/events.bpf.c.
type event struct {
	Len        uint32
	Port, From uint16
}

// onEvents runs a test on both hooks and directions: the ways in which the module sends.
func onEvents(t *testing.T, do func(*testing.T, *dataplane.Loaded, chain.Direction)) {
	needRoot(t)
	for _, side := range []chain.Side{chain.OnXDP, chain.OnTCIngress} {
		for _, dir := range []chain.Direction{chain.Egress, chain.Ingress} {
			t.Run(string(side)+" "+string(dir), func(t *testing.T) { do(t, chainOf(t, side, dir, "events"), dir) })
		}
	}
}

func udpTo(t *testing.T, port int) []byte {
	f := base4(protoUDP)
	f.dport = uint16(port)
	return f.build(t)
}

// readAll takes what is there, without waiting.
func readAll(t *testing.T, m *ebpf.Map) [][]byte {
	t.Helper()
	rd, err := ringbuf.NewReader(m)
	if err != nil {
		t.Fatal(err)
	}
	defer rd.Close()
	rd.SetDeadline(time.Now())
	var out [][]byte
	for {
		rec, err := rd.Read()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, rec.RawSample)
	}
}

func checkCounts(t *testing.T, l *dataplane.Loaded, sent, lost int) {
	t.Helper()
	gotSent, gotLost, ok, err := dataplane.Events(l.Maps["events"])
	if err != nil || !ok || gotSent != uint64(sent) || gotLost != uint64(lost) {
		t.Errorf("%d sent, %d lost (%t, %v), want %d and %d", gotSent, gotLost, ok, err, sent, lost)
	}
}

func TestEveryPacketIsAnEvent(t *testing.T) {
	onEvents(t, func(t *testing.T, l *dataplane.Loaded, _ chain.Direction) {
		var want, got []event
		for i := range 100 {
			frame := udpTo(t, 1000+i)
			Run(t, l.Program, frame)
			want = append(want, event{uint32(len(frame)), uint16(1000 + i), base4(protoUDP).sport})
		}
		for _, raw := range readAll(t, l.Maps["events"]["events"]) {
			got = append(got, event{ne.Uint32(raw), ne.Uint16(raw[4:]), ne.Uint16(raw[6:])})
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
		checkCounts(t, l, 100, 0)
	})
}

// Without a reader the ring fills up; what does not fit is counted, with its bytes.
func TestLostEventsAreCounted(t *testing.T) {
	onEvents(t, func(t *testing.T, l *dataplane.Loaded, _ chain.Direction) {
		const packets = 1000
		for range packets {
			Run(t, l.Program, udpTo(t, 53))
		}
		fit := max(eventRing, os.Getpagesize())/eventRoom - 1 // the kernel never fills the last place
		if n := len(readAll(t, l.Maps["events"]["events"])); n != fit {
			t.Errorf("%d events in the ring, want %d", n, fit)
		}
		checkCounts(t, l, fit, packets-fit)
		var perCPU []uint64
		if err := l.Maps["events"]["kerb_event_counts"].Lookup(uint32(2), &perCPU); err != nil {
			t.Fatal(err)
		}
		bytes := uint64(0)
		for _, n := range perCPU {
			bytes += n
		}
		if want := uint64(packets-fit) * 8; bytes != want {
			t.Errorf("%d bytes lost, want %d", bytes, want)
		}
		Run(t, l.Program, udpTo(t, 53)) // there is room again
		checkCounts(t, l, fit+1, packets-fit)
	})
}

func TestDiscardedEventsDoNotCount(t *testing.T) {
	onEvents(t, func(t *testing.T, l *dataplane.Loaded, dir chain.Direction) {
		if dir == chain.Egress {
			t.Skip("copied events cannot be discarded")
		}
		Run(t, l.Program, udpTo(t, discarded))
		if got := readAll(t, l.Maps["events"]["events"]); len(got) != 0 {
			t.Errorf("events %x", got)
		}
		checkCounts(t, l, 0, 0)
	})
}

// A reader that waits is woken for an event that was discarded: with it before them, none later would wake it.
func TestDiscardedEventsArePassedOver(t *testing.T) {
	needRoot(t)
	l := chainOf(t, chain.OnTCIngress, chain.Ingress, "events")
	rd, err := ringbuf.NewReader(l.Maps["events"]["events"])
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := rd.Read()
		ended <- err
	}()
	for round := range 20 { // in some of them it waits by then
		Run(t, l.Program, udpTo(t, discarded))
		for end := time.Now().Add(5 * time.Second); rd.AvailableBytes() > 0; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("round %d: %d bytes wait", round, rd.AvailableBytes())
			}
		}
	}
	rd.Close()
	if err := <-ended; !errors.Is(err, ringbuf.ErrClosed) {
		t.Error(err)
	}
}

// Two rings of a module have one pair of counters.
func TestTwoRings(t *testing.T) {
	needRoot(t)
	l := chainOf(t, chain.OnTCIngress, chain.Egress, "events")
	for _, port := range []int{53, toOther, toOther} {
		Run(t, l.Program, udpTo(t, port))
	}
	first, second := readAll(t, l.Maps["events"]["events"]), readAll(t, l.Maps["events"]["others"])
	if len(first) != 1 || len(second) != 2 {
		t.Errorf("%d and %d events, want 1 and 2", len(first), len(second))
	}
	checkCounts(t, l, 3, 0)
}

// Nothing is counted twice or not at all when all CPUs send at once.
func TestEventsFromSeveralCPUs(t *testing.T) {
	onEvents(t, func(t *testing.T, l *dataplane.Loaded, _ chain.Direction) {
		const each = 5000
		frame := udpTo(t, 53)
		var wg sync.WaitGroup
		for cpu := range runtime.NumCPU() {
			wg.Go(func() { runOn(t, cpu, l.Program, frame, each) })
		}
		wg.Wait()
		sent := len(readAll(t, l.Maps["events"]["events"]))
		checkCounts(t, l, sent, each*runtime.NumCPU()-sent)
	})
}

func runOn(t *testing.T, cpu int, prog *ebpf.Program, frame []byte, times int) {
	runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
	var set unix.CPUSet
	set.Set(cpu)
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		t.Error(err)
		return
	}
	for range times {
		if _, err := prog.Run(&ebpf.RunOptions{Data: frame}); err != nil {
			t.Error(err)
			return
		}
	}
}

// A module without events has neither the map nor the counters.
func TestModulesWithoutEvents(t *testing.T) {
	needRoot(t)
	l := chainOf(t, chain.OnTCIngress, chain.Egress, "hop")
	if _, _, ok, err := dataplane.Events(l.Maps["hop"]); ok || err != nil {
		t.Errorf("%t, %v", ok, err)
	}
	if l.Maps["hop"]["kerb_event_counts"] != nil {
		t.Error("a module without events has the map of their counters")
	}
}
