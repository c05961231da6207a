// SPDX-License-Identifier: Apache-2.0

package flows

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http/httptest"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/kerb-edge/kerb/sdk"
	"github.com/kerb-edge/kerb/sdk/sdktest"
)

// here returns the attachment of test runs.
func (l *loaded) here() sdk.Attachment {
	l.t.Helper()
	used, err := l.running().usages()
	if err != nil {
		l.t.Fatal(err)
	}
	for ifindex := range used {
		if ifindex != 0 {
			return sdk.Attachment{Service: "web", Interface: "veth0", Ifindex: ifindex}
		}
	}
	l.t.Fatal("no packet was counted")
	return sdk.Attachment{}
}

// ask queries the module as the agent does.
func (g *running) ask(t *testing.T, query string) (r sdk.FlowRecords) {
	t.Helper()
	w := httptest.NewRecorder()
	g.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/flows?"+query, nil))
	if err := json.Unmarshal(w.Body.Bytes(), &r); err != nil || w.Code != 200 {
		t.Fatalf("%s: %d %v %s", query, w.Code, err, w.Body)
	}
	return r
}

// Sent packets are in the answer immediately and in sums, before and after the flows are evicted.
func TestFlowsAndTheirSum(t *testing.T) {
	l := load(t, sdktest.Options{})
	second := tcp(egress, "S", 9, 0, 0)
	second.local = netip.MustParseAddrPort("10.0.0.1:40001")
	for _, e := range []event{tcp(egress, "S", 100, 0, 0), tcp(ingress, "SA", 500, 101, 0), tcp(egress, "A", 101, 501, 0),
		tcp(ingress, "PA", 501, 101, 30), second} {
		l.Run(directions[e.direction], e.frame(t))
	}
	g := sdktest.Open[*running](t, l.Compiled, l.Live(l.here()))
	g.opened = 0 // before the packets
	clock := sdk.Monotonic()
	if err := g.sweep(time.Now(), clock); err != nil {
		t.Fatal(err)
	}
	live := g.ask(t, "")
	if len(live.Flows) != 2 {
		t.Fatalf("%+v", live)
	}
	f := live.Flows[0]
	if f.Source != "10.0.0.1" || f.SourcePort != 40000 || f.Destination != "192.0.2.1" || f.DestinationPort != 443 ||
		f.Packets != 2 || f.ReplyPackets != 2 || f.Bytes != 120 || f.ReplyBytes != 144 || f.Service != "web" ||
		f.Direction != "egress" || f.Protocol != "tcp" || f.Verdict != "next" || f.State != "established" ||
		f.ToResponderNanoseconds == 0 || f.ToInitiatorNanoseconds == 0 || f.First == nil || f.Last.Before(*f.First) ||
		time.Since(f.Last) > time.Minute {
		t.Errorf("%+v", f)
	}
	for query, want := range map[string]int{"service=web": 2, "service=db": 0, "peer=192.0.2.0/24": 2, "peer=192.0.2.2": 0,
		"port=443": 2, "port=40001": 1, "protocol=tcp": 2, "protocol=17": 0, "count=1": 1,
		fmt.Sprint("after=", sdk.Monotonic()): 0} {
		if got := g.ask(t, query); len(got.Flows) != want || query == "count=1" && got.Missing[0].Omitted != 1 {
			t.Errorf("%s: %+v", query, got)
		}
	}
	for round, clock := range []uint64{clock, clock + uint64(14*time.Second), clock + uint64(16*time.Second)} {
		if err := g.sweep(time.Now(), clock); err != nil {
			t.Fatal(err)
		}
		if got, want := len(l.table()), []int{2, 2, 0}[round]; got != want {
			t.Errorf("round %d: %d flows in the table, want %d", round, got, want)
		}
		sum := g.ask(t, "since=120")
		if len(sum.Flows) != 1 || len(sum.Missing) != 0 {
			t.Fatalf("%+v", sum)
		}
		if s := sum.Flows[0]; s.Flows != 2 || s.Packets != 3 || s.ReplyPackets != 2 || s.Connections != 2 ||
			s.Destination != "192.0.2.1" || s.DestinationPort != 443 || s.Source != "" || s.SourcePort != 0 ||
			s.ToResponderNanoseconds != f.ToResponderNanoseconds {
			t.Errorf("%+v", s)
		}
	}
	used, err := g.usages()
	if err != nil || used[l.here().Ifindex].held() != 0 {
		t.Errorf("%+v %v", used, err)
	}
}

