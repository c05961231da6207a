// SPDX-License-Identifier: Apache-2.0

package costs

import (
	_ "embed"
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/sdk"
	"github.com/kerb-edge/kerb/sdk/sdktest"
)

//go:embed executed.txt
var executed string

// instances are the service and the node's interface that tunnels use.
var instances = []sdk.Attachment{service, {Interface: "eth0", Ifindex: 77, MTU: 1500,
	Addresses: []string{"192.0.2.1/24", "2001:db8::1/64"}, IPsec: &sdk.IPsec{}}}

// virtualServices are those of proxies. They have one instance, because the choice among several may be random.
var virtualServices = sdk.VirtualServiceUpdate{Reset: true, Complete: true, Put: []sdk.VirtualService{{Name: "db",
	Spec: v1alpha1.VirtualServiceSpec{
		Addresses: []v1alpha1.VirtualAddress{{Address: "10.30.0.1", Policy: v1alpha1.PolicyRoundRobin},
			{Address: "fdff:2000::1", Policy: v1alpha1.PolicyRoundRobin}},
		Instances: []v1alpha1.VirtualInstance{{Name: "db-0", Addresses: []string{"10.18.0.1", "fd00::1"}}}}}}}

// mutations is the number of random packets per chain and hook.
const mutations = 100

// packet is a packet to or from the service. Packets without a name only prepare the next.
type packet struct {
	name  string
	dir   chain.Direction
	frame []byte
}

// families have the addresses of packets' sources and destinations.
var families = []struct {
	name                        string
	own, peer, virtual, backend netip.Addr
}{
	{"4", netip.MustParseAddr("10.1.0.5"), netip.MustParseAddr("10.1.0.9"), netip.MustParseAddr("10.30.0.1"),
		netip.MustParseAddr("10.18.0.1")},
	{"6", netip.MustParseAddr("fd01::5"), netip.MustParseAddr("fd01::9"), netip.MustParseAddr("fdff:2000::1"),
		netip.MustParseAddr("fd00::1")},
}

const payload = "a request or an answer of a few bytes"

// script creates packets.
type script struct {
	t   testing.TB
	all []packet
}

func (s *script) add(name string, dir chain.Direction, f sdktest.Fields) []byte {
	s.t.Helper()
	frame := sdktest.Frame(s.t, f)
	s.all = append(s.all, packet{name, dir, frame})
	return frame
}

func (s *script) raw(name string, dir chain.Direction, frame []byte) {
	s.all = append(s.all, packet{name, dir, frame})
}

// side is one end of a connection.
type side struct {
	addr netip.Addr
	port uint16
}

func tcp(from, to side, flags, data string) sdktest.Fields {
	return sdktest.Fields{Src: from.addr, Dst: to.addr, Payload: data,
		TCP: &sdktest.TCP{Ports: sdktest.Ports{Src: from.port, Dst: to.port}, Flags: flags, Seq: 1000, Ack: 1000}}
}

func udp(from, to side) sdktest.Fields {
	return sdktest.Fields{Src: from.addr, Dst: to.addr, Payload: payload,
		UDP: &sdktest.Ports{Src: from.port, Dst: to.port}}
}

// connection opens a connection and uses it. The client sends in direction there. Replies come from seen, the source
// address of the server's packets.
func (s *script) connection(name string, client, server, seen side, there, back chain.Direction) {
	s.t.Helper()
	s.add(name+"-new", there, tcp(client, server, "S", ""))
	answer := tcp(seen, client, "SA", "")
	answer.TCP.Seq, answer.TCP.Ack = 5000, 1001
	s.add(name+"-accepted", back, answer)
	for _, next := range []string{"", name + "-established"} {
		data := tcp(client, server, "PA", payload)
		data.TCP.Seq, data.TCP.Ack = 1001, 5001
		s.add(next, there, data)
		answer = tcp(seen, client, "PA", payload)
		answer.TCP.Seq, answer.TCP.Ack = 5001, 1001+uint32(len(payload))
		s.add(next, back, answer)
	}
}

func (s *script) datagrams(name string, client, server, seen side, there, back chain.Direction) {
	s.t.Helper()
	established := name + "-established"
	for _, names := range [][2]string{{name + "-new", name + "-answered"}, {}, {established, established}} {
		s.add(names[0], there, udp(client, server))
		s.add(names[1], back, udp(seen, client))
	}
}

