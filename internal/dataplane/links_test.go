// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

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
	l, err := openLink(w.layout.link(on))
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