// A flood is limited to the share of its service, and is counted. Existing flows stay, and idle ones are evicted.
func TestFlood(t *testing.T) {
	l := load(t, sdktest.Options{Config: `{"flows": 16, "services": 2}`})
	e := event{direction: ingress, proto: "udp", local: server, remote: client}
	l.Run("ingress", e.frame(t))
	for port := range uint16(100) {
		e.remote = netip.AddrPortFrom(client.Addr(), 1000+port)
		l.Run("ingress", e.frame(t))
	}
	at := l.here()
	g := sdktest.Open[*running](t, l.Compiled, l.Live(at))
	g.opened = 0 // before the packets
	clock := sdk.Monotonic()
	missing := g.ask(t, "").Missing
	if len(missing) != 1 || missing[0].UnrecordedPackets != 85 || missing[0].UnrecordedBytes != 85*60 {
		t.Errorf("%+v", missing)
	}
	if err := g.sweep(time.Now(), clock); err != nil {
		t.Fatal(err)
	}
	if c, err := g.Conditions(); err != nil || c[0].Status != "True" { // nothing was lost since it was opened
		t.Errorf("%+v %v", c, err)
	}
	l.Run("ingress", e.frame(t))
	if c, err := g.Conditions(); err != nil || c[0].Reason != "TableFull" {
		t.Errorf("%+v %v", c, err)
	}
	if err := g.sweep(time.Now(), clock+uint64(3*time.Second)); err != nil { // over 3/4 full: shorter timeout
		t.Fatal(err)
	}
	if n := len(l.table()); n != 0 {
		t.Errorf("%d flows stay", n)
	}
	l.Run("ingress", e.frame(t))
	if got := g.ask(t, ""); len(got.Flows) != 1 {
		t.Errorf("%+v", got)
	}
	sum := g.ask(t, "since=60")
	if len(sum.Flows) != 1 || sum.Flows[0].Packets != 17 || sum.Missing[0].UnrecordedPackets != 1 {
		t.Errorf("%+v", sum)
	}
}

// Removed interfaces leave no state.
func TestGoneInterfaces(t *testing.T) {
	l := load(t, sdktest.Options{})
	l.Run("egress", tcp(egress, "S", 1, 0, 0).frame(t))
	g := sdktest.Open[*running](t, l.Compiled, l.Live())
	begin := sdk.Monotonic()
	for round, want := range []int{1, 1, 0} { // the second follows immediately, as with a request: it may be registering
		if err := g.sweep(time.Now(), begin+uint64(round/2)*uint64(sweepEvery)); err != nil {
			t.Fatal(err)
		}
		if n := len(l.table()); n != want {
			t.Errorf("round %d: %d flows", round, n)
		}
	}
	if used, err := g.usages(); err != nil || len(used) > 1 {
		t.Errorf("%+v %v", used, err)
	}
}