// served returns the packets between a client and the service.
func served(t testing.TB) []packet {
	s := &script{t: t}
	four, six := families[0], families[1]
	client, server := side{four.peer, 40000}, side{four.own, 80}
	s.connection("tcp4", client, server, server, chain.Ingress, chain.Egress)
	client, server = side{six.peer, 40000}, side{six.own, 80}
	s.connection("tcp6", client, server, server, chain.Ingress, chain.Egress)
	client, server = side{four.peer, 50000}, side{four.own, 53}
	s.datagrams("udp4", client, server, server, chain.Ingress, chain.Egress)
	s.add("tcp4-denied", chain.Ingress, tcp(side{four.peer, 40001}, side{four.own, 22}, "S", ""))
	reply := sdktest.Frame(t, udp(side{four.own, 53}, side{four.peer, 50000}))
	s.add("icmp4-error", chain.Ingress, sdktest.Fields{Src: four.peer, Dst: four.own,
		ICMP: &sdktest.ICMP{Type: 3, Code: 3}, Payload: string(reply[14 : 14+28])})
	s.add("icmp4-echo", chain.Ingress, sdktest.Fields{Src: four.peer, Dst: four.own, ICMP: &sdktest.ICMP{Type: 8, ID: 7}})
	whole := sdktest.Frame(t, udp(side{four.peer, 50000}, side{four.own, 53}))
	s.raw("udp4-fragment-first", chain.Ingress, fragment(whole, 0x2000))
	s.raw("udp4-fragment-later", chain.Ingress, fragment(whole, 0x0003))
	tagged := tcp(side{four.peer, 40000}, side{four.own, 80}, "PA", payload)
	tagged.VLAN = 42
	s.add("tcp4-vlan", chain.Ingress, tagged)
	arp, err := hex.DecodeString("ffffffffffff02000000000508060001080006040001" +
		"0200000000050a010005" + "0000000000000a010009")
	if err != nil {
		t.Fatal(err)
	}
	s.raw("arp", chain.Egress, append(arp, make([]byte, 18)...))
	return s.all
}

// virtualClient returns packets of the service to a virtual service.
func virtualClient(t testing.TB) []packet {
	s := &script{t: t}
	for _, family := range families {
		client, server, seen := side{family.own, 41000}, side{family.virtual, 80}, side{family.backend, 80}
		s.connection("tcp"+family.name+"-virtual", client, server, seen, chain.Egress, chain.Ingress)
		client.port = 42000 // the proxy caches one session per CPU and hash of addresses and ports
		s.datagrams("udp"+family.name+"-virtual", client, server, seen, chain.Egress, chain.Ingress)
	}
	four := families[0]
	sent := sdktest.Frame(t, udp(side{four.own, 42000}, side{four.backend, 80}))
	s.add("icmp4-virtual-error", chain.Ingress, sdktest.Fields{Src: four.backend, Dst: four.own,
		ICMP: &sdktest.ICMP{Type: 3, Code: 3}, Payload: string(sent[14 : 14+28])})
	return s.all
}

// tunnelled returns packets to a service of another node.
func tunnelled(t testing.TB) []packet {
	s := &script{t: t}
	for _, family := range families {
		s.add("tcp"+family.name+"-tunnelled", chain.Egress,
			tcp(side{family.own, 41000}, side{family.backend, 80}, "PA", payload))
	}
	return s.all
}

// translated returns packets of the service to other hosts, and replies to its outside address. Mappings allocate ports
// in order, since the random number of counted packets is zero: the first three belong to packets that have replies. In
// the comparison with the kernel it chooses the ports, so that these replies find no mapping.
func translated(t testing.TB) []packet {
	s := &script{t: t}
	port := uint16(40003)
	for _, family := range families {
		client, server, outside := side{family.own, 41000}, side{family.backend, 80}, side{family.virtual, port}
		s.add("tcp"+family.name+"-outbound-new", chain.Egress, tcp(client, server, "S", ""))
		s.add("tcp"+family.name+"-outbound-accepted", chain.Ingress, tcp(server, outside, "SA", ""))
		s.add("tcp"+family.name+"-outbound-established", chain.Egress, tcp(client, server, "PA", payload))
		s.add("tcp"+family.name+"-outbound-established", chain.Ingress, tcp(server, outside, "PA", payload))
		client.port, server.port, outside.port = 42000, 53, port+1
		s.add("udp"+family.name+"-outbound-new", chain.Egress, udp(client, server))
		s.add("udp"+family.name+"-outbound-answered", chain.Ingress, udp(server, outside))
		s.add("udp"+family.name+"-outbound-established", chain.Egress, udp(client, server))
		port += 2
	}
	return s.all
}

// requests returns datagrams that modules answer, deliver or examine.
func requests(t testing.TB) []packet {
	s := &script{t: t}
	for _, family := range families {
		s.add("udp"+family.name+"-request", chain.Ingress, udp(side{family.peer, 50000}, side{family.own, 7000}))
	}
	return s.all
}

// fixtures are chains with packets. All also get the packets between a client and the service. The accelerator is
// missing, since it runs on sockets.
var fixtures = []struct {
	name    string
	hooks   []string
	modules []member
	packets func(testing.TB) []packet
}{
	{"chain", []string{"tc", "xdp"}, nil, nil},
	{"counter", []string{"tc", "xdp"}, []member{{"counter", "{}"}}, nil},
	{"firewall", []string{"tc", "xdp"}, []member{{"firewall", firewallConfig}}, nil},
	{"proxy", []string{"tc"}, []member{{"proxy", proxyConfig}}, virtualClient},
	{"tunnel", []string{"tc"}, []member{{"tunnel", tunnelConfig}}, tunnelled},
	{"nat", []string{"tc"}, []member{{"nat", natConfig}}, translated},
	{"responder", []string{"tc", "xdp"}, []member{{"responder", responderConfig}}, requests},
	{"intercept", []string{"tc", "xdp"}, []member{{"intercept", interceptConfig}}, requests},
	{"classifier", []string{"tc", "xdp"}, []member{{"classifier", classifierConfig}}, nil},
	{"counter-firewall-proxy", []string{"tc"}, []member{{"counter", "{}"}, {"firewall", firewallConfig},
		{"proxy", proxyConfig}}, virtualClient},
}

