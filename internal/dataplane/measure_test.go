// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"errors"
	"os"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/kerbabi"
	"github.com/kerb-edge/kerb/internal/packet"
	"github.com/kerb-edge/kerb/sdk"
)

func newMeter(t *testing.T) *Dataplane {
	needsRoot(t)
	d := &Dataplane{layout: layout{t.TempDir()}}
	t.Cleanup(d.meter.Close)
	return d
}

func measure(t *testing.T, d *Dataplane, m Module, hooks ...chain.Hook) (chain.Cost, error) {
	b := d.Bind(map[string]Module{m.Name: m})
	t.Cleanup(b.Close)
	return b.Measure(m.Name, hooks...)
}

// Every step of spin takes a nanosecond at least, and pass two map accesses: between them is room for all noise.
func TestMeasureTellsSlowFromFast(t *testing.T) {
	if os.Getenv("KERB_MATRIX") != "" {
		t.Skip("the times of an emulated machine are those of its host")
	}
	meter := newMeter(t)
	slow, err := measure(t, meter, testModule(t, "spin", "slow", nil), chain.TC, chain.XDP)
	if err != nil {
		t.Fatal(err)
	}
	fast, err := measure(t, meter, testModule(t, "pass", "fast", nil), chain.TC, chain.XDP)
	if err != nil {
		t.Fatal(err)
	}
	if len(slow.Latency) != 4 || len(fast.Latency) != 4 {
		t.Fatalf("%d and %d functions were measured, want both directions on both hooks", len(slow.Latency),
			len(fast.Latency))
	}
	for i, l := range slow.Latency {
		other := fast.Latency[i]
		t.Logf("%s %s: spin %.0f ns, pass %.1f ns at least, %.1f ns by the median", l.Hook, l.Direction, l.Least().Least,
			other.Least().Least, other.Median())
		if l.Least().Least < 4*other.Least().Least || l.Median() < 4*other.Median() { // 4000 steps, and none
			t.Errorf("%s %s: spin takes %+v, pass %+v", l.Hook, l.Direction, l.Packets, other.Packets)
		}
	}
	if fast.Memory <= 0 {
		t.Errorf("the maps of pass take %d bytes", fast.Memory)
	}
}

func TestMeasureOnlyWhatCanRun(t *testing.T) {
	m := testModule(t, "pass", "half", nil)
	m.Settings.Idle = []string{"ingress"}
	cost, err := measure(t, newMeter(t), m, chain.TC)
	if err != nil || len(cost.Latency) != 1 || cost.Latency[0].Hook != chain.TC ||
		cost.Latency[0].Direction != chain.Egress {
		t.Errorf("%+v, %v; want TC egress only", cost, err)
	}
	m.Settings.Idle = []string{"ingress", "egress"}
	if cost, err := measure(t, newMeter(t), m, chain.TC); err != nil || len(cost.Latency) != 0 || cost.Memory == 0 {
		t.Errorf("without work: %+v, %v; want memory only", cost, err)
	}
	m.Spec = func(chain.Hook) (*ebpf.CollectionSpec, error) { return nil, errors.New("unreadable") }
	if _, err := measure(t, newMeter(t), m, chain.TC); !errors.Is(err, chain.ErrNotMeasured) {
		t.Errorf("unreadable: %v", err)
	}
}

// A module is measured as it will run: with its maps filled, once for all its functions.
func TestMeasureFills(t *testing.T) {
	m, filled := testModule(t, "pass", "filled", nil), 0
	m.Fill = func(sdk.Maps) error { filled++; return nil }
	if _, err := measure(t, newMeter(t), m, chain.TC); err != nil || filled != 1 {
		t.Errorf("filled %d times, %v", filled, err)
	}
	m.Fill = func(sdk.Maps) error { return errors.New("no") }
	if _, err := measure(t, newMeter(t), m, chain.TC); !errors.Is(err, chain.ErrNotMeasured) {
		t.Errorf("with maps that cannot be filled: %v", err)
	}
}

// Modules of one change share a map, and to measure one that comes later leaves it as it is.
func TestSharedMaps(t *testing.T) {
	w := newWorld(t, Options{})
	modules := map[string]Module{}
	for _, name := range []string{"a", "b", "later"} {
		m := testModule(t, "pass", name, nil)
		m.SharedMaps = []string{"totals"}
		modules[name] = m
	}
	later := modules["later"]
	later.Fill = func(m sdk.Maps) error {
		values := make([][16]byte, ebpf.MustPossibleCPU())
		values[0][0] = 9
		return m["totals"].Put(uint32(0), values)
	}
	modules["later"] = later
	b := w.Bind(modules)
	t.Cleanup(b.Close)
	ids := map[ebpf.MapID]bool{}
	for _, name := range []string{"a", "b"} {
		if _, err := b.Measure(name, chain.TC); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"a", "b"} {
		if err := b.CreateMapSet(name, "", "", ""); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := b.Measure("later", chain.TC); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "b"} {
		maps, err := w.Maps(name, modules[name].ID)
		if err != nil {
			t.Fatal(err)
		}
		ids[mapID(t, maps["totals"])] = true
		var got [][16]byte
		if err := maps["totals"].Lookup(uint32(0), &got); err != nil || got[0][0] != 0 {
			t.Errorf("%s: the shared map has %v, %v after another module was measured", name, got, err)
		}
		for _, m := range maps {
			m.Close()
		}
	}
	if len(ids) != 1 {
		t.Errorf("two modules have %d maps, want one that they share", len(ids))
	}
}

func TestRepresentativePacketsParse(t *testing.T) {
	for _, p := range representative() {
		got := packet.Dissect(p.frame)
		if got.Outcome != kerbabi.ParseOK || got.Flags&kerbabi.FlagL4 == 0 || got.Flags&^kerbabi.FlagL4 != 0 {
			t.Errorf("%s: %+v", p.kind, got)
		}
		l3, segment := p.frame[14:], p.frame[got.L4:got.L4+uint64(got.L4Len)]
		ends := l3[8:40]
		if got.Family == 4 {
			if ends = l3[12:20]; sdk.Checksum(l3[:20]) != 0 {
				t.Errorf("%s: wrong header checksum", p.kind)
			}
		}
		pseudo := append(append([]byte{}, ends...), 0, got.Proto, byte(len(segment)>>8), byte(len(segment)))
		if sdk.Checksum(pseudo, segment) != 0 {
			t.Errorf("%s: wrong checksum", p.kind)
		}
	}
}

func TestMedian(t *testing.T) {
	for want, values := range map[float64][]float64{0: nil, 3: {9, 1, 3}, 2.5: {4, 1, 2, 3}} {
		if got := chain.Median(values); got != want {
			t.Errorf("median of %v: %v, want %v", values, got, want)
		}
	}
}
