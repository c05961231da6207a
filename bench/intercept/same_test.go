// SPDX-License-Identifier: Apache-2.0

package intercept

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/kerb-edge/kerb/bench"
)

// packetTimes mirrors struct packet_times of meter.h.
type packetTimes struct{ Number, FrontT1, T1, T2 uint64 }

// readPacketTimes returns the packets of a receiver by number; duplicates fail the test.
func readPacketTimes(t *testing.T, file string) map[uint64]packetTimes {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	all := make([]packetTimes, len(text)/binary.Size(packetTimes{}))
	if err := binary.Read(bytes.NewReader(text), binary.NativeEndian, all); err != nil {
		t.Fatal(err)
	}
	by := map[uint64]packetTimes{}
	for _, s := range all {
		if _, twice := by[s.Number]; twice {
			t.Errorf("%s has packet %d twice", file, s.Number)
		}
		by[s.Number] = s
	}
	return by
}

// Ring, socket and, if it is loaded, the kernel module receive the same packets: each receives every packet once, with
// the same T1 of the first program, and the ring's kernel part processes it before the kernel module.
func TestSamePackets(t *testing.T) {
	const packets = 1000
	loaded := loadKmod(t)
	e := newExperiment(t, sources...)
	p := e.open(t, "both")
	e.packets, e.length = t.TempDir(), time.Second
	ring := named("same-t2")
	running, err := e.sharedReceivers(ring)
	if err != nil || loaded && len(running) != 3 {
		t.Fatalf("%+v, %v", running, err)
	}
	l := load{name: "test", size: 64, rate: packets, background: "idle"}
	if _, err := e.measure(t.Context(), ring, p, l); err != nil {
		t.Fatal(err)
	}
	if unsound := e.run.Report().Unsound; len(unsound) > 0 {
		t.Error(unsound)
	}
	all := map[string]map[uint64]packetTimes{}
	for _, c := range running {
		all[c.name] = readPacketTimes(t, filepath.Join(e.packets, c.name))
		if n := len(all[c.name]); n != packets {
			t.Errorf("%s had %d of %d packets", c.name, n, packets)
		}
	}
	ours := all[ring.name]
	for name, theirs := range all {
		for number, s := range theirs {
			of := ours[number]
			if s.FrontT1 == 0 || s.FrontT1 != of.FrontT1 {
				t.Fatalf("%s, packet %d: %+v, of the ring %+v", name, number, s, of)
			}
			if s.T1 != 0 && s.T1 < of.T1 || of.T1 < of.FrontT1 {
				t.Fatalf("%s, packet %d is before that of the ring, or of the hook: %+v, %+v", name, number, s, of)
			}
		}
		report(t, name, theirs, ours)
	}
}

// report logs the median differences of a receiver's times to the ring's. On an emulated machine they mean nothing.
func report(t *testing.T, name string, theirs, ours map[uint64]packetTimes) {
	t.Helper()
	var kernel, program, behind []float64
	later := 0
	for number, s := range theirs {
		if s.T1 != 0 { // sockets have none
			kernel = append(kernel, float64(s.T1-s.FrontT1)/1e3)
		}
		program = append(program, (float64(s.T2)-float64(s.FrontT1))/1e3)
		behind = append(behind, (float64(s.T2)-float64(ours[number].T2))/1e3)
		if s.T2 > ours[number].T2 {
			later++
		}
	}
	t.Logf("%s: the program has a packet %.1f us after the hook, %.1f after the ring's program, and later in %d of %d",
		name, bench.Median(program), bench.Median(behind), later, len(theirs))
	if len(kernel) > 0 {
		t.Logf("%s: the kernel part has it %.1f us after the hook", name, bench.Median(kernel))
	}
}
