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

// An instance with a target port of its own is reached there, and its answers come from the port of the virtual
// service. Other ports and protocols, and other instances, have the target port of the virtual service.
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

// targetPorts are the entries of instances in the map, and whether the virtual address says that there are some.
func (p *plant) targetPorts() (map[string]int, bool) {
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
	p := newPlant(t, "")
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
		vs.Spec.Instances = slices.Clone(vs.Spec.Instances) // the control plane keeps the one before
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

// An instance whose target ports find no room gets no connections: they would reach another port.
func TestTargetPortsWithoutRoom(t *testing.T) {
	p := newPlant(t, `{"tables": {"ports": 1}}`)
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
