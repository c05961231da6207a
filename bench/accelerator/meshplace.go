// SPDX-License-Identifier: Apache-2.0

package accelerator

import (
	"embed"
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"

	"github.com/kerb-edge/kerb/bench"
	services "github.com/kerb-edge/kerb/bench/internal/contender"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
)

//go:embed *.bpf.*
var objects embed.FS

// meshes in the order in which they are measured.
var meshes = []string{"none", "cilium-like", "ambient", "sidecar"}

// service is the server's virtual address, which no interface has.
var service = netip.MustParseAddr("10.96.0.10")

// openMesh is openPlace for two pods and the mesh between them.
func openMesh(kind, prefix string, f family) (*place, error) {
	lab, err := netlab.NewIn(prefix)
	if err != nil {
		return nil, err
	}
	p := &place{family: f, lab: lab}
	if err := p.buildMesh(kind); err != nil {
		return nil, errors.Join(err, lab.Close())
	}
	return p, nil
}

func (p *place) buildMesh(kind string) (err error) {
	p.options.Routed = true
	if p.client, err = p.host("client"); err == nil {
		p.server, err = p.host("server")
	}
	if err != nil {
		return err
	}
	p.listen, p.target = at(p.anywhere, 0), at(service, 0)
	if kind == "cilium-like" {
		return p.redirectPeers()
	}
	var ports []services.Port
	for _, w := range meshWorkloads {
		ports = append(ports, services.Port{Protocol: "tcp", Number: w.port})
	}
	if err := p.feed(p.lab.Node(), services.NFTables(service, p.server.Addr4(), ports)); err != nil {
		return err
	}
	switch kind {
	case "ambient":
		p.addZtunnel()
	case "sidecar":
		return p.addEnvoys()
	}
	return nil
}

func (p *place) feed(ns *netlab.Namespace, rules string) error {
	return services.Feed(ns, rules, "nft", "-f", "-")
}

// redirectPeers attaches peer.bpf.c to the node's end of both veths.
func (p *place) redirectPeers() error {
	spec, err := bench.Object(objects, "peer.bpf.o")
	if err != nil {
		return err
	}
	for name, value := range map[string]any{
		"client_address": p.client.Addr4().As4(), "server_address": p.server.Addr4().As4(), "service_address": service.As4(),
		"client_ifindex": uint32(p.client.OuterIndex()), "server_ifindex": uint32(p.server.OuterIndex())} {
		if err := spec.Variables[name].Set(value); err != nil {
			return fmt.Errorf("peer.bpf.o, %s: %w", name, err)
		}
	}
	loaded, err := ebpf.NewCollection(spec)
	if err != nil {
		return fmt.Errorf("load peer.bpf.o: %w", err)
	}
	defer loaded.Close() // filters hold a reference to the program
	return p.lab.Node().Do(func() error {
		for _, h := range []*netlab.Host{p.client, p.server} {
			if _, err := bench.AddClsact(h.OuterIndex()); err != nil {
				return err
			}
			err := bench.PutFilter(h.OuterIndex(), netlink.HANDLE_MIN_INGRESS, 1, 1, loaded.Programs["redirect_peer"])
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// Ports of Istio's proxies, and the mark of their own connections.
const (
	outboundPort = 15001
	inboundPort  = 15006
	readyPort    = 15021
	proxyMark    = 1337
)

// intercept redirects connections from and to programs of the host to its proxy, except the proxy's own.
func (p *place) intercept(h *netlab.Host) error {
	return p.feed(h.Namespace, fmt.Sprintf(`table ip mesh {
	chain leaving {
		type nat hook output priority -100;
		meta mark %d return
		oif lo return
		meta l4proto tcp redirect to :%d
	}
	chain arriving {
		type nat hook prerouting priority dstnat;
		iif lo return
		meta l4proto tcp redirect to :%d
	}
}
`, proxyMark, outboundPort, inboundPort))
}
