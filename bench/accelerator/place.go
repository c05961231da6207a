// SPDX-License-Identifier: Apache-2.0

package accelerator

import (
	"errors"
	"net/netip"
	"os"
	"strconv"

	"github.com/kerb-edge/kerb/internal/netlab"
)

// Places, in the order in which they are measured.
var places = []string{"loopback", "veth", "proxy", "sidecar"}

// place is where client and server are, and what lies between.
type place struct {
	family
	lab            *netlab.Lab
	client, server *netlab.Host
	target         netip.Addr // where the client finds what is or leads to the server, at the server's own port
	hops           []hop
}

// hop is a program between client and server.
type hop struct {
	host   *netlab.Host
	side   int
	listen func(port int) netip.AddrPort
	to     func(port int) netip.AddrPort
}

// family is of addresses.
type family struct {
	loopback, anywhere netip.Addr
	of                 func(*netlab.Host) netip.Addr
}

var families = map[string]family{
	"4": {netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv4Unspecified(), (*netlab.Host).Addr4},
	"6": {netip.IPv6Loopback(), netip.IPv6Unspecified(), (*netlab.Host).Addr6},
}

// sidecarPorts is how far above a server's port its sidecar listens for the other one.
const sidecarPorts = 1000

func openPlace(kind, prefix string, f family) (*place, error) {
	if err := netlab.Sweep(prefix); err != nil {
		return nil, err
	}
	lab, err := netlab.NewIn(prefix)
	if err != nil {
		return nil, err
	}
	p := &place{family: f, lab: lab}
	if err := p.build(kind); err != nil {
		return nil, errors.Join(err, lab.Close())
	}
	return p, nil
}

func (p *place) build(kind string) (err error) {
	if p.server, err = p.host("server"); err != nil {
		return err
	}
	if kind == "loopback" {
		p.client, p.target = p.server, p.loopback
		return nil
	}
	if p.client, err = p.host("client"); err != nil {
		return err
	}
	p.target = p.of(p.server)
	switch kind {
	case "proxy":
		return p.addProxy()
	case "sidecar":
		p.addSidecars()
	}
	return nil
}

// addProxy puts one proxy on the node, as a service of its own.
func (p *place) addProxy() error {
	proxy, err := p.host("proxy")
	if err != nil {
		return err
	}
	p.target = p.of(proxy)
	p.hops = []hop{{proxy, serverSide, at(p.anywhere, 0), at(p.of(p.server), 0)}}
	return nil
}

// addSidecars puts a proxy beside the client, which talks to one beside the server.
func (p *place) addSidecars() {
	p.target = p.loopback
	p.hops = []hop{
		{p.client, clientSide, at(p.loopback, 0), at(p.of(p.server), sidecarPorts)},
		{p.server, serverSide, at(p.anywhere, sidecarPorts), at(p.loopback, 0)},
	}
}

func at(addr netip.Addr, further int) func(int) netip.AddrPort {
	return func(port int) netip.AddrPort { return netip.AddrPortFrom(addr, uint16(port+further)) }
}

// host has enough ports for connections that are used once.
func (p *place) host(name string) (*netlab.Host, error) {
	h, err := p.lab.Host(name, netlab.HostOptions{})
	if err != nil {
		return nil, err
	}
	return h, h.Do(func() error {
		return errors.Join(
			sysctl("net/ipv4/ip_local_port_range", "16384 65535"),
			sysctl("net/ipv4/tcp_tw_reuse", "1"))
	})
}

func sysctl(name, value string) error { return os.WriteFile("/proc/sys/"+name, []byte(value), 0o644) }

// firstPort is that of the first workload's server.
const firstPort = 7100

func portText(port int) string { return strconv.Itoa(port) }
