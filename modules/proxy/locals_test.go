// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"maps"
	"net/netip"
	"testing"
	"time"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/sdk"
)

func localInstance(name string, ifindex uint32, addresses ...string) sdk.Attachment {
	return sdk.Attachment{Service: name, Interface: "v" + name, Ifindex: ifindex, MAC: "02:00:00:00:00:09",
		Addresses: addresses, Ingress: []string{"px"}}
}

// local returns the data plane's location of an instance.
func (p *testControl) local(name string) (local, uint32) {
	p.t.Helper()
	_, e := p.entry(name)
	index := e.Place[e.Generation&1].Local
	var l local
	if err := p.live.Maps[mapLocals].Lookup(index, &l); err != nil {
		p.t.Fatal(err)
	}
	return l, index
}

func (p *testControl) changed(i sdk.Attachment, there bool) {
	p.t.Helper()
	if err := p.w.instanceChanged(i, there, p.now); err != nil {
		p.t.Fatal(err)
	}
}

func (p *testControl) interfaces() map[uint32]uint32 {
	p.t.Helper()
	out := map[uint32]uint32{}
	if err := each(p.live.Maps[mapInterfaces], mapInterfaces, func(k, v []uint32) {
		for i := range k {
			out[k[i]] = v[i]
		}
	}); err != nil {
		p.t.Fatal(err)
	}
	return out
}

// homes returns the addresses that the data plane has for this node.
func (p *testControl) homes() map[netip.Addr]uint32 {
	p.t.Helper()
	out := map[netip.Addr]uint32{}
	if err := each(p.live.Maps[mapHomes], mapHomes, func(addrs []address, ifindices []uint32) {
		for i, a := range addrs {
			out[a.addr()] = ifindices[i]
		}
	}); err != nil {
		p.t.Fatal(err)
	}
	return out
}

// Addresses of services follow their changes, also after a restart.
func TestHomes(t *testing.T) {
	p := newTestControl(t, "")
	a, b := localInstance("a", 7, "10.18.0.1/24", "fd00::1/64"), localInstance("b", 8, "10.18.0.2/24")
	p.changed(a, true)
	p.changed(b, true)
	p.changed(localInstance("", 9, "10.18.0.9/24"), true) // of the node itself
	want := map[netip.Addr]uint32{addr("10.18.0.1"): 7, addr("fd00::1"): 7, addr("10.18.0.2"): 8}
	if got := p.homes(); !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	b.Addresses = []string{"10.18.0.1/24"}
	a.Addresses = []string{"10.18.0.3/24"}
	p.changed(a, true)
	p.changed(b, true)
	want = map[netip.Addr]uint32{addr("10.18.0.3"): 7, addr("10.18.0.1"): 8}
	if got := p.homes(); !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	p.locals = []sdk.Attachment{b}
	p.restart("")
	delete(want, addr("10.18.0.3"))
	if got := p.homes(); !maps.Equal(got, want) {
		t.Errorf("after a restart: %v, want %v", got, want)
	}
	p.changed(b, false)
	if got := p.homes(); len(got) != 0 {
		t.Errorf("%v is left", got)
	}
}

