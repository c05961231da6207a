// SPDX-License-Identifier: Apache-2.0

// Package counter is the control plane of the counter: it reads the counters of counter.bpf.c, sums them over the CPUs,
// and deletes those of interfaces that no longer exist.
package counter

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"sort"
	"strconv"
	"time"

	"github.com/kerb-edge/kerb/sdk"
)

// Control returns the control plane. There is nothing to configure.
func Control() sdk.Control {
	return sdk.Define(func(raw json.RawMessage) (compiled, error) {
		_, err := sdk.DecodeConfig(raw, &struct{}{})
		return compiled{}, err
	})
}

type compiled struct{}

// running is a started map set of the module's maps.
type running struct{ sdk.Live }

var (
	_ sdk.Handler   = running{}
	_ sdk.Runner    = running{}
	_ sdk.Collector = running{}
)

// Settings implements sdk.Compiled.
func (compiled) Settings() sdk.Settings { return sdk.Settings{} }

// Fill implements sdk.Compiled. Counts are carried over, there is nothing to fill.
func (compiled) Fill(sdk.Maps) error { return nil }

// Open implements sdk.Compiled.
func (compiled) Open(live sdk.Live) (sdk.Running, error) { return running{live}, nil }

// Names of maps in the data plane.
const (
	mapPlaces   = "places"
	mapCounts   = "counts"
	mapOverflow = "overflow"
)

// key mirrors struct counter_key.
type key struct {
	Ifindex   uint32
	Direction uint8
	Family    uint8
	Proto     uint8
	_         uint8
}

// place mirrors struct counter_place.
type place struct {
	Key   key
	Count Count
}

// Count is packets and bytes. Bytes are those of whole frames, Ethernet header included.
type Count struct {
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"`
}

func (c Count) plus(o Count) Count { return Count{c.Packets + o.Packets, c.Bytes + o.Bytes} }

// Entry is the count of one protocol at one attach point.
type Entry struct {
	Service   string `json:"service,omitempty"`
	Interface string `json:"interface"`
	Direction string `json:"direction"` // egress: from the service; ingress: to it
	Family    string `json:"family"`    // ipv4, ipv6, other
	Protocol  string `json:"protocol"`  // tcp, udp, icmp, icmpv6, a number; other: not IP or not readable
	Count
}

// Report is the answer of GET counts.
type Report struct {
	Counts   []Entry          `json:"counts"`
	Totals   map[string]Count `json:"totals"`   // by direction
	Overflow map[string]Count `json:"overflow"` // by direction: counted, but not by protocol, as the table was full
}

var (
	directions = [...]string{"egress", "ingress"}
	families   = map[uint8]string{0: "other", 4: "ipv4", 6: "ipv6"}
	protocols  = map[uint8]string{1: "icmp", 2: "igmp", 6: "tcp", 17: "udp", 47: "gre", 50: "esp", 58: "icmpv6",
		132: "sctp"}
)

func (k key) entry(at sdk.Attachment, c Count) Entry {
	e := Entry{Service: at.Service, Interface: at.Interface, Direction: directions[k.Direction&1],
		Family: families[k.Family], Count: c}
	var known bool
	if e.Protocol, known = protocols[k.Proto]; !known {
		e.Protocol = strconv.Itoa(int(k.Proto))
	}
	if k.Family == 0 {
		e.Protocol = "other"
	}
	return e
}