const (
	firewallConfig = `{"extensionHeaders": "deny", "rules": [
		{"action": "allow", "direction": "ingress", "protocol": "tcp", "dstPort": 80},
		{"action": "allow", "direction": "ingress", "protocol": "tcp", "dstPort": 443},
		{"action": "allow", "direction": "ingress", "protocol": "udp", "dstPort": 53},
		{"action": "allow", "direction": "ingress", "protocol": "icmp", "icmpType": 8},
		{"action": "allow", "direction": "ingress", "protocol": "tcp", "src": "10.2.0.0/16", "dstPort": "8000-8010"}]}`
	proxyConfig     = `{"ranges": ["10.30.0.0/16", "fdff:2000::/21"]}`
	tunnelConfig    = `{"nodes": [{"address": "192.0.2.2", "subnets": ["10.18.0.0/24", "fd00::/64"]}]}`
	natConfig       = `{"to_ip": "10.30.0.1", "to_ip6": "fdff:2000::1"}`
	responderConfig = `{"listeners": [{"app": "echo", "name": "echo", "port": 7000, "sourceRate": 0}]}`
	interceptConfig = `{"classes": [{"name": "requests", "match": {"protocol": "udp", "ports": [7000]}, "action": "copy"}]}`
	// With evaluation at the end of windows, a timer would change the results of packets.
	classifierConfig = `{"extractor": "flow", "evaluate": {"when": "packets"}}`
)

// TestExecuted also prints the lines of the file, from which `make costs UPDATE=1` creates it.
func TestExecuted(t *testing.T) {
	needKernel(t)
	limits := parse(t, executed)
	for _, f := range fixtures {
		for _, hook := range f.hooks {
			r := newRig(t, hook, f.modules...)
			packets := r.packets(f.packets)
			for i, result := range r.count(packets) {
				p := packets[i]
				if p.name == "" {
					continue
				}
				key := strings.Join([]string{f.name, hook, string(p.dir), p.name}, "/")
				t.Logf("executed: %s %d %d", key, result.Executed, result.Calls())
				check(t, limits, key, result.Executed, "instructions executed")
				check(t, limits, key+callsSuffix, result.Calls(), "helpers called")
			}
		}
	}
	for key := range limits {
		t.Errorf("executed.txt has %s, which is no packet here", key)
	}
}

// TestInterpreted compares the interpreter with the kernel: action, packet and maps must be equal.
func TestInterpreted(t *testing.T) {
	needKernel(t)
	for _, f := range fixtures {
		for _, hook := range f.hooks {
			t.Run(f.name+"/"+hook, func(t *testing.T) {
				err := errTime
				for attempt := 0; attempt < 3 && errors.Is(err, errTime); attempt++ {
					r := newRig(t, hook, f.modules...)
					packets := r.packets(f.packets)
					err = r.compareAll(append(packets, mutated(packets)...))
				}
				if err != nil {
					t.Error(err)
				}
			})
		}
	}
}

func (r *rig) compareAll(packets []packet) error {
	for _, p := range packets {
		if err := r.compare(p); err != nil {
			return err
		}
	}
	return nil
}

// packets returns those packets of a fixture that pass the chain.
func (r *rig) packets(more func(testing.TB) []packet) []packet {
	r.t.Helper()
	all := served(r.t)
	if more != nil {
		all = append(all, more(r.t)...)
	}
	return slices.DeleteFunc(all, func(p packet) bool { return r.kernel[p.dir] == nil })
}

// mutated returns packets that were truncated and changed at random.
func mutated(packets []packet) (all []packet) {
	random := rand.New(rand.NewPCG(19, 9))
	for range mutations {
		p := packets[random.IntN(len(packets))]
		p.name = "changed " + p.name
		p.frame = slices.Clone(p.frame)
		for range random.IntN(4) {
			// Most decisions depend on headers.
			p.frame[random.IntN(min(len(p.frame), 64))] = byte(random.Uint32())
		}
		if random.IntN(4) == 0 {
			p.frame = p.frame[:14+random.IntN(len(p.frame)-13)]
		}
		all = append(all, p)
	}
	return all
}

// needKernel skips a test on kernels where data planes take other paths: before 6.2 they cannot read struct sk_buff.
func needKernel(t testing.TB) {
	t.Helper()
	sdktest.NeedRoot(t)
	if os.Getenv("KERB_MATRIX") != "" {
		t.Skip("loads every module several times, each of which takes seconds in an emulated machine")
	}
	if !sdktest.KernelAtLeast(t, 6, 2) {
		t.Skip("data planes take other paths before Linux 6.2")
	}
}
