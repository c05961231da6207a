// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/sdk"
)

// An instance with its own target port receives connections there, and its answers come from the port of the virtual
// service. Other ports and protocols, and other instances, use the target port of the virtual service.
func TestTargetPortOfInstance(t *testing.T) {
	families(t, func(t *testing.T, w *world) {
		vip := addr(w.nearVIP).Next().Next().String()
		id := w.addVIP(vip, policyTurns, vipPorts|vipTargets, w.nearI, w.farI)
		w.addPort(id, protoTCP, 80, 8080)
		w.addPort(id, protoUDP, 80, 8080)
		w.put(mapPorts, portKey{VIP: w.farI, Port: portOf(80), Proto: protoTCP, Of: portOfInstance}, portOf(9090))
		targets := map[string][]uint16{}
		for i := range uint16(4) {
			w.out(tcp(w.client, 40000+i, vip, 80, tcpSYN).bytes())
		}
		for i := range uint16(4) {
			w.out(udp(w.client, 40000+i, vip, 80).bytes())
		}
		for key, s := range w.table() {
			if s.Flags&sessionReverse == 0 {
				what := fmt.Sprint(key.Proto, " to ", s.Addr.addr())
				targets[what] = append(targets[what], s.DPort.number())
			}
		}
		for what, want := range map[string]uint16{fmt.Sprint("6 to ", w.near): 8080, fmt.Sprint("6 to ", w.far): 9090,
			fmt.Sprint("17 to ", w.near): 8080, fmt.Sprint("17 to ", w.far): 8080} {
			if got := targets[what]; !slices.Equal(got, []uint16{want, want}) {
				t.Errorf("%s: target ports %v, want twice %d", what, got, want)
			}
		}
		answered := false
		for key, s := range w.table() {
			if key.Proto != protoTCP || s.Flags&sessionReverse != 0 || s.Addr.addr() != addr(w.far) {
				continue
			}
			answered = true
			want := tcp(vip, 80, w.client, key.SPort.number(), tcpSYN|tcpACK)
			w.want(w.in(tcp(w.far, 9090, w.client, key.SPort.number(), tcpSYN|tcpACK).bytes()), tcNext, want.bytes())
		}
		if !answered {
			t.Error("no session leads to the instance with a target port of its own")
		}
	})
}

// targetPorts returns the entries of instances in the map, and whether the virtual address has the flag for them.
func (p *testControl) targetPorts() (map[string]int, bool) {
	p.t.Helper()
	out := map[string]int{}
	if err := each(p.live.Maps[mapPorts], mapPorts, func(keys []portKey, values []port) {
		for i, k := range keys {
			if k.Of == portOfInstance {
				out[fmt.Sprintf("%s %d/%d", p.nameOf(k.VIP), k.Proto, k.Port.number())] = int(values[i].number())
			}
		}
	}); err != nil {
		p.t.Fatal(err)
	}
	var v vip
	if err := p.live.Maps[mapVIPs].Lookup(addressOf(addr("10.30.0.1")), &v); err != nil {
		p.t.Fatal(err)
	}
	return out, v.Flags&vipTargets != 0
}

// The maps have the target ports of instances while there are some, also after a restart of the control plane, until
// the index of a removed instance is free.
func TestTargetPortsInMaps(t *testing.T) {
	p := newTestControl(t, "")
	vs := webService(2, v1alpha1.PolicyRoundRobin)
	vs.Spec.Ports = []v1alpha1.VirtualPort{{Port: 80, TargetPort: 8080}, {Port: 53, Protocol: v1alpha1.ProtocolUDP}}
	check := func(what string, flag bool, want map[string]int) {
		t.Helper()
		got, is := p.targetPorts()
		p.same(what, got, want)
		if is != flag {
			t.Errorf("%s: the virtual address says %t", what, is)
		}
	}
	set := func(all ...v1alpha1.VirtualPort) sdk.VirtualService {
		vs.Spec.Instances = slices.Clone(vs.Spec.Instances) // the control plane keeps the previous one
		vs.Spec.Instances[1].TargetPorts = all
		return vs
	}
	p.put(vs)
	check("none", false, map[string]int{})
	p.put(set(v1alpha1.VirtualPort{Port: 80, TargetPort: 9090}, v1alpha1.VirtualPort{Port: 53, TargetPort: 5353,
		Protocol: v1alpha1.ProtocolUDP}))
	check("two", true, map[string]int{"web-1 6/80": 9090, "web-1 17/53": 5353})
	p.put(set(v1alpha1.VirtualPort{Port: 80, TargetPort: 9091}))
	check("one is changed, one is gone", true, map[string]int{"web-1 6/80": 9091})
	p.restart("")
	p.all(set(v1alpha1.VirtualPort{Port: 80, TargetPort: 9091}))
	check("after a restart", true, map[string]int{"web-1 6/80": 9091})
	p.restart("")
	p.all(set())
	check("gone after a restart", false, map[string]int{})

	p.put(set(v1alpha1.VirtualPort{Port: 80, TargetPort: 9090}))
	vs.Spec.Instances = vs.Spec.Instances[:1]
	p.put(vs)
	check("the instance is removed", false, map[string]int{"web-1 6/80": 9090})
	p.now = p.now.Add(2 * restFor)
	if err := p.w.free(p.now); err != nil {
		t.Fatal(err)
	}
	check("its index is free", false, map[string]int{})
}