// read sums the counters of the present interfaces over the CPUs, ordered by service, interface, direction, family and
// protocol.
func (c running) read() (*Report, error) {
	where := c.ByIfindex()
	sums := map[key]Count{}
	err := eachPlace(c.Maps, func(_ uint32, perCPU []place) error {
		for _, p := range perCPU {
			if p.Key != (key{}) {
				sums[p.Key] = sums[p.Key].plus(p.Count)
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	err = eachEntry(c.Maps, func(k key, perCPU []Count) {
		for _, c := range perCPU {
			sums[k] = sums[k].plus(c)
		}
	})
	if err != nil {
		return nil, err
	}
	out := &Report{Counts: []Entry{}, Totals: map[string]Count{}, Overflow: map[string]Count{}}
	for k, count := range sums {
		if at, there := where[k.Ifindex]; there {
			out.Counts = append(out.Counts, k.entry(at, count))
		}
	}
	sort.Slice(out.Counts, func(i, j int) bool {
		a, b := &out.Counts[i], &out.Counts[j]
		return cmp.Or(cmp.Compare(a.Service, b.Service), cmp.Compare(a.Interface, b.Interface),
			cmp.Compare(a.Direction, b.Direction),
			cmp.Compare(a.Family, b.Family), cmp.Compare(a.Protocol, b.Protocol)) < 0
	})
	return out, out.total(c.Maps)
}

// eachPlace calls do for the places that some CPU has taken.
func eachPlace(maps sdk.Maps, do func(at uint32, perCPU []place) error) error {
	m, err := maps.Get(mapPlaces)
	if err != nil {
		return err
	}
	var perCPU []place
	for at := range m.MaxEntries() {
		if err := m.Lookup(at, &perCPU); err != nil {
			return fmt.Errorf("read map %s: %w", mapPlaces, err)
		}
		if err := do(at, perCPU); err != nil {
			return err
		}
	}
	return nil
}

// eachEntry calls do for each key with the values of all CPUs. perCPU is reused by the next call: do must not keep it.
func eachEntry(maps sdk.Maps, do func(k key, perCPU []Count)) error {
	m, err := maps.Get(mapCounts)
	if err != nil {
		return err
	}
	var k key
	var perCPU []Count
	all := m.Iterate()
	for all.Next(&k, &perCPU) {
		do(k, perCPU)
	}
	if err := all.Err(); err != nil {
		return fmt.Errorf("read map %s: %w", mapCounts, err)
	}
	return nil
}

// total adds what concerns all interfaces.
func (r *Report) total(maps sdk.Maps) error {
	for i, direction := range directions {
		total, err := sdk.Sum[Count](maps, mapOverflow, uint32(i))
		if err != nil {
			return err
		}
		r.Overflow[direction] = total
		for _, e := range r.Counts {
			if e.Direction == direction {
				total = total.plus(e.Count)
			}
		}
		r.Totals[direction] = total
	}
	return nil
}

// Handler serves GET counts.
func (c running) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /counts", func(w http.ResponseWriter, _ *http.Request) { sdk.Answer(w)(c.read()) })
	return mux
}

// Collect implements sdk.Collector.
func (c running) Collect() ([]sdk.Sample, error) {
	report, err := c.read()
	if err != nil {
		return nil, err
	}
	var out []sdk.Sample
	for _, e := range report.Counts {
		labels := map[string]string{"service": e.Service, "interface": e.Interface, "direction": e.Direction,
			"family": e.Family, "protocol": e.Protocol}
		out = append(out,
			sdk.Sample{Name: "packets_total", Help: "Packets seen.", Counter: true, Labels: labels, Value: float64(e.Packets)},
			sdk.Sample{Name: "bytes_total", Help: "Bytes of frames seen.", Counter: true, Labels: labels,
				Value: float64(e.Bytes)})
	}
	for direction, count := range report.Overflow {
		out = append(out, sdk.Sample{Name: "overflow_packets_total", Help: "Packets not counted by protocol because the " +
			"table was full.",
			Counter: true, Labels: map[string]string{"direction": direction}, Value: float64(count.Packets)})
	}
	return out, nil
}

const (
	sweepEvery = 30 * time.Second
	sweepAll   = 10 * time.Minute // also if the same interfaces are there: another one may have come and gone meanwhile
)

// Run removes the counters of interfaces that are gone.
func (c running) Run(ctx context.Context) {
	s := sweeps{}
	sdk.Every(ctx, sweepEvery, func() {
		if err := s.next(c, time.Now(), c.sweep); err != nil {
			slog.Warn("counter: sweep failed", "module", c.Module, "error", err)
		}
	})
}

// sweeps is what the last sweep that succeeded has met: it reads each entry.
type sweeps struct {
	at            time.Time
	gone, present map[uint32]bool // interfaces
}

// next sweeps if that may find something. After an error it is due again.
func (s *sweeps) next(c running, now time.Time, sweep func(before map[uint32]bool) (map[uint32]bool, error)) error {
	present := map[uint32]bool{}
	for ifindex := range c.ByIfindex() {
		present[ifindex] = true
	}
	if len(s.gone) == 0 && maps.Equal(present, s.present) && now.Sub(s.at) < sweepAll {
		return nil
	}
	gone, err := sweep(s.gone)
	if s.gone = gone; err != nil {
		s.at = time.Time{}
		return err
	}
	s.at, s.present = now, present
	return nil
}

// sweep deletes the entries of interfaces that are missing now and were missing the last time: one that is only being
// registered keeps its counters. It returns those that are missing.
func (c running) sweep(before map[uint32]bool) (map[uint32]bool, error) {
	present, missing := c.ByIfindex(), map[uint32]bool{}
	gone := func(k key) bool {
		if _, there := present[k.Ifindex]; there {
			return false
		}
		missing[k.Ifindex] = true
		return before[k.Ifindex]
	}
	if err := sweepPlaces(c.Maps, gone); err != nil {
		return before, err
	}
	var over []key
	err := eachEntry(c.Maps, func(k key, _ []Count) {
		if gone(k) {
			over = append(over, k)
		}
	})
	if err != nil {
		return before, err
	}
	for _, k := range over {
		if err := c.Maps.Delete(mapCounts, k); err != nil {
			return missing, err
		}
	}
	return missing, nil
}

// sweepPlaces frees the places that vanished interfaces hold on all CPUs. Where one CPU's is free, that CPU may be
// taking it right now, and a write from here would wipe out what it counts.
func sweepPlaces(maps sdk.Maps, gone func(key) bool) error {
	return eachPlace(maps, func(at uint32, perCPU []place) error {
		for _, p := range perCPU {
			if p.Key == (key{}) || !gone(p.Key) {
				return nil
			}
		}
		if err := maps[mapPlaces].Put(at, make([]place, len(perCPU))); err != nil {
			return fmt.Errorf("free place %d: %w", at, err)
		}
		return nil
	})
}
