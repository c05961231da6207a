// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/sdk"
)

// event returns the data plane's event for a packet.
func event(to string, ifindex uint32, frame string) []byte {
	var b bytes.Buffer
	a := netip.MustParseAddr(to)
	_ = binary.Write(&b, binary.NativeEndian, unknown{Ifindex: ifindex, Len: uint32(len(frame)), Dst: addressOf(a)})
	b.WriteString(frame)
	b.Write(make([]byte, -b.Len()&7)) // the ring buffer's own padding
	return b.Bytes()
}

func (p *testControl) arrive(to, frame string) {
	p.t.Helper()
	p.arriveFrom(7, to, frame)
}

func (p *testControl) arriveFrom(ifindex uint32, to, frame string) {
	p.t.Helper()
	packet, ok := parseUnknown(event(to, ifindex, frame))
	if !ok {
		p.t.Fatal("event not understood")
	}
	p.w.inject(p.w.arrive(packet, p.now))
}

func (p *testControl) frames() []string {
	out := frames(p.sent)
	p.sent = nil
	return out
}

// Packets for an address wait for one answer, and continue in order when the maps are ready.
func TestUnknownIsAnswered(t *testing.T) {
	for _, to := range []string{"10.30.0.1", "fdff:2000::1"} {
		p := newTestControl(t, "")
		p.arrive(to, "one")
		p.arrive(to, "two")
		p.arrive("10.30.0.99", "other")
		p.same("wanted", len(p.wanted), 2)
		p.same("sent too early", p.frames(), []string(nil))
		p.put(webService(1, v1alpha1.PolicyRoundRobin))
		p.same("sent", p.frames(), []string{"one", "two"})
		p.arrive(to, "late")
		p.same("sent although it came late", p.frames(), []string{"late"})
		p.same("wanted in the end", len(p.wanted), 2)
		p.same("counters", p.w.unknowns, unknowns{Asked: 2, Answered: 1, Injected: 3})
	}
}

func (p *testControl) negative(a string) bool {
	p.t.Helper()
	var v vip
	err := p.live.Maps[mapVIPs].Lookup(addressOf(netip.MustParseAddr(a)), &v)
	return err == nil && v.Flags&vipNegative != 0 && v.Expires > sdk.Monotonic()
}

// Unknown addresses are written to the data plane, which then answers the waiting packets, until the entry expires.
func TestUnknownIsDenied(t *testing.T) {
	p := newTestControl(t, "")
	a := netip.MustParseAddr("10.30.0.1")
	p.arrive(a.String(), "one")
	p.update(sdk.VirtualServiceUpdate{Unknown: []netip.Addr{a}})
	if !p.negative(a.String()) {
		t.Error("not written for the data plane")
	}
	p.same("sent, to be answered", p.frames(), []string{"one"})
	p.now = p.now.Add(11 * time.Second)
	p.overdue()
	if p.negative(a.String()) {
		t.Error("remembered for too long")
	}
	p.arrive(a.String(), "two")
	p.same("asked again", len(p.wanted), 2)
	p.update(sdk.VirtualServiceUpdate{Unknown: []netip.Addr{a}})
	p.frames()
	p.put(webService(1, v1alpha1.PolicyRoundRobin))
	p.same("known at last", p.served(a.String()), []string{"web-0"})
	p.update(sdk.VirtualServiceUpdate{Unknown: []netip.Addr{a}})
	p.same("a late no", p.served(a.String()), []string{"web-0"})
	p.now = p.now.Add(time.Hour)
	p.overdue()
	p.same("and its end", p.served(a.String()), []string{"web-0"})
	p.update(sdk.VirtualServiceUpdate{Remove: []string{"web"}})
	p.arrive(a.String(), "three")
	p.same("asked again after it was removed", len(p.wanted), 3)
}

func (p *testControl) overdue() {
	p.t.Helper()
	free, err := p.w.overdue(p.now)
	if err != nil {
		p.t.Fatal(err)
	}
	p.w.inject(free)
}

// A missing answer counts as negative.
func TestUnknownIsOverdue(t *testing.T) {
	p := newTestControl(t, `{"unknown": {"holdTime": "2s", "holdPerAddress": 2}}`)
	for _, frame := range []string{"one", "two", "three"} {
		p.arrive("10.30.0.1", frame)
	}
	p.now = p.now.Add(1900 * time.Millisecond)
	p.overdue()
	p.same("too early", p.frames(), []string(nil))
	p.now = p.now.Add(100 * time.Millisecond)
	p.overdue()
	p.same("in time", p.frames(), []string{"two", "three"})
	if !p.negative("10.30.0.1") {
		t.Error("not written for the data plane")
	}
	report := p.w.listHeld(p.now)
	if report.Dropped != 1 || report.Counters.Overdue != 1 || len(report.Unknown) != 1 || len(report.Held) != 0 {
		t.Errorf("%+v", report)
	}
}