// Instances are located on this node by either address, in any order.
func TestLocals(t *testing.T) {
	p := newTestControl(t, "")
	p.changed(localInstance("a", 7, "10.18.0.1/24"), true)
	p.put(webService(3, v1alpha1.PolicyRoundRobin))
	p.changed(localInstance("b", 8, "192.0.2.9/24", "fd00::2/64"), true)
	mac := [6]byte{2, 0, 0, 0, 0, 9}
	for name, want := range map[string]local{"web-0": {Ifindex: 7, MAC: mac, Flags: localPeer},
		"web-1": {Ifindex: 8, MAC: mac, Flags: localPeer}, "web-2": {}} {
		if got, _ := p.local(name); got != want {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
	}
	_, before := p.entry("web-0")
	other := localInstance("a", 7, "10.18.0.1/24")
	other.Ingress = []string{"fw", "px"}
	p.changed(other, true)
	if got, _ := p.local("web-0"); got.Flags != 0 {
		t.Error("handed past the firewall")
	}
	other.Addresses = []string{"10.18.0.3/24"}
	p.changed(other, true)
	if got, _ := p.local("web-0"); got != (local{}) {
		t.Errorf("web-0 is still at %+v, whose address has changed", got)
	}
	if got, _ := p.local("web-2"); got.Ifindex != 7 {
		t.Errorf("web-2 is at %+v", got)
	}
	if _, after := p.entry("web-0"); after.Generation != before.Generation {
		t.Error("sessions would end, although no address of the instance has changed")
	}
	p.changed(other, false)
	if got, _ := p.local("web-2"); got != (local{}) {
		t.Errorf("web-2 is still at %+v, which is gone", got)
	}
	if there := p.interfaces(); len(there) != 1 || there[8] == 0 {
		t.Errorf("interfaces: %v", there)
	}
}

// A service that takes another's address does not get its packets: an instance that names a service belongs to that
// one. If none does, packets are routed normally.
func TestStolenAddress(t *testing.T) {
	for ifindex, first := range map[uint32]bool{6: true, 8: false} {
		p := newTestControl(t, "")
		thief := localInstance("thief", ifindex, "10.18.0.1/24", "10.18.0.2/24")
		p.changed(localInstance("a", 7, "10.18.0.1/24"), first)
		p.changed(thief, true)
		p.changed(localInstance("a", 7, "10.18.0.1/24"), true)
		web := webService(2, v1alpha1.PolicyRoundRobin)
		web.Spec.Instances[0].Service = "a"
		p.put(web)
		if got, _ := p.local("web-0"); got.Ifindex != 7 {
			t.Errorf("packets to a go to %+v", got)
		}
		if got := p.homes(); !maps.Equal(got, map[netip.Addr]uint32{addr("10.18.0.2"): ifindex}) {
			t.Errorf("homes are %v", got)
		}
		web.Spec.Instances[0].Service = ""
		p.put(web)
		if got, _ := p.local("web-0"); got != (local{}) {
			t.Errorf("packets to an address of two go to %+v", got)
		}
		p.changed(thief, false)
		if got, _ := p.local("web-0"); got.Ifindex != 7 {
			t.Errorf("packets to a go to %+v when the thief has gone", got)
		}
	}
}

// Interfaces of the node are clients, but packets to them pass to the stack.
func TestNodeInterface(t *testing.T) {
	p := newTestControl(t, "")
	i := localInstance("", 7, "10.18.0.1/24")
	p.changed(i, true)
	p.put(webService(1, v1alpha1.PolicyRoundRobin))
	if _, index := p.local("web-0"); index != 0 {
		t.Error("an instance is taken to be behind an interface of the node")
	}
	var l local
	if err := p.live.Maps[mapLocals].Lookup(p.interfaces()[7], &l); err != nil || l != (local{Ifindex: 7}) {
		t.Errorf("%+v, %v", l, err)
	}
}

// The index of an interface is kept while sessions refer to it, also during a restart, and while the interface is
// missing for a short time.
func TestLocalsKeepTheirPlaces(t *testing.T) {
	p := newTestControl(t, "")
	a, b := localInstance("a", 7, "10.18.0.1/24"), localInstance("b", 8, "10.18.0.2/24")
	p.locals = []sdk.Attachment{a, b}
	p.changed(a, true)
	p.changed(b, true)
	before := p.interfaces()
	p.restart("")
	p.same("after a restart", p.interfaces(), before)
	p.changed(a, false)
	p.changed(a, true)
	p.same("away and back", p.interfaces(), before)
	p.locals = p.locals[1:]
	p.restart("")
	p.same("gone in a restart", p.interfaces(), map[uint32]uint32{8: before[8]})
	key := flow{Src: address{1}, Ifindex: 8, Proto: protoTCP}
	p.session(key, session{Seen: sdk.Monotonic(), Local: before[7], State: stateAnswered})
	p.now = p.now.Add(absentFor + time.Minute)
	p.sweep()
	if p.w.locals.byIfindex[7] == nil {
		t.Error("forgotten although a session refers to it")
	}
	if err := p.live.Maps[mapSessions].Delete(key); err != nil {
		t.Fatal(err)
	}
	p.sweep()
	if p.w.locals.byIfindex[7] != nil {
		t.Error("not forgotten")
	}
	p.now = p.now.Add(restFor + time.Second)
	p.changed(localInstance("c", 9, "10.18.0.3/24"), true)
	p.same("its place goes to the next", p.interfaces(), map[uint32]uint32{8: before[8], 9: before[7]})
}
