// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/cilium/ebpf"
	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/bench"
	"github.com/kerb-edge/kerb/bench/internal/node"
)

// mirrors are two virtual addresses, each of which stands for an instance at the other. A packet that is sent to one of them
// is translated to the other and back, as often as a test run repeats: a test run gives the program the packet that it made.
var mirrors = map[bool][2]netip.Addr{
	true:  {netip.MustParseAddr("10.30.7.1"), netip.MustParseAddr("10.30.7.2")},
	false: {netip.MustParseAddr("fdff:2000::7:1"), netip.MustParseAddr("fdff:2000::7:2")},
}

// kerb is the agent with the proxy on both services.
type kerb struct {
	*node.Node
	ground  *ground
	program *ebpf.Program // of what comes from the client
}

func raiseKerb(g *ground) (closer, error) {
	n, err := node.Start(g.lab)
	if err != nil {
		return nil, err
	}
	k := &kerb{Node: n, ground: g}
	if err := k.apply(); err != nil {
		return nil, errors.Join(err, k.Close())
	}
	return k, nil
}

func (k *kerb) apply() (err error) {
	g, mirror := k.ground, mirrors[k.ground.virtual[0].Is4()]
	err = k.Apply(node.Service(g.client), node.Service(g.server), node.Module("proxy", "proxy", "*", map[string]any{}),
		virtualService("client", g.virtual[0], g.addr(g.client)), virtualService("server", g.virtual[1], g.addr(g.server)),
		virtualService("there", mirror[0], mirror[1]), virtualService("back", mirror[1], mirror[0]))
	if err != nil {
		return err
	}
	k.program, err = k.find(g.client.OuterIndex())
	return err
}

func virtualService(name string, virtual, instance netip.Addr) v1.VirtualService {
	return v1.VirtualService{
		TypeMeta: v1.TypeMeta{APIVersion: v1.APIVersion, Kind: v1.KindVirtualService},
		Metadata: v1.ObjectMeta{Name: name},
		Spec: v1.VirtualServiceSpec{
			Addresses: []v1.VirtualAddress{{Address: virtual.String(), Policy: v1.RoundRobin}},
			Instances: []v1.VirtualInstance{{Name: name + "-0", Addresses: []string{instance.String()}}},
		},
	}
}

// find opens the program on the way from a service.
func (k *kerb) find(ifindex int) (*ebpf.Program, error) {
	body, err := k.Get("/v1/chains")
	if err != nil {
		return nil, err
	}
	var chains []v1.Chain
	if err := json.Unmarshal(body, &chains); err != nil {
		return nil, err
	}
	for _, c := range chains {
		for _, p := range c.Points {
			if c.Direction == "egress" && p.Ifindex == ifindex {
				return ebpf.NewProgramFromID(ebpf.ProgramID(c.Program))
			}
		}
	}
	return nil, errors.New("the agent runs no chain on the way from the client")
}

func (k *kerb) Close() error {
	if k.program != nil {
		k.program.Close()
	}
	return k.Node.Close()
}

// skBuff is the head of struct __sk_buff (linux/bpf.h); a test run takes the interface from it.
type skBuff struct {
	_       [10]uint32
	Ifindex uint32
	_       [14]uint32
}

const (
	testRunRepeat = 200_000
	testRuns      = 7
)

// packet measures the whole chain for a packet of a session that is there, by test run, in ns.
func (k *kerb) packet() ([]bench.Sample, error) {
	var samples []bench.Sample
	for _, protocol := range []layers.IPProtocol{layers.IPProtocolTCP, layers.IPProtocolUDP} {
		frame, err := k.frame(protocol)
		if err != nil {
			return nil, err
		}
		ns, err := k.testRun(frame)
		if err != nil {
			return nil, err
		}
		metric := map[layers.IPProtocol]string{layers.IPProtocolTCP: "packet", layers.IPProtocolUDP: "packet_udp"}[protocol]
		samples = append(samples, bench.Sample{Metric: metric, Stat: "p50", Unit: "ns", Value: ns})
	}
	return samples, nil
}

func (k *kerb) testRun(frame []byte) (float64, error) {
	opts := &ebpf.RunOptions{Data: frame, Repeat: testRunRepeat, Context: skBuff{Ifindex: uint32(k.ground.client.OuterIndex())}}
	var times []float64
	err := bench.Pinned(1, func() error {
		return k.ground.lab.Node().Do(func() error {
			for range testRuns {
				_, ns, err := testRun(k.program, opts)
				if err != nil {
					return fmt.Errorf("test run: %w", err)
				}
				times = append(times, ns)
			}
			return nil
		})
	})
	return bench.Median(times), err
}

// frame goes from the client to one of the mirrors.
func (k *kerb) frame(protocol layers.IPProtocol) ([]byte, error) {
	g := k.ground
	to := mirrors[g.virtual[0].Is4()][0]
	eth := &layers.Ethernet{SrcMAC: g.client.MAC(), DstMAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, EthernetType: layers.EthernetTypeIPv4}
	var ip gopacket.NetworkLayer = &layers.IPv4{Version: 4, TTL: 64, Protocol: protocol, SrcIP: g.addr(g.client).AsSlice(), DstIP: to.AsSlice()}
	if to.Is6() {
		eth.EthernetType = layers.EthernetTypeIPv6
		ip = &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: protocol, SrcIP: g.addr(g.client).AsSlice(), DstIP: to.AsSlice()}
	}
	tcp := &layers.TCP{SrcPort: 40000, DstPort: 80, ACK: true, Window: 1024}
	udp := &layers.UDP{SrcPort: 40000, DstPort: 80}
	if err := errors.Join(tcp.SetNetworkLayerForChecksum(ip), udp.SetNetworkLayerForChecksum(ip)); err != nil {
		return nil, err
	}
	transport := gopacket.SerializableLayer(tcp)
	if protocol == layers.IPProtocolUDP {
		transport = udp
	}
	buf := gopacket.NewSerializeBuffer()
	err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true},
		eth, ip.(gopacket.SerializableLayer), transport, gopacket.Payload(make([]byte, 64)))
	return buf.Bytes(), err
}

// testRun returns the time of one pass in ns.
func testRun(p *ebpf.Program, opts *ebpf.RunOptions) (verdict uint32, ns float64, err error) {
	ret, each, err := p.Benchmark(opts.Data, opts.Repeat, nil)
	return ret, float64(each.Nanoseconds()), err
}
