// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/sdk"
)

// excluding returns a virtual service in which an instance does not serve some ports. The control plane keeps the
// previous one.
func excluding(vs sdk.VirtualService, instance int, ports ...v1alpha1.ExcludedPort) sdk.VirtualService {
	vs.Spec.Instances = slices.Clone(vs.Spec.Instances)
	vs.Spec.Instances[instance].ExcludedPorts = ports
	return vs
}

func protocolOf(proto int) v1alpha1.Protocol {
	if proto == protoUDP {
		return v1alpha1.ProtocolUDP
	}
	return v1alpha1.ProtocolTCP
}

// New sessions to a port go to the instances that serve it, in turn. Other ports, and the port of the other protocol,
// have all instances.
func TestExcludedPorts(t *testing.T) {
	eachClient(t, func(t *testing.T, client string, proto int) {
		s := newSticky(t, 3, 80, 81)
		for i := range s.vs.Spec.Addresses {
			s.vs.Spec.Addresses[i].AffinityTimeout = ""
		}
		check := func(what string, proto int, port uint16, want map[string]int) {
			t.Helper()
			got := map[string]int{}
			for range 12 {
				got[s.connect(client, proto, port)]++
			}
			s.same(fmt.Sprint(what, ": ", protocolOf(proto), " ", port), got, want)
		}
		all := map[string]int{"web-0": 4, "web-1": 4, "web-2": 4}
		other := protoTCP + protoUDP - proto
		port := v1alpha1.ExcludedPort{Port: 81, Protocol: protocolOf(proto)}
		s.put(excluding(s.vs, 0, port))
		check("without one", proto, 81, map[string]int{"web-1": 6, "web-2": 6})
		check("without one", proto, 80, all)
		check("without one", other, 81, all)
		port.Draining = true
		s.put(excluding(excluding(s.vs, 1, port), 2, port))
		check("one is left", proto, 81, map[string]int{"web-0": 12})
		s.put(excluding(excluding(excluding(s.vs, 0, port), 1, port), 2, port))
		check("none is left", proto, 81, map[string]int{"": 12})
		if got := s.data.count(countNoInstance); got != 12 {
			t.Errorf("%d packets found no instance, want 12", got)
		}
		check("none is left", proto, 80, all)
		s.put(s.vs)
		check("all again", proto, 81, all)
	})
}

// A client with affinity leaves an instance that no longer serves the port, for this port only.
func TestExcludedPortsWithAffinity(t *testing.T) {
	eachClient(t, func(t *testing.T, client string, proto int) {
		s := newSticky(t, 3, 80, 81)
		s.stays("a port", client, proto, 80, "web-0")
		s.stays("another port", client, proto, 81, "web-1")
		s.put(excluding(s.vs, 1, v1alpha1.ExcludedPort{Port: 81, Protocol: protocolOf(proto)}))
		next := s.connect(client, proto, 81)
		if next != "web-0" && next != "web-2" {
			t.Errorf("the port goes to %q", next)
		}
		s.stays("the port has another instance", client, proto, 81, next)
		s.stays("the other port is as it was", client, proto, 80, "web-0")
		s.put(excluding(s.vs, 2, v1alpha1.ExcludedPort{Port: 80, Protocol: protocolOf(proto), Draining: true}))
		s.stays("all serve the port again", client, proto, 81, next)
		s.stays("another instance does not serve the other port", client, proto, 80, "web-0")
		s.put(s.vs)
		s.stays("all serve it again", client, proto, 80, "web-0")
		if got := len(s.remembered()); got != 2 {
			t.Errorf("%d affinities, want 2", got)
		}
	})
}

// splits returns the runs of ports: names of instances by address and port.
func (p *testControl) splits() map[string]string {
	p.t.Helper()
	addresses := map[uint32]netip.Addr{}
	for a, v := range p.w.addresses {
		addresses[v.value.ID] = a
	}
	out := map[string]string{}
	if err := each(p.live.Maps[mapVIPs], mapVIPs, func(keys []address, values []vip) {
		for i, v := range values {
			id, port, ok := parseSplitKey(keys[i])
			if !ok {
				continue
			}
			var names []string
			for n := range v.Count {
				var index uint32
				if err := p.live.Maps[mapSlots].Lookup(v.First+n, &index); err != nil {
					p.t.Fatal(err)
				}
				names = append(names, p.nameOf(index))
			}
			out[fmt.Sprint(addresses[id], " ", protocolName(port.proto), " ", port.port.number())] = strings.Join(names, " ")
		}
	}); err != nil {
		p.t.Fatal(err)
	}
	return out
}

