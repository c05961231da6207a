// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"errors"
	"net/netip"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/lab/node"
)

// kerb is the agent, and the program for packets from the client.
type kerb struct {
	node    *node.Node
	program *ebpf.Program
}

// setupKerb starts the agent with the proxy on both services.
func setupKerb(g *topology) error {
	n, err := node.Start(g.lab.Node())
	if err != nil {
		return err
	}
	g.Later(n.Close)
	proxy := node.Module("proxy", "proxy", "*", map[string]any{"tables": map[string]any{"sessions": kerbSessions}})
	proxy.Spec.Budget.Memory = "128Mi" // the package's default is for half as many sessions
	err = n.Apply(node.Service(g.client), node.Service(g.server), proxy,
		virtualService("client", g.virtual[0], g.addr(g.client)), virtualService("server", g.virtual[1], g.addr(g.server)))
	if err != nil {
		return err
	}
	program, err := n.Chain("egress", g.client.OuterIndex())
	if err != nil {
		return err
	}
	g.Later(program.Close)
	g.kerb = &kerb{n, program}
	return nil
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

// packet returns the time of the chain per packet of the client in ns while f sends packets, from the kernel's run-time
// statistics, which add about 20 ns. Caches are colder than in a test run.
func (k *kerb) packet(f func() error) (float64, error) {
	stats, err := ebpf.EnableStats(uint32(unix.BPF_STATS_RUN_TIME))
	if err != nil {
		return 0, err
	}
	defer stats.Close()
	before, err1 := k.program.Stats()
	err2 := f()
	after, err3 := k.program.Stats()
	if err := errors.Join(err1, err2, err3); err != nil {
		return 0, err
	}
	packets := after.RunCount - before.RunCount
	if packets == 0 {
		return 0, errors.New("no packet reached the chain")
	}
	return float64((after.Runtime - before.Runtime).Nanoseconds()) / float64(packets), nil
}
