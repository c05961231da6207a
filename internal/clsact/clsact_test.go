// SPDX-License-Identifier: Apache-2.0

package clsact

import (
	"errors"
	"os"
	"runtime"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/chain"
)

// The library netlink lists what Set attached, and attaches what List and Delete must not touch.
func TestFilters(t *testing.T) {
	p := chain.Point{Ifindex: veth(t), Side: chain.OnTCEgress}
	wantFilters(t, "an interface without the qdisc", p)
	wantFilters(t, "no interface", chain.Point{Ifindex: p.Ifindex + 1000, Side: p.Side})
	if err := AddQdisc(p.Ifindex); err != nil {
		t.Fatal(err)
	}
	if err := AddQdisc(p.Ifindex); !errors.Is(err, unix.EEXIST) {
		t.Errorf("the qdisc again: %v", err)
	}
	foreign := &netlink.U32{FilterAttrs: netlink.FilterAttrs{LinkIndex: p.Ifindex, Parent: netlink.HANDLE_MIN_EGRESS,
		Priority: 3, Protocol: unix.ETH_P_ALL}}
	if err := netlink.FilterAdd(foreign); err != nil {
		t.Fatal(err)
	}
	one, other := program(t), program(t)
	f, last := Filter{Priority: 1, Handle: 7, Name: "kerb_test"}, Filter{Priority: 9, Handle: 7, Name: "last"}
	for _, set := range []struct {
		filter *Filter
		prog   *ebpf.Program
	}{{&last, one}, {&f, other}, {&f, one}} {
		if err := Set(p, *set.filter, set.prog.FD()); err != nil {
			t.Fatal(err)
		}
		info, err := set.prog.Info()
		if err != nil {
			t.Fatal(err)
		}
		id, _ := info.ID()
		set.filter.Program = uint32(id)
	}
	wantFilters(t, "two programs", p, f, last)
	wantFilters(t, "the other side", chain.Point{Ifindex: p.Ifindex, Side: chain.OnTCIngress})
	link := &netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Index: p.Ifindex}}
	all, err := netlink.FilterList(link, netlink.HANDLE_MIN_EGRESS)
	if err != nil || len(all) != 3 {
		t.Fatalf("%d filters, %v", len(all), err)
	}
	b, ok := all[0].(*netlink.BpfFilter)
	if !ok || !b.DirectAction || b.Name != f.Name || b.Id != int(f.Program) || b.Priority != f.Priority ||
		b.Handle != f.Handle || b.Protocol != unix.ETH_P_ALL {
		t.Errorf("netlink lists %+v", all[0])
	}
	if err := Delete(p, f); err != nil {
		t.Error(err)
	}
	if err := Delete(p, f); !errors.Is(err, unix.ENOENT) {
		t.Errorf("deleted twice: %v", err)
	}
	wantFilters(t, "after Delete", p, last)
}

func wantFilters(t *testing.T, what string, p chain.Point, want ...Filter) {
	t.Helper()
	if got, err := List(p); err != nil || !slices.Equal(got, want) {
		t.Errorf("%s: %+v, %v; want %+v", what, got, err, want)
	}
}

func program(t *testing.T) *ebpf.Program {
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// veth returns an interface in a network namespace that ends with the test's thread.
func veth(t *testing.T) int {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	runtime.LockOSThread() // never unlocked
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	l := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "clsact0"}, PeerName: "clsact1"}
	if err := netlink.LinkAdd(l); err != nil {
		t.Fatal(err)
	}
	return l.Index
}
