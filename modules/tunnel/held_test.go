// SPDX-License-Identifier: Apache-2.0

package tunnel

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/lab/wait"
	"github.com/kerb-edge/kerb/sdk"
)

// following runs the lookup of unknown senders until the test ends.
func (k *kernel) following() {
	before := holdFor
	holdFor = time.Hour // independent of the machine's load
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	group.Go(func() { k.followStrangers(ctx) })
	k.t.Cleanup(func() { cancel(); group.Wait(); holdFor = before })
}

// A held packet is dropped if the answer is negative, has no node for the source, or does not arrive. Later packets of
// the source are dropped, too, and it is not looked up again for a while.
func TestHeldPacketsAreDropped(t *testing.T) {
	for name, c := range map[string]struct {
		answer func(k *kernel)
		want   heldCounts
	}{
		"unknown": {func(k *kernel) {
			k.tell(sdk.VirtualServiceUpdate{Unknown: []netip.Addr{netip.MustParseAddr("10.30.0.9")}})
		}, heldCounts{Denied: 3}},
		"an instance of this node": {func(k *kernel) {
			k.tell(sdk.VirtualServiceUpdate{Put: []sdk.VirtualService{
				named("oakestra.ours", "", "10.1.0.6", "fd01::6", "10.30.0.9", "fdff::9")}})
		}, heldCounts{Denied: 3}},
		"no answer": {func(k *kernel) {
			source := netip.MustParseAddr("10.30.0.9")
			k.overdue(source, k.asked.pending[source].begun.Add(-time.Second)) // of a previous lookup
			k.overdue(source, k.asked.pending[source].begun)
		}, heldCounts{Overdue: 2, Denied: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			k := loadNamed(t)
			asked := 0
			k.tunnel.live.Resolve = func(netip.Addr) { asked++ }
			again := k.arrivals()
			k.following()
			packet := fromTo(wires["oakestra"], "192.0.2.3").arrival(k, ip("10.30.0.9", "10.1.0.5", 17, udpBody(9)))
			for range 2 {
				k.run(k.unwrap(), packet, 0)
			}
			k.waitHeld(2)
			c.answer(k)
			p := heldPacket{source: netip.MustParseAddr("10.30.0.9"), from: netip.MustParseAddr("192.0.2.3"),
				frame: []byte{}}
			if k.ask(p, time.Now()); k.held.counts != c.want || len(k.held.packets) != 0 || asked != 1 ||
				len(*again) != 0 {
				t.Errorf("%+v, asked %d times, %d arrive", k.held, asked, len(*again))
			}
		})
	}
}

// Packets that are too long to be held are dropped and counted, but their source is looked up.
func TestLongPacketsAreNotHeld(t *testing.T) {
	k := loadNamed(t)
	asked := make(chan netip.Addr, 1)
	k.tunnel.live.Resolve = func(a netip.Addr) { asked <- a }
	k.following()
	long := fromTo(wires["oakestra"], "192.0.2.3").arrival(k, ip("10.30.0.9", "10.1.0.5", 17, udpBody(2100)))
	if ret, why := k.reason(k.unwrap(), long); ret != tcShot || why != "unknown_source" {
		t.Errorf("action %d %s", ret, why)
	}
	if a := <-asked; a.String() != "10.30.0.9" {
		t.Errorf("asked for %s", a)
	}
	wait.Until(t, "it is counted", func() bool {
		k.mu.Lock()
		defer k.mu.Unlock()
		return k.held.counts == heldCounts{Long: 1}
	}, func() any { k.mu.Lock(); defer k.mu.Unlock(); return k.held.counts })
}