// A scan of a range fills neither memory nor the table of addresses.
func TestUnknownScan(t *testing.T) {
	p := newTestControl(t, "")
	for i := range 3 * maxNegative {
		a := netip.AddrFrom4([4]byte{10, 31, byte(i >> 8), byte(i)})
		p.arrive(a.String(), "x")
		p.update(sdk.VirtualServiceUpdate{Unknown: []netip.Addr{a}})
	}
	n := 0
	if err := each(p.live.Maps[mapVIPs], mapVIPs, func(k []address, _ []vip) { n += len(k) }); err != nil {
		t.Fatal(err)
	}
	if n != maxNegative {
		t.Errorf("%d addresses in the table, want %d", n, maxNegative)
	}
	p.restart("")
	if n := len(p.w.addresses); n != 0 {
		t.Errorf("%d addresses after a restart", n)
	}
}

// A service that scans a range evicts its own denials only: those of other services are not requested again.
func TestUnknownScanLeavesOthers(t *testing.T) {
	p := newTestControl(t, "")
	deny := func(ifindex uint32, a netip.Addr) {
		p.arriveFrom(ifindex, a.String(), "x")
		p.update(sdk.VirtualServiceUpdate{Unknown: []netip.Addr{a}})
	}
	for i := range 10 {
		deny(8, netip.AddrFrom4([4]byte{10, 30, 9, byte(i)}))
	}
	for i := range 3 * maxNegative {
		deny(7, netip.AddrFrom4([4]byte{10, 31, byte(i >> 8), byte(i)}))
	}
	for i := range 10 {
		if a := netip.AddrFrom4([4]byte{10, 30, 9, byte(i)}); !p.negative(a.String()) {
			t.Errorf("%v gave way to the scan of another service", a)
		}
	}
}

// Unknown addresses have a separate limit: a full table of services denies them, and they take no room from services.
func TestUnknownWithFullTable(t *testing.T) {
	p := newTestControl(t, `{"tables": {"addresses": 2}}`)
	service := func(i int) sdk.VirtualService {
		vs := webService(1)
		vs.Name, vs.Spec.Addresses = fmt.Sprintf("s%d", i), []v1alpha1.VirtualAddress{{Address: fmt.Sprintf("10.30.1.%d", i)}}
		return vs
	}
	for i := range 5 {
		a := netip.AddrFrom4([4]byte{10, 31, 0, byte(i)})
		p.arrive(a.String(), "x")
		p.update(sdk.VirtualServiceUpdate{Unknown: []netip.Addr{a}})
	}
	p.put(service(0), service(1))
	p.arrive("10.31.1.1", "held")
	p.update(sdk.VirtualServiceUpdate{Unknown: []netip.Addr{netip.MustParseAddr("10.31.1.1")}})
	if !p.negative("10.31.1.1") || !p.negative("10.31.0.0") {
		t.Error("denials are missing in the table")
	}
	if err := p.w.Health(); err != nil {
		t.Error(err)
	}
	p.put(service(2))
	if err := p.w.Health(); err == nil || !strings.Contains(err.Error(), "raise tables.addresses, which is 2") {
		t.Errorf("health: %v", err)
	}
}

// A denial that has expired leaves the table, even if the address was looked up again and evicted.
func TestDenialsLeaveNothing(t *testing.T) {
	p := newTestControl(t, `{"unknown": {"negativeTTL": "1s", "holdPackets": 1}}`)
	a := netip.MustParseAddr("10.31.0.1")
	p.arrive(a.String(), "x")
	p.update(sdk.VirtualServiceUpdate{Unknown: []netip.Addr{a}})
	p.now = p.now.Add(1500 * time.Millisecond)
	p.arrive(a.String(), "again")
	p.arrive("10.31.0.2", "the room for one packet is taken")
	p.overdue()
	if p.negative(a.String()) {
		t.Error("the denial is still in the table")
	}
}

func TestEventsThatAreNone(t *testing.T) {
	good := event("10.30.0.1", 7, "frame")
	for n := range unknownSize + 5 {
		if _, ok := parseUnknown(good[:n]); ok {
			t.Errorf("%d of %d bytes are taken", n, len(good))
		}
	}
	if _, ok := parseUnknown(event("10.30.0.1", 7, "")); ok {
		t.Error("an event without frame is taken")
	}
}
