// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/kerbabi"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/sdk"
)

// dropSpoofed is the third drop reason of the module.
const dropSpoofed = kerbabi.DropReason(34)

// named is a world with source: instance. The client is an instance with the address own; the far instance has farOwn.
type named struct {
	*world
	own, farOwn string
	lab         *netlab.Lab
	nearIndex   uint32 // of the interface of the instance on this node
}

func namedFamilies(t *testing.T, test func(t *testing.T, w *named)) {
	t.Helper()
	for _, v4 := range []bool{true, false} {
		t.Run(map[bool]string{true: "ip4", false: "ip6"}[v4], func(t *testing.T) { test(t, newNamed(t, v4)) })
	}
}

func newNamed(t testing.TB, v4 bool) *named {
	t.Helper()
	return newNamedOn(t, loadProxy(t, map[string]any{"source_instance": true}), v4)
}

func newNamedOn(t testing.TB, k *kernel, v4 bool) *named {
	t.Helper()
	w := &named{world: newWorldOn(k, v4), own: "10.30.0.7", farOwn: "10.30.0.8"}
	if err := netlab.Sweep("kpxn"); err != nil {
		t.Fatal(err)
	}
	lab, err := netlab.Open("kpxn", netlab.Options{OwnNode: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { lab.Close() })
	host, err := lab.Host("near", netlab.HostOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w.lab, w.nearIndex = lab, uint32(host.OuterIndex())
	w.put(mapLocals, uint32(2), local{Ifindex: w.nearIndex, MAC: w.nearMAC, Flags: localPeer}) // of nearI
	w.put(mapInterfaces, w.nearIndex, uint32(2))
	if !v4 {
		w.own, w.farOwn = "fdff:2000::7", "fdff:2000::8"
	}
	w.addVIP(w.own, policyTurns, vipAnswers, w.addInstance(1, w.client)) // the local of testIfindex
	w.addVIP(w.farOwn, policyTurns, vipAnswers, w.farI)
	w.name(w.client, testIfindex, w.own)
	w.put(mapNames, nameKey{addressOf(addr(w.own)), testIfindex}, name{addressOf(addr(w.client)), nameVirtual})
	w.name(w.far, 0, w.farOwn)
	w.put(mapNames, keyOf(w.farI, v4), name{Other: addressOf(addr(w.farOwn))})
	return w
}

// atNear runs a frame from the interface of the instance on this node.
func (w *named) atNear(frame []byte) (got result) {
	w.t.Helper()
	w.on = w.nearIndex
	defer func() { w.on = 0 }()
	if err := w.lab.Node().Do(func() error { got = w.kernel.out(frame); return nil }); err != nil {
		w.t.Fatal(err)
	}
	return got
}

func (w *named) name(a string, ifindex uint32, other string) {
	w.t.Helper()
	w.put(mapNames, nameKey{addressOf(addr(a)), ifindex}, name{Other: addressOf(addr(other))})
}

// plain returns packets with ports between two ends.
func plain(from string, sport uint16, to string, dport uint16, flags uint8) (out []packet) {
	for _, proto := range []int{protoTCP, protoUDP, protoSCTP} {
		p := tcp(from, sport, to, dport, flags)
		p.proto, p.payload = proto, []byte("payload")
		out = append(out, p)
	}
	return out
}

// several is the number of repetitions of each packet: with a new, known, established session, and with the CPU's copy.
const several = 5

// An instance of this node sees the virtual address of the client, and answers to it.
func TestNamedOnOneNode(t *testing.T) {
	namedFamilies(t, func(t *testing.T, w *named) {
		for _, flags := range []uint8{tcpSYN, tcpACK} {
			there, arrives := plain(w.client, 4000, w.nearVIP, 80, flags), plain(w.own, 4000, w.near, 80, flags)
			back, seen := plain(w.near, 80, w.own, 4000, flags|tcpACK), plain(w.nearVIP, 80, w.client, 4000, flags|tcpACK)
			for i := range there {
				for range several {
					w.want(w.out(there[i].bytes()), tcRedirect, arrives[i].to(w.nearMAC).bytes())
					w.want(w.atNear(back[i].bytes()), tcRedirect, seen[i].to(w.testMAC).bytes())
				}
			}
		}
		if n := len(w.table()); n != 6 {
			t.Errorf("%d entries, want 6", n)
		}
	})
}

// Between nodes, both ends have their virtual addresses; received packets get the receiver's own address.
func TestNamedBetweenNodes(t *testing.T) {
	namedFamilies(t, func(t *testing.T, w *named) {
		for _, flags := range []uint8{tcpSYN, tcpACK} {
			there, leaves := plain(w.client, 4000, w.farVIP, 80, flags), plain(w.own, 4000, w.far, 80, flags)
			back, seen := plain(w.farOwn, 80, w.client, 4000, flags|tcpACK), plain(w.farVIP, 80, w.client, 4000, flags|tcpACK)
			for i := range there {
				for range several {
					w.want(w.out(there[i].bytes()), tcNext, leaves[i].bytes())
					w.want(w.in(back[i].bytes()), tcNext, seen[i].bytes())
				}
			}
		}
		if n := len(w.table()); n != 6 {
			t.Errorf("%d entries, want 6", n)
		}
		// An evicted entry is restored from the other one.
		there, back := udp(w.client, 4000, w.farVIP, 80), udp(w.farOwn, 80, w.client, 4000)
		for key, e := range w.table() {
			if key.Proto == protoUDP && e.Flags&sessionReverse == 0 {
				w.forget(key)
				w.age()
			}
		}
		w.in(back.bytes())
		w.want(w.out(there.bytes()), tcNext, udp(w.own, 4000, w.far, 80).bytes())
		if n := w.count(countOpened); n != 3 {
			t.Errorf("%d sessions, want 3", n)
		}
	})
}

// age sets the entries to another tick, without copies.
func (w *named) age() {
	w.t.Helper()
	for _, table := range []string{mapPending, mapSessions} {
		for key, e := range w.table() {
			var there session
			if w.maps[table].Lookup(key, &there) == nil {
				e.Tick--
				w.put(table, key, e)
			}
		}
	}
	hot := w.maps[mapHot]
	for i := range hot.MaxEntries() {
		w.put(mapHot, i, make([]byte, hot.ValueSize()))
	}
}

// A server's answer to an instance on another node is not a new connection, for any ports of its service.
func TestNamedAnswers(t *testing.T) {
	namedFamilies(t, func(t *testing.T, w *named) {
		peer := w.farOwn
		w.addPort(w.addVIP(peer, policyTurns, vipAnswers|vipPorts, w.farI), protoTCP, 80, 8080)
		request, reply := uint8(8), uint8(0)
		if !w.v4 {
			request, reply = 128, 129
		}
		for _, flags := range []uint8{tcpSYN | tcpACK, tcpRST | tcpACK, tcpACK} {
			port := 4000 + uint16(flags)
			comes := plain(peer, port, w.client, 9000, tcpACK)
			answer, leaves := plain(w.client, 9000, peer, port, flags), plain(w.own, 9000, w.far, port, flags)
			for i := range answer {
				for range several {
					w.want(w.out(answer[i].bytes()), tcNext, leaves[i].bytes())
					w.want(w.in(comes[i].bytes()), tcNext, comes[i].bytes())
				}
			}
		}
		for range several {
			ping := icmp(peer, w.client, request, 77)
			w.want(w.in(ping.bytes()), tcNext, ping.bytes())
			w.want(w.out(icmp(w.client, peer, reply, 77).bytes()), tcNext, icmp(w.own, w.far, reply, 77).bytes())
		}
		asked := udp(peer, 5000, w.client, 9001)
		w.want(w.in(asked.bytes()), tcNext, asked.bytes())
		closed := icmpError(w.client, peer, asked, 8)
		w.want(w.out(closed.bytes()), tcNext, icmpError(w.own, w.far, udp(w.far, 5000, w.own, 9001), 8).bytes())

		// a new connection is to a port of the service
		w.want(w.out(tcp(w.client, 9002, peer, 80, tcpSYN).bytes()), tcNext, tcp(w.own, 9002, w.far, 8080, tcpSYN).bytes())
		w.want(w.out(tcp(w.client, 9002, peer, 81, tcpSYN).bytes()), tcRedirect, nil)
		if n := w.count(countNoPort); n != 1 {
			t.Errorf("%d to ports that are not served, want 1", n)
		}
	})
}

// ICMP errors quote the packet as sent by their receiver.
func TestNamedErrors(t *testing.T) {
	namedFamilies(t, func(t *testing.T, w *named) {
		for _, about := range []func(string, uint16, string, uint16) packet{udp, func(src string, sport uint16, dst string,
			dport uint16) packet {
			return tcp(src, sport, dst, dport, tcpSYN)
		}} {
			namedErrors(w, about)
		}
	})
}

func namedErrors(w *named, about func(src string, sport uint16, dst string, dport uint16) packet) {
	w.t.Helper()
	router := map[bool]string{true: "192.0.2.1", false: "2001:db8::1"}[w.v4]
	far, near := about(w.client, 4000, w.farVIP, 53), about(w.client, 4000, w.nearVIP, 53)
	w.want(w.out(far.bytes()), tcNext, nil)
	w.want(w.out(near.bytes()), tcRedirect, nil)
	for _, quote := range []int{8, 18, 20} {
		// from the other node, which knows the two by the other's address
		wire := about(w.client, 4000, w.farOwn, 53)
		w.want(w.in(icmpError(w.farOwn, w.client, wire, quote).bytes()), tcNext,
			icmpError(w.farVIP, w.client, far, quote).bytes())
		w.want(w.in(icmpError(router, w.client, wire, quote).bytes()), tcNext,
			icmpError(router, w.client, far, quote).bytes())
		// from this one, about the packet as it leaves
		left := about(w.own, 4000, w.far, 53)
		w.want(w.in(icmpError(router, w.own, left, quote).bytes()), tcNext,
			icmpError(router, w.client, far, quote).bytes())
		// from the client, about answers
		w.want(w.out(icmpError(w.client, w.farVIP, about(w.farVIP, 53, w.client, 4000), quote).bytes()), tcNext,
			icmpError(w.own, w.far, about(w.far, 53, w.own, 4000), quote).bytes())
		w.want(w.out(icmpError(w.client, w.nearVIP, about(w.nearVIP, 53, w.client, 4000), quote).bytes()), tcRedirect,
			icmpError(w.own, w.near, about(w.near, 53, w.own, 4000), quote).to(w.nearMAC).bytes())
		// from the instance on this node
		w.want(w.atNear(icmpError(w.near, w.own, about(w.own, 4000, w.near, 53), quote).bytes()), tcRedirect,
			icmpError(w.nearVIP, w.client, near, quote).to(w.testMAC).bytes())
	}
}

// Fragments of both directions, on the node and between nodes.
func TestNamedFragments(t *testing.T) {
	namedFamilies(t, func(t *testing.T, w *named) {
		big := func(from string, sport uint16, to string, dport uint16, mac *[6]byte) (out [][]byte) {
			p := udp(from, sport, to, dport)
			p.payload, p.fragID = bytes.Repeat([]byte("0123456789abcdef"), 200), 77
			for _, f := range p.fragments(1480) {
				if mac != nil {
					f = f.to(*mac)
				}
				out = append(out, f.frame())
			}
			return out
		}
		check := func(send func([]byte) result, action int32, in, out [][]byte) {
			t.Helper()
			for i := range in {
				w.want(send(in[i]), action, out[i])
			}
		}
		check(w.out, tcNext, big(w.client, 4000, w.farVIP, 53, nil), big(w.own, 4000, w.far, 53, nil))
		check(w.in, tcNext, big(w.farOwn, 53, w.client, 4000, nil), big(w.farVIP, 53, w.client, 4000, nil))
		check(w.out, tcNext, big(w.client, 9000, w.farOwn, 4001, nil), big(w.own, 9000, w.far, 4001, nil))
		check(w.out, tcRedirect, big(w.client, 4000, w.nearVIP, 53, nil), big(w.own, 4000, w.near, 53, &w.nearMAC))
		check(w.atNear, tcRedirect, big(w.near, 53, w.own, 4000, nil), big(w.nearVIP, 53, w.client, 4000, &w.testMAC))
	})
}

// No service can use a foreign virtual address: packets with one are dropped, and the own address of another instance
// is not translated.
func TestNamesAreNotSpoofed(t *testing.T) {
	namedFamilies(t, func(t *testing.T, w *named) {
		drops := uint64(0)
		elsewhere := map[bool]string{true: "10.40.0.1", false: "fd40::1"}[w.v4]
		unused := map[bool]string{true: "10.30.99.9", false: "fdff:2000::999"}[w.v4] // in the ranges, unassigned
		w.want(w.out(udp(w.own, 4009, w.far, 80).bytes()), tcNext, udp(w.own, 4009, w.far, 80).bytes())
		w.want(w.atNear(udp(w.own, 4000, w.far, 80).bytes()), tcShot, nil)
		w.put(mapNames, nameKey{addressOf(addr(w.own)), testIfindex},
			name{addressOf(addr(w.client)), nameVirtual | nameRetired})
		drops++
		for _, source := range []string{w.own, w.farOwn, w.nearVIP, unused} {
			for _, to := range []string{w.nearVIP, w.farVIP, w.farOwn, w.far, elsewhere} {
				frames := [][]byte{icmpError(source, to, udp(to, 1, source, 2), 8).bytes(),
					icmpError(source, to, udp(to, 1, w.client, 2), 8).bytes()}
				for _, flags := range []uint8{tcpSYN, tcpACK, tcpSYN | tcpACK, tcpRST} {
					for _, p := range plain(source, 4000, to, 80, flags) {
						frames = append(frames, p.bytes())
						p.proto = 47
						frames = append(frames, p.bytes())
						f := p.fragments(8)
						frames = append(frames, f[0].frame(), f[len(f)-1].frame())
					}
				}
				for i, frame := range frames {
					if got := w.out(frame); got.action != tcShot {
						t.Errorf("%s to %s, frame %d: action %d", source, to, i, got.action)
					}
					drops++
				}
			}
		}
		if n := w.drops(dropSpoofed); n != drops {
			t.Errorf("%d of %d dropped as spoofed", n, drops)
		}
		if n := len(w.table()); n != 0 {
			t.Errorf("%d entries", n)
		}
		other := addr(w.client).Next().Next().Next().String()
		w.name(other, w.nearIndex, w.farOwn)
		for range several {
			w.want(w.out(udp(other, 4000, w.farVIP, 80).bytes()), tcNext, udp(other, 4000, w.far, 80).bytes())
		}
		for range several {
			w.want(w.atNear(udp(w.client, 4000, w.farVIP, 80).bytes()), tcNext, udp(w.client, 4000, w.far, 80).bytes())
		}
	})
}

// A retired name is for its existing sessions. Without it, TCP is reset, and UDP continues with the client's own
// address.
func TestNameRemoved(t *testing.T) {
	namedFamilies(t, func(t *testing.T, w *named) {
		key := nameKey{addressOf(addr(w.client)), testIfindex}
		syn, data := tcp(w.client, 4000, w.nearVIP, 80, tcpSYN), tcp(w.client, 4000, w.nearVIP, 80, tcpACK)
		w.out(syn.bytes())
		w.atNear(tcp(w.near, 80, w.own, 4000, tcpSYN|tcpACK).bytes())
		w.out(udp(w.client, 4000, w.nearVIP, 80).bytes())
		w.put(mapNames, key, name{Other: addressOf(addr(w.own)), Flags: nameRetired})
		for range several {
			w.want(w.out(data.bytes()), tcRedirect, tcp(w.own, 4000, w.near, 80, tcpACK).to(w.nearMAC).bytes())
			w.want(w.out(udp(w.client, 4000, w.nearVIP, 80).bytes()), tcRedirect,
				udp(w.own, 4000, w.near, 80).to(w.nearMAC).bytes())
			w.want(w.out(udp(w.client, 4001, w.nearVIP, 80).bytes()), tcRedirect,
				udp(w.client, 4001, w.near, 80).to(w.nearMAC).bytes())
		}
		if err := w.maps[mapNames].Delete(key); err != nil {
			t.Fatal(err)
		}
		w.age()
		w.want(w.out(udp(w.client, 4000, w.nearVIP, 80).bytes()), tcRedirect,
			udp(w.client, 4000, w.near, 80).to(w.nearMAC).bytes())
		w.want(w.out(data.bytes()), tcRedirect, nil)
		if n := w.count(countReset); n != 1 {
			t.Errorf("%d connections reset, want 1", n)
		}
	})
}

// A service that connects to itself sees its virtual address.
func TestNamedHairpin(t *testing.T) {
	namedFamilies(t, func(t *testing.T, w *named) {
		for range several {
			w.want(w.out(udp(w.client, 4000, w.own, 80).bytes()), tcRedirect,
				udp(w.own, 4000, w.client, 80).to(w.testMAC).bytes())
			w.want(w.out(udp(w.client, 80, w.own, 4000).bytes()), tcRedirect,
				udp(w.own, 80, w.client, 4000).to(w.testMAC).bytes())
		}
	})
}

// names returns the names in the map, and the number of instances with a name by index.
func (p *testControl) names() (out map[string]string, byIndex int) {
	p.t.Helper()
	out = map[string]string{}
	err := each(p.live.Maps[mapNames], mapNames, func(keys []nameKey, values []name) {
		for i, k := range keys {
			if k.Ifindex&nameByInstance != 0 {
				byIndex++
				continue
			}
			text := values[i].Other.addr().String()
			if values[i].Flags&nameRetired != 0 {
				text += " retired"
			}
			if values[i].Flags&nameVirtual != 0 {
				text += " virtual"
			}
			out[fmt.Sprintf("%s at %d", k.Addr.addr(), k.Ifindex)] = text
		}
	})
	if err != nil {
		p.t.Fatal(err)
	}
	return out, byIndex
}

const instanceConfig = `{"source": "instance"}`

// The name of an instance is the virtual address that belongs to it alone, in the order of services' names, on its own
// interface only. A previous name is for existing sessions, unless another instance gets it.
func TestNamesInMaps(t *testing.T) {
	p := newTestControl(t, instanceConfig)
	p.locals = []sdk.Attachment{localInstance("a", 7, "10.18.0.1/24", "fd00::1/64")}
	p.changed(p.locals[0], true)
	service := func(name string, at int, virtual ...string) sdk.VirtualService {
		vs := sdk.VirtualService{Name: name}
		vs.Spec.Instances = []v1alpha1.VirtualInstance{webInstance(0, at)}
		vs.Spec.Addresses = []v1alpha1.VirtualAddress{{Address: fmt.Sprintf("10.30.7.%d", at)}} // of all instances
		for _, v := range virtual {
			vs.Spec.Addresses = append(vs.Spec.Addresses, v1alpha1.VirtualAddress{Address: v, Instance: "web-0"})
		}
		return vs
	}
	near, far := service("web", 1, "10.30.0.1", "10.30.0.9", "fdff:2000::1"), service("webfar", 2, "10.30.0.2")
	check := func(what, retired string, there bool, wantByIndex int) {
		t.Helper()
		want := map[string]string{"10.18.0.2 at 0": "10.30.0.2"}
		if retired == "all" {
			want["10.18.0.2 at 0"], retired = "10.30.0.2 retired", " retired"
		}
		if there {
			want["10.18.0.1 at 7"], want["fd00::1 at 7"] = "10.30.0.1"+retired, "fdff:2000::1"+retired
			want["10.30.0.1 at 7"] = "10.18.0.1" + retired + " virtual"
			want["fdff:2000::1 at 7"] = "fd00::1" + retired + " virtual"
		}
		got, byIndex := p.names()
		p.same(what, got, want)
		if byIndex != wantByIndex {
			t.Errorf("%s: %d names by index, want %d", what, byIndex, wantByIndex)
		}
	}
	p.all(near, far, service("zebra", 1, "10.30.0.8"), service("nameless", 3))
	check("at first", "", true, 3)
	p.restart(instanceConfig)
	check("after a restart", "", true, 3)
	p.update(sdk.VirtualServiceUpdate{Reset: true, Put: []sdk.VirtualService{far}})
	check("until all is received", "", true, 3)
	p.update(sdk.VirtualServiceUpdate{Complete: true, Put: []sdk.VirtualService{near}})
	check("when all is received", "", true, 3)
	p.restart(`{"source": "client"}`)
	p.all(near, far)
	check("source: client", "all", true, 3)
	p.restart(instanceConfig)
	p.all(near, far)
	check("source: instance again", "", true, 3)
	p.all(far)
	check("the service is gone", " retired", true, 3)
	p.all(far, near)
	check("it is back", "", true, 3)
	p.changed(p.locals[0], false)
	if got, _ := p.names(); got["10.18.0.1 at 7"] != "" || got["10.30.0.1 at 7"] != "" {
		t.Errorf("the interface is gone: %v", got)
	}
	p.changed(p.locals[0], true)
	check("the interface is back", "", true, 3)
	near.Spec.Instances[0].Addresses = []string{"10.18.0.9", "fd00::9"}
	p.all(far, near)
	if got, _ := p.names(); got["10.18.0.1 at 7"] != "" || got["10.30.0.1 at 7"] != "" ||
		got["10.18.0.9 at 0"] != "10.30.0.1" {
		t.Errorf("the instance is on another node: %v", got)
	}
}

// standsAlone returns a service of one instance with its own address, if virtual is not empty.
func standsAlone(name string, at int, virtual string) sdk.VirtualService {
	vs := sdk.VirtualService{Name: name}
	vs.Spec.Instances = []v1alpha1.VirtualInstance{webInstance(0, at)}
	vs.Spec.Addresses = []v1alpha1.VirtualAddress{{Address: fmt.Sprintf("10.30.7.%d", at)}}
	if virtual != "" {
		vs.Spec.Addresses = append(vs.Spec.Addresses, v1alpha1.VirtualAddress{Address: virtual, Instance: "web-0"})
	}
	return vs
}

// An instance without its own address does not get that of the index's previous owner, before or after a restart.
func TestNameGoesWithIndex(t *testing.T) {
	for _, restart := range []bool{false, true} {
		p := newTestControl(t, instanceConfig)
		p.all(standsAlone("a", 1, "10.30.0.2"))
		index := p.w.services["a"].targets[0].index
		p.all()
		if _, byIndex := p.names(); byIndex != 1 {
			t.Errorf("%d names by index while sessions may have it, want 1", byIndex)
		}
		if restart {
			p.restart(instanceConfig)
			p.now = time.Now()
		}
		p.now = p.now.Add(2 * restFor)
		p.sweep()
		p.now = p.now.Add(2 * restFor)
		b := standsAlone("b", 2, "")
		p.put(b)
		if got := p.w.services["b"].targets[0].index; got != index {
			t.Fatalf("index %d, want %d of the instance before", got, index)
		}
		if _, byIndex := p.names(); byIndex != 0 {
			t.Errorf("%d names by index, want none, after a restart: %t", byIndex, restart)
		}
	}
}

// An instance without an address in one family has the name in it that it would have with one.
func TestNameByIndexWithoutAddress(t *testing.T) {
	p := newTestControl(t, instanceConfig)
	vs := standsAlone("a", 1, "fdff:2000::2")
	p.all(vs)
	named := func(want string) {
		t.Helper()
		var n name
		key := keyOf(p.w.services["a"].targets[0].index, false)
		if err := p.live.Maps.Lookup(mapNames, key, &n); err != nil || n.Other.addr().String() != want {
			t.Errorf("by index: %s %v, want %s", n.Other.addr(), err, want)
		}
	}
	named("fdff:2000::2")
	vs.Spec.Instances[0].Addresses = vs.Spec.Instances[0].Addresses[:1]
	p.all(vs)
	named("fdff:2000::2")
	vs.Spec.Addresses[1].Address = "fdff:2000::3"
	p.all(vs)
	named("fdff:2000::3")
	if got, byIndex := p.names(); len(got) != 0 || byIndex != 1 {
		t.Errorf("names %v, %d by index", got, byIndex)
	}
}

// An instance that had no room gets its name together with its index.
func TestNameOfTriedAgain(t *testing.T) {
	const config = `{"source": "instance", "tables": {"instances": 1}}`
	p := newTestControl(t, config)
	p.all(standsAlone("a", 1, ""), standsAlone("b", 2, "10.30.0.2"))
	p.update(sdk.VirtualServiceUpdate{Remove: []string{"a"}})
	p.now = p.now.Add(2 * restFor)
	p.sweep()
	p.now = p.now.Add(2 * restFor)
	if err := p.w.again(p.now); err != nil {
		t.Fatal(err)
	}
	if got, byIndex := p.names(); got["10.18.0.2 at 0"] != "10.30.0.2" || byIndex != 1 {
		t.Errorf("names %v, %d by index", got, byIndex)
	}
}

// A full table of names is reported and fails no update. Its entries are tracked: they are removed, and others take
// their place.
func TestNamesFull(t *testing.T) {
	maps := newMaps(t, compileConfig(t, instanceConfig))
	info, err := maps[mapNames].Info()
	if err != nil {
		t.Fatal(err)
	}
	small, err := ebpf.NewMap(&ebpf.MapSpec{Type: info.Type, KeySize: info.KeySize, ValueSize: info.ValueSize,
		Flags: info.Flags, MaxEntries: 4})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { small.Close() })
	maps[mapNames] = small
	p := newTestControlOn(t, instanceConfig, maps)
	a, b := standsAlone("a", 1, "10.30.0.1"), standsAlone("b", 2, "10.30.0.2")
	p.all(a, b, standsAlone("c", 3, "10.30.0.3"))
	if err := p.w.Health(); err == nil || !strings.Contains(err.Error(), "2 of at most 4") {
		t.Errorf("health: %v", err)
	}
	if got := p.served("10.30.0.3"); len(got) != 1 {
		t.Errorf("10.30.0.3 is served by %v", got)
	}
	p.all(a, b)
	p.now = p.now.Add(2 * restFor)
	p.sweep()
	if got, byIndex := p.names(); len(got) != 2 || byIndex != 2 || p.w.Health() != nil {
		t.Errorf("names %v, %d by index, health %v", got, byIndex, p.w.Health())
	}
}