// Of a node's flood of forged sources few reach the control plane, and the first packet of another node is handled.
func TestFloodOfUnknownSources(t *testing.T) {
	k := loadNamed(t)
	k.tunnel.live.Resolve = func(netip.Addr) {}
	again := k.arrivals()
	k.following()
	began, held := window(t), 0
	for i := range 2000 {
		source := netip.AddrFrom4([4]byte{10, 30, byte(1 + i>>8), byte(i)}).String()
		_, why := k.reason(k.unwrap(), fromTo(wires["oakestra"], "192.0.2.66").arrival(k,
			ip(source, "10.1.0.5", 17, udpBody(9))))
		if why == "held" {
			held++
		} else if why != "unknown_source" {
			t.Fatalf("packet %d: %s", i, why)
		}
	}
	if most := 64 * int(window(t)-began+1); held == 0 || held > most {
		t.Errorf("%d packets of a flood are held, at most %d may be", held, most)
	}
	honest := fromTo(wires["oakestra"], "192.0.2.3").arrival(k, ip("10.30.0.9", "10.1.0.5", 17, udpBody(9)))
	k.run(k.unwrap(), honest, 0)
	k.waitHeld(min(held, maxHeldNode) + 1)
	k.tell(sdk.VirtualServiceUpdate{Put: []sdk.VirtualService{
		named("oakestra.new", "192.0.2.3", "10.3.0.7", "fd03::7", "10.30.0.9", "fdff::9")}})
	if len(*again) != 1 {
		t.Errorf("%d packets arrive again", len(*again))
	}
}

var underlayAddress = netip.MustParseAddr("192.0.2.1")

// Few lookups are made for a node that claims sources of other nodes, since results fill shared tables. Another node's
// sender is still looked up, also one that the first node has claimed.
func TestForeignSourcesAreBounded(t *testing.T) {
	k := loadNamed(t)
	asked := map[netip.Addr]bool{}
	k.tunnel.live.Resolve = func(a netip.Addr) { asked[a] = true }
	again := k.arrivals()
	now := time.Now()
	claim := func(i int, from string) netip.Addr {
		source := netip.AddrFrom4([4]byte{10, 30, byte(1 + i>>8), byte(i)})
		clear(asked)
		k.ask(heldPacket{source: source, from: netip.MustParseAddr(from), to: underlayAddress, ifindex: 1,
			frame: make([]byte, 60)}, now)
		if asked[source] {
			k.tell(sdk.VirtualServiceUpdate{Put: []sdk.VirtualService{named(fmt.Sprint("oakestra.", i), "192.0.2.3",
				fmt.Sprintf("10.3.%d.%d", i>>8, i&255), fmt.Sprintf("fd03::%x", i+1), source.String(),
				fmt.Sprintf("fdff::3:%x", i))}})
		}
		return source
	}
	for i := range 4 * maxAskedBy {
		if source := claim(i, "192.0.2.66"); asked[source] != (i < maxAskedBy) {
			t.Fatalf("source %d of another node is looked up: %v", i, asked[source])
		}
	}
	now = now.Add(trickle)
	for i := range 2 { // the outer address may be forged, too: its node may still have new senders
		if source := claim(4*maxAskedBy+i, "192.0.2.66"); asked[source] != (i == 0) {
			t.Errorf("after a second source %d of another node is looked up: %v", i, asked[source])
		}
	}
	*again = nil
	for i := range 4 * maxAskedBy {
		source := claim(i, "192.0.2.3")
		if asked[source] != (i >= maxAskedBy) || len(*again) != i+1 {
			t.Fatalf("source %d of its node is looked up: %v, %d packets arrive", i, asked[source], len(*again))
		}
	}
	now = time.Now().Add(foreignFor + time.Second)
	for i := range 2 {
		if source := claim(5*maxAskedBy+i, "192.0.2.66"); !asked[source] {
			t.Error("the node is not forgiven")
		}
	}
	if by := k.asked.of[netip.MustParseAddr("192.0.2.66")]; len(k.asked.foreign) != 2 || by.foreign != 2 ||
		by.pending != 0 || len(k.asked.of) != 1 {
		t.Errorf("%d foreign lookups, %v", len(k.asked.foreign), k.asked.of)
	}
}

