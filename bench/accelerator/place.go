// SPDX-License-Identifier: Apache-2.0

package accelerator

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/kerb-edge/kerb/internal/lab/netlab"
)

// Places, in the order in which they are measured.
var places = []string{"loopback", "veth", "proxy", "sidecar"}

// unixPlaces are the places where AF_UNIX is measured. Elsewhere the result would be the same as on loopback.
var unixPlaces = []string{"loopback", "proxy", "sidecar"}

// place is the location of client and server, and the path between them.
type place struct {
	family
	lab            *netlab.Lab
	options        netlab.HostOptions
	client, server *netlab.Host
	// By the port of a server: the address for the client, and the one on which the server listens.
	target, listen func(port int) address
	hops           []hop
	start          func(*contender, context.Context) error // starts what is between them but no hop; may be nil
}

// hop is a proxy between client and server.
type hop struct {
	host       *netlab.Host
	side       int
	listen, to func(port int) address
	program    *proxyProgram // nil for the one of --proxy
}

// address is HOST:PORT, or the path of an AF_UNIX socket.
type address string

func (a address) isPath() bool { return strings.HasPrefix(string(a), "/") }

// network returns the network for net.Dial.
func (a address) network() string {
	if a.isPath() {
		return "unix"
	}
	return "tcp"
}

// after returns the address with a prefix in front of paths, as proxies require.
func (a address) after(prefix string) string {
	if a.isPath() {
		return prefix + string(a)
	}
	return string(a)
}

// words returns the address in the format of src/wire.h.
func (a address) words() []string {
	if a.isPath() {
		return []string{"unix", string(a)}
	}
	host, port, _ := net.SplitHostPort(string(a))
	return []string{host, port}
}

// family is an address family.
type family struct {
	loopback, anywhere netip.Addr
	of                 func(*netlab.Host) netip.Addr
}

var families = map[string]family{
	"4": {netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv4Unspecified(), (*netlab.Host).Addr4},
	"6": {netip.IPv6Loopback(), netip.IPv6Unspecified(), (*netlab.Host).Addr6},
}

// sidecarPorts is the offset from a server's port to the port on which its sidecar listens for the other sidecar.
const sidecarPorts = 1000

func openPlace(kind, prefix string, f family) (*place, error) {
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
	p.listen = at(p.anywhere, 0)
	if kind == "loopback" {
		p.client, p.target = p.server, at(p.loopback, 0)
		return nil
	}
	if p.client, err = p.host("client"); err != nil {
		return err
	}
	p.target = at(p.of(p.server), 0)
	switch kind {
	case "proxy":
		return p.addProxy()
	case "sidecar":
		p.addSidecars()
	}
	return nil
}

// addProxy adds one proxy to the node, as a separate service.
func (p *place) addProxy() error {
	proxy, err := p.host("proxy")
	if err != nil {
		return err
	}
	p.target = at(p.of(proxy), 0)
	p.hops = []hop{{proxy, serverSide, at(p.anywhere, 0), at(p.of(p.server), 0), nil}}
	return nil
}

// addSidecars adds a proxy to the client, which connects to one of the server.
func (p *place) addSidecars() {
	p.target = at(p.loopback, 0)
	p.hops = []hop{
		{p.client, clientSide, at(p.loopback, 0), at(p.of(p.server), sidecarPorts), nil},
		{p.server, serverSide, at(p.anywhere, sidecarPorts), at(p.loopback, 0), nil},
	}
}

func at(addr netip.Addr, further int) func(int) address {
	return func(port int) address { return address(netip.AddrPortFrom(addr, uint16(port+further)).String()) }
}

// socketIn returns the path of the socket that replaces a port, by the number of hops from the client.
func socketIn(dir string, hop int) func(int) address {
	return func(port int) address { return address(filepath.Join(dir, fmt.Sprintf("%d-%d.sock", hop, port))) }
}

// fromWithin returns the address of a listener on its own host.
func (p *place) fromWithin(listens address) address {
	if listens.isPath() {
		return listens
	}
	_, port, _ := net.SplitHostPort(string(listens))
	return address(net.JoinHostPort(p.loopback.String(), port))
}

// overSockets replaces TCP: client, hops and server connect by AF_UNIX sockets in a directory.
func (p *place) overSockets(dir string) {
	for i := range p.hops {
		p.hops[i].listen, p.hops[i].to = socketIn(dir, i), socketIn(dir, i+1)
	}
	p.target, p.listen = socketIn(dir, 0), socketIn(dir, len(p.hops))
}

// host adds a host with enough ephemeral ports for short connections.
func (p *place) host(name string) (*netlab.Host, error) {
	h, err := p.lab.Host(name, p.options)
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

// firstPort is the port of the first workload's server.
const firstPort = 7100