// An instance without room for its target ports gets no connections, which would reach another port.
func TestTargetPortsWithoutRoom(t *testing.T) {
	p := newTestControl(t, `{"tables": {"ports": 1}}`)
	vs := webService(2, v1alpha1.PolicyRoundRobin)
	vs.Spec.Addresses = vs.Spec.Addresses[:1]
	vs.Spec.Ports = []v1alpha1.VirtualPort{{Port: 80, TargetPort: 8080}}
	p.put(vs)
	vs.Spec.Instances = slices.Clone(vs.Spec.Instances)
	vs.Spec.Instances[1].TargetPorts = []v1alpha1.VirtualPort{{Port: 80, TargetPort: 9090}}
	p.put(vs)
	p.same("served", p.served("10.30.0.1"), []string{"web-0"})
	if err := p.w.services["web"].trouble; err == nil || !strings.Contains(err.Error(), "raise tables.ports, which is 1") {
		t.Errorf("trouble: %v", err)
	}
	vs.Spec.Instances = slices.Clone(vs.Spec.Instances)
	vs.Spec.Instances[1].TargetPorts = nil
	p.put(vs)
	p.same("served without it", p.served("10.30.0.1"), []string{"web-0", "web-1"})
}

// An instance that keeps its target port while that of the virtual service changes never receives connections on the
// new one, even if the control plane exits at any write: the virtual address gets the flag for target ports before its
// ports change.
func TestTargetPortsBeforePorts(t *testing.T) {
	p := newTestControl(t, "")
	vs := webService(2, v1alpha1.PolicyRoundRobin)
	vs.Spec.Ports = []v1alpha1.VirtualPort{{Port: 80, TargetPort: 8080}}
	p.put(vs)
	vs.Spec.Ports = []v1alpha1.VirtualPort{{Port: 80, TargetPort: 9090}}
	vs.Spec.Instances = slices.Clone(vs.Spec.Instances)
	vs.Spec.Instances[0].TargetPorts = []v1alpha1.VirtualPort{{Port: 80, TargetPort: 8080}}
	u := sdk.VirtualServiceUpdate{Put: []sdk.VirtualService{vs}}
	state := func() string {
		v := p.w.addresses[addr("10.30.0.1")]
		var to port
		if err := p.live.Maps[mapPorts].Lookup(portKey{VIP: v.value.ID, Port: portOf(80), Proto: protoTCP}, &to); err != nil {
			t.Fatal(err)
		}
		own, respected := p.targetPorts()
		return fmt.Sprint(to.number(), own, respected)
	}

	vips := p.w.maps.vips
	p.w.maps.vips = p.w.maps.slots // refuses keys of this size
	if _, err := p.w.update(&u, p.now); err == nil {
		t.Error("a write that fails is no error")
	}
	p.same("no write of the address", state(), "8080 map[web-0 6/80:8080] false")
	p.w.maps.vips = vips
	p.put(vs)
	p.same("complete", state(), "9090 map[web-0 6/80:8080] true")
}

// A client with affinity is redirected to the target port of its instance, although it is another one's turn.
func TestTargetPortWithAffinity(t *testing.T) {
	eachClient(t, func(t *testing.T, client string, proto int) {
		s := newSticky(t, 3, 80)
		for i := range s.vs.Spec.Ports {
			s.vs.Spec.Ports[i].TargetPort = 8080
		}
		protocol := v1alpha1.ProtocolTCP
		if proto == protoUDP {
			protocol = v1alpha1.ProtocolUDP
		}
		s.vs.Spec.Instances = slices.Clone(s.vs.Spec.Instances)
		s.vs.Spec.Instances[1].TargetPorts = []v1alpha1.VirtualPort{{Port: 80, TargetPort: 9090, Protocol: protocol}}
		s.put(s.vs)
		other := addr(client).Next().String()
		s.stays("the usual target port", client, proto, 80, "web-0")
		s.stays("a target port of its own", other, proto, 80, "web-1")
		s.stays("the usual target port again", client, proto, 80, "web-0")
		want := map[string]uint16{client: 8080, other: 9090}
		met := map[string]int{}
		if err := each(s.data.maps[mapPending], mapPending, func(keys []flow, values []session) {
			for i, k := range keys {
				from := k.Src.addr().String()
				if values[i].Flags&sessionReverse != 0 || want[from] == 0 {
					continue
				}
				met[from]++
				if got := values[i].DPort.number(); got != want[from] {
					t.Errorf("a session of %s leads to port %d, want %d", from, got, want[from])
				}
			}
		}); err != nil {
			t.Fatal(err)
		}
		s.same("sessions", met, map[string]int{client: 10, other: 5})
	})
}