// No instance sends from an address of a whole service. Few lookups are made for a node that claims such addresses,
// also if answers are late. Its own senders are then looked up slowly.
func TestAddressesOfServicesAreForeign(t *testing.T) {
	for _, late := range []bool{false, true} {
		k := loadNamed(t)
		asked := map[netip.Addr]bool{}
		k.tunnel.live.Resolve = func(a netip.Addr) { asked[a] = true }
		again := k.arrivals()
		now, from := time.Now(), netip.MustParseAddr("192.0.2.3")
		ask := func(source netip.Addr) bool {
			clear(asked)
			k.ask(heldPacket{source: source, from: from, to: underlayAddress, ifindex: 1, frame: make([]byte, 60)}, now)
			return asked[source]
		}
		for i := range 2 * maxAskedBy {
			if i < maxAskedBy {
				now = now.Add(askAgain / 4) // the previous ones are not pending for long
			}
			source := netip.AddrFrom4([4]byte{10, 30, 1, byte(i)})
			if got := ask(source); got != (i < maxAskedBy) {
				t.Fatalf("address %d is looked up: %v", i, got)
			} else if !got {
				continue
			}
			if late {
				k.overdue(source, now)
			}
			vs := named(fmt.Sprint("oakestra.", i), "192.0.2.3", fmt.Sprintf("10.3.0.%d", i), fmt.Sprintf("fd03::%x", i+1),
				fmt.Sprintf("10.30.2.%d", i), fmt.Sprintf("fdff::3:%x", i))
			vs.Spec.Addresses = append(vs.Spec.Addresses,
				v1alpha1.VirtualAddress{Address: source.String(), Policy: v1alpha1.PolicyRoundRobin})
			for range 2 { // the same source causes one lookup
				k.tell(sdk.VirtualServiceUpdate{Put: []sdk.VirtualService{vs}})
			}
			if by := k.asked.of[from]; by.foreign != i+1 || by.pending != 0 || ask(source) {
				t.Fatalf("address %d: %+v; is looked up again: %v", i, by, asked[source])
			}
		}
		want := heldCounts{Denied: 3 * maxAskedBy}
		if late {
			want = heldCounts{Denied: 2 * maxAskedBy, Overdue: maxAskedBy}
		}
		if len(*again) != 0 || len(k.held.packets) != 0 || k.held.counts != want {
			t.Errorf("late: %v: %d arrive, %+v, want %+v", late, len(*again), k.held, want)
		}
		if now = now.Add(trickle); !ask(netip.MustParseAddr("10.30.9.9")) {
			t.Error("a sender of that node is not looked up")
		}
	}
}

// A packet that is too long to be held starts the lookup for held ones, whose wait ends, too.
func TestHeldBehindLongPacket(t *testing.T) {
	k := loadNamed(t)
	k.tunnel.live.Resolve = func(netip.Addr) {}
	before := holdFor
	t.Cleanup(func() { holdFor = before })
	p := heldPacket{source: netip.MustParseAddr("10.30.0.9"), from: netip.MustParseAddr("192.0.2.3"), ifindex: 1}
	holdFor = 100 * time.Millisecond
	k.ask(p, time.Now())
	p.frame = make([]byte, 60)
	k.ask(p, time.Now())
	k.waitHeld(0)
	k.mu.Lock()
	defer k.mu.Unlock()
	if c := k.held.counts; c.Overdue+c.Denied != 1 { // denied: the wait ended before it arrived
		t.Errorf("%+v", c)
	}
}

