// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/chain"
)

// What a link runs is not read again and again, also after it was changed. An interface that has vanished is noticed at
// once, even if another one has its index, and so is a pin that is gone.
func TestKnownLinks(t *testing.T) {
	w := newWorld(t, Options{})
	if !w.tcx {
		t.Skip("needs links of TCX")
	}
	before := linkAge
	linkAge = time.Hour
	t.Cleanup(func() { linkAge = before })
	on := chain.Point{Ifindex: w.a.OuterIndex(), Side: chain.OnTCIngress}
	other := chain.Point{Ifindex: w.b.OuterIndex(), Side: chain.OnTCIngress}
	for _, p := range []chain.Point{on, other} {
		w.deploy(t, p, chain.Egress, testModule(t, "pass", "count", nil))
	}
	observe := func(what string, points int, runs bool) {
		t.Helper()
		state, err := w.Observe()
		if err != nil || len(state.Points) != points {
			t.Fatalf("%s: %+v, %v", what, state.Points, err)
		}
		for _, a := range state.Points {
			if a.Point != on {
				continue
			}
			if program, err := w.Program(on); (a.Program != 0) != runs || program != a.Program || err != nil {
				t.Errorf("%s: program %d, %d, %v", what, a.Program, program, err)
			}
		}
	}
	observe("attached", 2, true)
	l, err := link.LoadPinnedLink(w.layout.link(on), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Detach(); err != nil {
		t.Fatal(err)
	}
	l.Close()
	observe("detached by another program a moment ago", 2, true)
	linkAge = 0
	observe("detached by another program", 2, false)
	linkAge = time.Hour
	w.deploy(t, on, chain.Egress, testModule(t, "pass", "count", nil))
	observe("attached again", 2, true)
	if err := netlink.LinkDel(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Index: on.Ifindex}}); err != nil {
		t.Fatal(err)
	}
	again := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "kdpagain", Index: on.Ifindex}, PeerName: "kdpagainp"}
	if err := netlink.LinkAdd(again); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = netlink.LinkDel(again) })
	observe("with another interface of the same index", 2, false)
	if err := os.Remove(w.layout.link(on)); err != nil {
		t.Fatal(err)
	}
	observe("without its pin", 1, false)
}

// After too many interfaces have vanished at once, those that vanish later are noticed again.
func TestRemovalsAfterTooMany(t *testing.T) {
	needsRoot(t)
	runtime.LockOSThread() // the thread ends with the test, and its network namespace, which no other test changes
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	r, err := openRemovals()
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(r.fd)
	if err := unix.SetsockoptInt(r.fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 8<<10); err != nil {
		t.Fatal(err)
	}
	remove := func(n int) (last int) {
		t.Helper()
		for range n {
			pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "kdpgone"}, PeerName: "kdpgonep"}
			if err := netlink.LinkAdd(pair); err != nil {
				t.Fatal(err)
			}
			added, err := netlink.LinkByName(pair.Name)
			if err != nil {
				t.Fatal(err)
			}
			last = added.Attrs().Index
			if err := netlink.LinkDel(added); err != nil {
				t.Fatal(err)
			}
		}
		return last
	}
	remove(30)
	if _, complete := r.read(); complete {
		t.Fatal("the queue has held 30 interfaces")
	}
	last := remove(1)
	if gone, complete := r.read(); !gone[last] || !complete {
		t.Errorf("%v, complete %v: want interface %d", gone, complete, last)
	}
}

// A link is not noted if interfaces have vanished while it was read: another reader may have had it forgotten already.
func TestLinkReadDuringRemoval(t *testing.T) {
	for _, removed := range []bool{false, true} {
		k := &knownLinks{}
		a := chain.Attached{Point: chain.Point{Ifindex: 7, Side: chain.OnTCIngress}, Program: 1}
		before := k.removals()
		if removed {
			k.count++
		}
		k.setRead(a, before)
		if _, known := k.get(a.Point); known == removed {
			t.Errorf("interfaces removed meanwhile: %v, the link is known: %v", removed, known)
		}
	}
}