// The hour has a fixed size: per minute the top talkers, with a share for each service, and the sum of the others.
func TestHourIsBounded(t *testing.T) {
	var h hour
	now := time.Unix(1_800_000_000, 0)
	flood, quiet := place{"flood", "veth0"}, place{"quiet", "veth1"}
	var sent carried
	for minute := range 70 {
		at := now.Add(time.Duration(minute) * time.Minute)
		h.turn(at)
		for n := range 3000 {
			c := carried{flows: 1, packets: [2]uint64{1, 1}, bytes: [2]uint64{uint64(1000 + n), 1}}
			h.add(talker{place: flood, port: uint16(n)}, &c, 2)
			if minute >= 9 {
				sent.add(&c)
			}
		}
		h.add(talker{place: quiet, port: 80}, &carried{flows: 1, packets: [2]uint64{1, 0}, bytes: [2]uint64{1, 0}}, 2)
	}
	end := now.Add(69 * time.Minute)
	all, missing, _ := h.sum(end, 60)
	var kept carried
	quietMinutes := uint64(0)
	for i := range all {
		if all[i].talker.place == quiet {
			quietMinutes += all[i].flows
		} else {
			kept.add(&all[i].carried)
		}
	}
	if quietMinutes != 61 { // and the current one
		t.Errorf("the quiet service is in %d minutes of 61", quietMinutes)
	}
	l := missing[flood]
	if kept.flows+l.others != sent.flows || kept.allPackets()+l.otherPackets != sent.allPackets() ||
		kept.allBytes()+l.otherBytes != sent.allBytes() || l.others == 0 {
		t.Errorf("%d flows kept and %d others, want %d", kept.flows, l.others, sent.flows)
	}
	for i := range h.past {
		if n := len(h.past[i].kept); n > ofMinute {
			t.Errorf("minute %d keeps %d", i, n)
		}
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	copied := h
	for i := range copied.past {
		copied.past[i].kept = append([]flowTotals(nil), h.past[i].kept...)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := after.HeapAlloc - before.HeapAlloc; grown > 5<<20 {
		t.Errorf("the hour has %d KiB", grown>>10)
	}
	runtime.KeepAlive(copied)
	runtime.KeepAlive(h)
	if all, _, _ = h.sum(end.Add(62*time.Minute), 60); len(all) != 0 {
		t.Errorf("%d talkers are older than an hour", len(all))
	}
}

// A connection is counted with its handshake, and not again with later packets.
func TestSinceCountsHandshakesOnce(t *testing.T) {
	v := value{Connections: 1, ToResponder: 5, ToInitiator: 7, First: 1}
	v.Side[0].Packets = 3
	first := carriedBy(&v)
	v.Side[0].Packets = 9
	next := carriedBy(&v).since(first)
	if want := (carried{packets: [2]uint64{6, 0}}); next != want {
		t.Errorf("%+v", next)
	}
	v.Connections, v.ToResponder = 2, 6
	if next = carriedBy(&v).since(first); next.toResponder != 6 || next.responders != 1 {
		t.Errorf("%+v", next)
	}
}

// Traffic of two seconds ago is in the last minute, independent of the clock.
func TestSinceTheMinuteBefore(t *testing.T) {
	var h hour
	begin := time.Unix(1_800_000_000/60*60, 0)
	h.turn(begin.Add(59 * time.Second))
	h.add(talker{port: 80}, &carried{flows: 1}, 1)
	now := begin.Add(61 * time.Second)
	h.turn(now)
	if all, _, _ := h.sum(now, 1); len(all) != 1 {
		t.Errorf("%+v", all)
	}
}

// A clock that is set back, or an older time of another round, neither ends nor removes a minute.
func TestHourDoesNotTurnBack(t *testing.T) {
	var h hour
	now := time.Unix(1_800_000_000, 0)
	of := talker{place: place{"web", "veth0"}, port: 80}
	h.turn(now)
	h.add(of, &carried{flows: 1, bytes: [2]uint64{100, 0}}, 1)
	h.turn(now.Add(time.Minute))
	h.turn(now)
	h.add(of, &carried{flows: 1, bytes: [2]uint64{10, 0}}, 1)
	h.turn(now.Add(2 * time.Minute))
	all, _, _ := h.sum(now.Add(2*time.Minute), 60)
	if len(all) != 1 || all[0].allBytes() != 110 {
		t.Errorf("%+v", all)
	}
}

// Counters that decrease add nothing.
func TestSinceIsNotNegative(t *testing.T) {
	now := carried{retransmits: [2]uint64{1, 0}, connections: 1}
	got := now.since(carried{retransmits: [2]uint64{2, 0}, connections: 2})
	if got.retransmits[0] != 0 || got.connections != 0 {
		t.Errorf("%+v", got)
	}
}

// Traffic of a flow before the start of the control plane is not in the current minute; later traffic is.
func TestHourBeginsWhenItIsOpened(t *testing.T) {
	l := load(t, sdktest.Options{})
	l.Run("egress", tcp(egress, "S", 1, 0, 0).frame(t))
	g := sdktest.Open[*running](t, l.Compiled, l.Live(l.here()))
	sum := func() (packets uint64) {
		if err := g.sweep(time.Now(), sdk.Monotonic()); err != nil {
			t.Fatal(err)
		}
		all, _, _ := g.hour.sum(time.Now(), 60)
		for i := range all {
			packets += all[i].allPackets()
		}
		return packets
	}
	if n := sum(); n != 0 {
		t.Errorf("%d packets of before", n)
	}
	l.Run("egress", tcp(egress, "A", 2, 1, 0).frame(t))
	if n := sum(); n != 1 {
		t.Errorf("%d packets, want 1", n)
	}
}

// Interfaces without room for their counts share one set of flows, which are freed like others.
func TestSharedEntry(t *testing.T) {
	l := load(t, sdktest.Options{Config: `{"flows": 16, "services": 2}`})
	g := l.running()
	for n := uint32(1); g.Maps.Put(mapServices, math.MaxUint32-n, kernelUsage{}) == nil; n++ {
		if n > 1<<16 {
			t.Fatal("the map does not become full")
		}
	}
	sweep := func(clock uint64) {
		t.Helper()
		if err := l.running().sweep(time.Now(), clock); err != nil { // one that does not miss an interface yet
			t.Fatal(err)
		}
	}
	e := event{direction: ingress, proto: "udp", local: server, remote: client}
	for round := range uint16(3) {
		for port := range uint16(20) {
			e.remote = netip.AddrPortFrom(client.Addr(), 1000*(1+round)+port)
			l.Run("ingress", e.frame(t))
			if port == 17 { // a sweep that evicts nothing makes no room
				sweep(sdk.Monotonic())
			}
		}
		if n := len(l.table()); n != 16 {
			t.Fatalf("round %d: %d flows", round, n)
		}
		used, err := g.usages()
		if want := uint64(4 * (1 + round)); err != nil || used[0].held() != 16 || used[0].Unrecorded != want {
			t.Errorf("round %d: %+v, %v", round, used[0], err)
		}
		sweep(sdk.Monotonic() + uint64(16*time.Second))
		if n := len(l.table()); n != 0 {
			t.Fatalf("round %d: %d flows stay", round, n)
		}
	}
}

// While flows are lost repeatedly, the condition stays false, whether a sweep or a query detects it, and for a minute
// after the last loss. A decreased count is no loss.
func TestConditionStays(t *testing.T) {
	l := load(t, sdktest.Options{Config: `{"flows": 16, "services": 1}`})
	e := event{direction: ingress, proto: "udp", local: server, remote: client}
	lose := func() {
		for port := range uint16(20) {
			e.remote = netip.AddrPortFrom(client.Addr(), 1000+port)
			l.Run("ingress", e.frame(t))
		}
	}
	l.Run("ingress", e.frame(t))
	g := sdktest.Open[*running](t, l.Compiled, l.Live(l.here()))
	clock := sdk.Monotonic()
	sweep := func() {
		t.Helper()
		if err := g.sweep(time.Now(), clock); err != nil {
			t.Fatal(err)
		}
	}
	expect := func(status string) {
		t.Helper()
		c, err := g.conditions(clock)
		if err != nil || c[0].Status != status || (status == "False") != strings.Contains(c[0].Message, "packets of web") {
			t.Errorf("%+v, %v; want %s", c, err, status)
		}
	}
	sweep()
	expect("True")
	g.before[l.here().Ifindex] = usage{Unrecorded: 1}
	expect("True")
	sweep()
	lose()
	sweep()
	for range 29 {
		clock += uint64(sweepEvery)
		sweep()
		expect("False")
	}
	clock += uint64(sweepEvery)
	expect("True")
	lose()
	expect("False")
	sweep()
	clock += uint64(lossStays) - 1
	expect("False")
	clock++
	expect("True")
}