// A packet is delivered again with its original address and port, which other modules see.
func TestArrivesAsItCame(t *testing.T) {
	k := loadNamed(t)
	k.tunnel.live.Resolve = func(netip.Addr) {}
	again := k.arrivals()
	k.following()
	link := underlay
	link.Addresses = append([]string{"192.0.2.100/24", "192.0.2.111/24", "2001:db8::111/64"}, underlay.Addresses...)
	k.instances[1] = link
	k.refresh()
	inner := ip("10.30.0.9", "10.1.0.5", 17, udpBody(99)) // Linux 6.1 pads short ones
	var want [][]byte
	for i, to := range []string{"192.0.2.1", "192.0.2.111", "192.0.2.100", "2001:db8::1", "2001:db8::111"} {
		from := "192.0.2.3"
		if i > 2 {
			from = "2001:db8::3"
		}
		w := fromTo(wires["oakestra"], from)
		w.tos, w.setTOS, w.to = 0xb8, true, netip.MustParseAddr(to)
		outer := w.wrap(inner, uint16(40000+i))
		if w.to.Is4() {
			copy(outer[4:8], []byte{0, 0, 0, 0}) // ID and DF
			refresh(outer)
		} else {
			copy(outer[1:4], []byte{0x80, 0, 0}) // flow label
		}
		want = append(want, frame(outer))
		if ret, why := k.reason(k.unwrap(), want[i]); ret != tcShot || why != "held" {
			t.Fatalf("to %s: action %d %s", to, ret, why)
		}
	}
	k.waitHeld(len(want))
	k.tell(sdk.VirtualServiceUpdate{Put: []sdk.VirtualService{
		named("oakestra.new", "192.0.2.3", "10.3.0.7", "fd03::7", "10.30.0.9", "fdff::9")}})
	if !slices.EqualFunc(*again, want, bytes.Equal) {
		t.Errorf("arrived again:\n got %x\nwant %x", *again, want)
	}
}

// One source does not use up its node's share.
func TestSourceLeavesItsNodeRoom(t *testing.T) {
	k := loadNamed(t)
	packet := func(source string) []byte {
		return fromTo(wires["oakestra"], "192.0.2.3").arrival(k, ip(source, "10.1.0.5", 17, udpBody(9)))
	}
	for range 200 {
		k.run(k.unwrap(), packet("10.30.0.9"), 0)
	}
	if ret, why := k.reason(k.unwrap(), packet("10.30.0.10")); ret != tcShot || why != "held" {
		t.Errorf("another source: action %d %s", ret, why)
	}
}

// window returns the window of the data plane's limit (TUN_WINDOW_BITS).
func window(t *testing.T) int64 {
	t.Helper()
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		t.Fatal(err)
	}
	return now.Nano() >> 30
}

// The number of held packets is limited per source and node, and a full store drops those of the node with the most.
func TestHeldIsBounded(t *testing.T) {
	var h held
	packet := func(node, source int) heldPacket {
		return heldPacket{source: netip.AddrFrom4([4]byte{10, 30, byte(node), byte(source)}),
			from: netip.AddrFrom4([4]byte{192, 0, 2, byte(node)})}
	}
	for range 2 * maxHeldSource {
		h.add(packet(0, 0))
	}
	if len(h.packets) != maxHeldSource || h.counts.Dropped != maxHeldSource {
		t.Errorf("of one source %d are held, %d dropped", len(h.packets), h.counts.Dropped)
	}
	other := packet(9, 0)
	other.source = packet(0, 0).source
	h.add(other)
	if got := h.take(other.source); len(got) != maxHeldSource+1 || got[maxHeldSource].from != other.from {
		t.Errorf("with those of another node that has sent from the same source %d are held", len(got))
	}
	for node := range maxHeld / maxHeldNode * 2 {
		for source := range 2 * maxHeldNode {
			h.add(packet(node, source))
		}
	}
	of := map[string]int{}
	for _, p := range h.packets {
		of[fmt.Sprint(p.from)]++
	}
	for from, n := range of {
		if n > maxHeldNode {
			t.Errorf("%d are held from %s", n, from)
		}
	}
	if len(h.packets) != maxHeld {
		t.Errorf("%d are held", len(h.packets))
	}
	h.add(packet(200, 1))
	if got := h.take(packet(200, 1).source); len(got) != 1 || len(h.packets) != maxHeld-1 {
		t.Errorf("of a node with one packet %d are held", len(got))
	}
}