// The maps have runs for ports that some instance does not serve. A restart keeps them, and removes obsolete ones.
func TestExcludedPortsInMaps(t *testing.T) {
	p := newTestControl(t, "")
	vs := webService(3, v1alpha1.PolicyRoundRobin)
	vs.Spec.Addresses[0].AffinityTimeout = "3h"
	vs.Spec.Ports = []v1alpha1.VirtualPort{{Port: 80}, {Port: 53, Protocol: v1alpha1.ProtocolUDP}}
	used := func() int {
		s, err := p.w.stats()
		if err != nil {
			t.Fatal(err)
		}
		return s.Tables["addresses"].Used
	}
	check := func(what string, addresses int, want map[string]string) {
		t.Helper()
		p.same(what, p.splits(), want)
		if got := used(); got != addresses {
			t.Errorf("%s: %d addresses are used, want %d", what, got, addresses)
		}
	}
	p.put(vs)
	check("none", 2, map[string]string{})
	two := excluding(excluding(vs, 0, v1alpha1.ExcludedPort{Port: 80}), 2, v1alpha1.ExcludedPort{Port: 80},
		v1alpha1.ExcludedPort{Port: 53, Protocol: v1alpha1.ProtocolUDP})
	want := map[string]string{"10.30.0.1 tcp 80": "web-1", "fdff:2000::1 tcp 80": "web-1",
		"10.30.0.1 udp 53": "web-0 web-1", "fdff:2000::1 udp 53": "web-0 web-1"}
	p.put(two)
	check("two ports", 6, want)
	var services []ServiceReport
	p.get("/services?name=web", &services)
	p.same("slots", services[0].Addresses[0].Ports, map[string]uint32{"tcp 80": 1, "udp 53": 2})
	before := p.dump()
	p.put(two)
	p.same("the same again", p.dump(), before)
	p.restart("")
	p.same("adopted", p.dump(), before)
	p.all(two)
	p.same("after a restart", p.dump(), before)
	p.put(excluding(two, 2, v1alpha1.ExcludedPort{Port: 80}))
	check("one port", 4, map[string]string{"10.30.0.1 tcp 80": "web-1", "fdff:2000::1 tcp 80": "web-1"})
	p.restart("")
	p.all(vs)
	check("gone after a restart", 2, map[string]string{})
	for k := range p.dump() {
		if strings.Contains(k, fmt.Sprint(" ", notOfInstance, "}")) {
			t.Errorf("%s is left", k)
		}
	}
	p.put(two)
	p.update(sdk.VirtualServiceUpdate{Remove: []string{"web"}})
	check("the virtual service is removed", 0, map[string]string{})
	p.now = p.now.Add(2 * restFor)
	p.w.slots.wake(p.now)
	if p.w.slots.used != 0 {
		t.Errorf("%d slots are not free again", p.w.slots.used)
	}
	p.put(two)
	p.restart("")
	if err := remove(p.live.Maps[mapVIPs], mapVIPs, addressOf(netip.MustParseAddr("10.30.0.1"))); err != nil {
		t.Fatal(err)
	}
	p.restart("")
	p.same("without their address", slices.Sorted(maps.Keys(p.splits())),
		[]string{"fdff:2000::1 tcp 80", "fdff:2000::1 udp 53"})
}

// A port without room for its run is refused, since the run of the address contains instances that do not serve it.
func TestExcludedPortsWithoutRoom(t *testing.T) {
	p := newTestControl(t, `{"tables": {"addresses": 2}}`)
	vs := webService(2, v1alpha1.PolicyRoundRobin)
	vs.Spec.Ports = []v1alpha1.VirtualPort{{Port: 80}, {Port: 81}}
	ports := func() (out []int) {
		if err := each(p.live.Maps[mapPorts], mapPorts, func(keys []portKey, _ []port) {
			for _, k := range keys {
				out = append(out, int(k.Port.number()))
			}
		}); err != nil {
			t.Fatal(err)
		}
		slices.Sort(out)
		return out
	}
	p.put(vs)
	p.same("with room", ports(), []int{80, 80, 81, 81})
	p.put(excluding(vs, 1, v1alpha1.ExcludedPort{Port: 81}))
	p.same("without", ports(), []int{80, 80})
	err := p.w.services["web"].trouble
	if err == nil || !strings.Contains(err.Error(), "raise tables.addresses, which is 2") {
		t.Errorf("trouble: %v", err)
	}
	p.put(vs)
	p.same("without need", ports(), []int{80, 80, 81, 81})
	if err := p.w.services["web"].trouble; err != nil {
		t.Error(err)
	}
}

// UDP sessions to a port that their instance no longer serves end with the next sweep, since a client may keep its
// source port. TCP connections continue, and so do sessions of draining instances.
func TestSessionsOfExcludedPorts(t *testing.T) {
	for drains, want := range map[bool]int{false: 2, true: 4} {
		p := newTestControl(t, "")
		for _, i := range []sdk.Attachment{{Service: "client", Ifindex: 7}, {Service: "server", Ifindex: 8}} {
			p.changed(i, true)
		}
		vs := webService(2, v1alpha1.PolicyLeastConnections)
		vs.Spec.Ports = []v1alpha1.VirtualPort{{Port: 80, TargetPort: 8080}, {Port: 80, TargetPort: 8080,
			Protocol: v1alpha1.ProtocolUDP}}
		p.put(excluding(vs, 0, v1alpha1.ExcludedPort{Port: 80, Draining: drains},
			v1alpha1.ExcludedPort{Port: 80, Protocol: v1alpha1.ProtocolUDP, Draining: drains}))
		index, _ := p.entry("web-0")
		now := p.longAfterBoot()
		for _, proto := range []uint8{protoTCP, protoUDP} {
			k, s := pairOf("10.18.0.9", "10.30.0.1", "10.18.0.1", proto, 1000, index, false)
			for i := range k {
				s[i].Seen, s[i].State = now, stateAnswered
				p.session(k[i], s[i])
			}
		}
		p.sweep()
		left := 0
		if err := each(p.live.Maps[mapSessions], mapSessions, func(keys []flow, _ []session) {
			for _, k := range keys {
				left++
				if k.Proto == protoUDP && !drains {
					t.Errorf("left: %+v", k)
				}
			}
		}); err != nil {
			t.Fatal(err)
		}
		if left != want {
			t.Errorf("drains %t: %d entries are left, want %d", drains, left, want)
		}
	}
}
