// SPDX-License-Identifier: Apache-2.0

package bpftest

import (
	"bytes"
	"errors"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
	"github.com/gopacket/gopacket"
	"github.com/vishvananda/netlink"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/dataplane"
	abi "github.com/kerb-edge/kerb/internal/kerbabi"
)

var hookOf = map[chain.Hook]Hook{chain.XDP: XDP, chain.TC: TC}

func module(t *testing.T, name string) dataplane.Module {
	return dataplane.Module{Name: name, ID: name, Spec: func(h chain.Hook) (*ebpf.CollectionSpec, error) {
		return Object(t, "testdata/"+name+".bpf.c", hookOf[h]), nil
	}}
}

// chain links modules by the real linker.
func chainOf(t *testing.T, side chain.Side, dir chain.Direction, names ...string) *dataplane.Loaded {
	t.Helper()
	if err := rlimit.RemoveMemlock(); err != nil {
		t.Fatal(err)
	}
	var modules []dataplane.Module
	for _, name := range names {
		modules = append(modules, module(t, name))
	}
	l, err := dataplane.Load(side, dir, modules...)
	var rejected *dataplane.RejectedError
	if errors.As(err, &rejected) {
		t.Fatalf("%v\n%s", err, rejected.Log)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return l
}

// A packet goes into a tunnel and out again in linked chains; the module behind
// finds the packet as it has become.
func TestLinkedModules(t *testing.T) {
	needRoot(t)
	inner := base4(protoUDP)
	outer := ipv4(4, 0)
	outer.TTL = 63
	entered := serialize(t, append(ether4(), outer, gopacket.Payload(inner.build(t)[14:]))...)
	left := inner
	left.ttl--
	for _, side := range []chain.Side{chain.OnXDP, chain.OnTCIngress} {
		in := chainOf(t, side, chain.Egress, "module", "hop")
		if _, got := Run(t, in.Program, inner.build(t)); !bytes.Equal(got, entered) {
			t.Errorf("%s: into the tunnel:\nwant %x\ngot  %x", side, entered, got)
		}
		out := chainOf(t, side, chain.Ingress, "module", "hop")
		if _, got := Run(t, out.Program, entered); !bytes.Equal(got, left.build(t)) {
			t.Errorf("%s: out of the tunnel:\nwant %x\ngot  %x", side, left.build(t), got)
		}
		checkEvent(t, in, []uint32{ne.Uint32(ip4A), ne.Uint32(ip4B), 0, 4})
		checkEvent(t, out, inner.tuple())
	}
}

// checkEvent reads the event of the packet: a time, the hash, the outcome.
func checkEvent(t *testing.T, l *dataplane.Loaded, tuple []uint32) {
	t.Helper()
	events := readAll(t, l.Maps["module"]["events"])
	if len(events) != 1 || len(events[0]) != 16 {
		t.Fatalf("events %x", events)
	}
	e := events[0]
	if ne.Uint64(e) == 0 || ne.Uint32(e[8:]) != jhash2(tuple, 0) || ne.Uint32(e[12:]) != 0 {
		t.Errorf("event %x, want hash %#x", e, jhash2(tuple, 0))
	}
}

// A parser that is inlined is verified once, also on TC, where headers are pulled into the linear part.
func TestReparseIsVerifiedOnce(t *testing.T) {
	needRoot(t)
	verified := map[chain.Side]uint32{}
	for _, side := range []chain.Side{chain.OnXDP, chain.OnTCIngress} {
		info, err := chainOf(t, side, chain.Ingress, "module").Program.Info()
		if err != nil {
			t.Fatal(err)
		}
		n, known := info.VerifiedInstructions()
		if !known {
			t.Skip("the kernel does not count verified instructions before Linux 5.16")
		}
		verified[side] = n
	}
	if verified[chain.OnTCIngress] > verified[chain.OnXDP]*3/2 {
		t.Errorf("instructions verified: %v", verified)
	}
}

// The last hop is dropped, with its reason.
func TestLinkedModuleDrops(t *testing.T) {
	needRoot(t)
	f := base6(protoTCP)
	f.ttl = 1
	l := chainOf(t, chain.OnTCIngress, chain.Egress, "hop")
	if ret, got := Run(t, l.Program, f.build(t)); ret != uint32(netlink.TC_ACT_SHOT) || !bytes.Equal(got, f.build(t)) {
		t.Errorf("returned %d, frame %x", ret, got)
	}
	drops, err := l.Drops("hop")
	if err != nil {
		t.Fatal(err)
	}
	if drops[abi.DropNoRoute] != 1 {
		t.Errorf("drops by reason: %v", drops)
	}
}
