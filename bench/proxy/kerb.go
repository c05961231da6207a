// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/bench"
	"github.com/kerb-edge/kerb/bench/internal/node"
	"github.com/kerb-edge/kerb/internal/traffic"
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
			Addresses: []v1.VirtualAddress{{Address: virtual.String(), Policy: v1.PolicyRoundRobin}},
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

const (
	testRunRepeat = 200_000
	testRuns      = 7
)

// packet measures the whole chain for a packet of a session that is there, by test run.
func (k *kerb) packet() ([]bench.Sample, error) {
	var samples []bench.Sample
	for metric, protocol := range map[string]byte{"packet": unix.IPPROTO_TCP, "packet_udp": unix.IPPROTO_UDP} {
		ns, err := k.testRun(k.frame(protocol))
		if err != nil {
			return nil, err
		}
		samples = append(samples, bench.Sample{Metric: metric, Stat: "p50", Unit: "ns", Value: ns})
	}
	return samples, nil
}

// skBuff is the head of struct __sk_buff (linux/bpf.h); a test run takes the interface from it.
type skBuff struct {
	_       [10]uint32
	Ifindex uint32
	_       [14]uint32
}

func (k *kerb) testRun(frame []byte) (ns float64, err error) {
	opts := &ebpf.RunOptions{Data: frame, Repeat: testRunRepeat, Context: skBuff{Ifindex: uint32(k.ground.client.OuterIndex())}}
	var times []float64
	err = traffic.Pinned(1, func() error {
		return k.ground.lab.Node().Do(func() error {
			for range testRuns {
				start := time.Now()
				if _, err := k.program.Run(opts); err != nil {
					return fmt.Errorf("test run: %w", err)
				}
				times = append(times, float64(time.Since(start).Nanoseconds())/testRunRepeat)
			}
			return nil
		})
	})
	return bench.Median(times), err
}

// frame goes from the client to one of the mirrors. No program on the way checks its checksums.
func (k *kerb) frame(protocol byte) []byte {
	from, to := k.ground.addr(k.ground.client), mirrors[k.ground.virtual[0].Is4()][0]
	segment := make([]byte, 84)
	binary.BigEndian.PutUint16(segment, 40000)
	binary.BigEndian.PutUint16(segment[2:], 80)
	if protocol == unix.IPPROTO_TCP {
		segment[12], segment[13] = 5<<4, 0x10 // ACK
	} else {
		binary.BigEndian.PutUint16(segment[4:], uint16(len(segment)))
		segment[7] = 1 // a checksum there is to be kept right
	}
	eth := append(append([]byte{2, 0, 0, 0, 0, 1}, k.ground.client.MAC()...), 0x08, 0x00)
	ip := []byte{0x45, 0, 0, byte(20 + len(segment)), 0, 0, 0x40, 0, 64, protocol, 0, 0}
	if from.Is6() {
		eth[12], eth[13] = 0x86, 0xdd
		ip = []byte{0x60, 0, 0, 0, 0, byte(len(segment)), protocol, 64}
	}
	return slices.Concat(eth, ip, from.AsSlice(), to.AsSlice(), segment)
}
