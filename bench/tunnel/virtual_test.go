// SPDX-License-Identifier: Apache-2.0

package tunnel

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/lab/node"
	"github.com/kerb-edge/kerb/internal/lab/wait"
)

// Ports that the client's firewall and the server's firewall deny.
const (
	deniedPort = livePort + 1
	closedPort = livePort + 2
)

// With proxy and firewall in the default order, services reach those on the other node by virtual addresses through the
// tunnel, in both directions. The firewalls track connections; denied packets reach no service.
func TestVirtualAddressThroughTunnel(t *testing.T) {
	way := config{name: "kerb", setup: func(g *topology) error { return setupKerb(g, true) }}
	g := ready(t, prepare, way, load{underlay: 1500, service: 1500}, 30)
	g.publish(t)
	for i, hosts := range [2][2]*netlab.Host{{g.client, g.server}, {g.server, g.client}} {
		from := *g
		from.client, from.server = hosts[0], hosts[1]
		for _, to := range virtual[1-i] {
			t.Run(fmt.Sprintf("from node %d to %s", i, to), func(t *testing.T) {
				l := &live{t, &from, to, 1500 - 40}
				l.ping()
				before := settled(t, g)
				l.learnsMTU()
				l.datagrams()
				l.stream()
				before.check(t, g)
				l.denied(i)
			})
		}
	}
}

// publish adds proxy, firewall and the virtual services of both nodes on both nodes.
func (g *topology) publish(t *testing.T) {
	t.Helper()
	services := virtualServices(g)
	for i, n := range g.agents {
		rules := []any{
			map[string]any{"name": "ping", "action": "allow", "direction": "ingress", "protocol": "icmp", "icmpType": 8},
			map[string]any{"name": "ping6", "action": "allow", "direction": "ingress", "protocol": "icmpv6", "icmpType": 128},
			map[string]any{"name": "tcp", "action": "allow", "direction": "ingress", "protocol": "tcp", "dstPort": livePort},
			map[string]any{"name": "udp", "action": "allow", "direction": "ingress", "protocol": "udp", "dstPort": livePort},
		}
		for _, a := range virtual[1-i] {
			rules = append(rules, map[string]any{"action": "deny", "direction": "egress", "protocol": "udp", "dst": a.String(),
				"dstPort": deniedPort})
		}
		firewall := node.Module("fw", "firewall", "*", map[string]any{"rules": rules})
		if err := n.Apply(append(services, firewall, node.Module("px", "proxy", "*", map[string]any{}))...); err != nil {
			t.Fatal(err)
		}
		for _, s := range services {
			name := s.(v1.VirtualService).Metadata.Name
			wait.Until(t, "proxy and tunnel know "+name, func() bool {
				var vs v1.VirtualService
				return n.Get("/v1/virtualservices/"+name, &vs) == nil && slices.Contains(vs.Status.Modules, "px") &&
					slices.Contains(vs.Status.Modules, "tunnel")
			})
		}
	}
}

// denied sends packets to the virtual address that the client's firewall denies, then packets that the server's
// firewall denies.
func (l *live) denied(node int) {
	l.Helper()
	const sent = 5
	for _, c := range []struct {
		port    uint16
		at      int // node whose firewall drops it
		carried uint64
	}{{deniedPort, node, 0}, {closedPort, 1 - node, sent}} {
		server := within(l, l.server, func() (net.PacketConn, error) {
			return net.ListenPacket("udp", netip.AddrPortFrom(l.bind().Addr(), c.port).String())
		})
		defer server.Close()
		client := within(l, l.client, func() (net.Conn, error) {
			return net.Dial("udp", netip.AddrPortFrom(l.to, c.port).String())
		})
		defer client.Close()
		before, drops := settled(l.T, l.topology), dropsOf(l.T, l.topology, c.at, "fw", "policy")
		for range sent {
			if _, err := client.Write([]byte("denied")); err != nil {
				l.Fatal(err)
			}
		}
		wait.Until(l.T, "the firewall denies", func() bool {
			return dropsOf(l.T, l.topology, c.at, "fw", "policy") >= drops+sent
		})
		now := settled(l.T, l.topology)
		if got := now.nodes[1-node].ReceivedPackets - before.nodes[1-node].ReceivedPackets; got != c.carried {
			l.Errorf("port %d: the other node has received %d packets, want %d", c.port, got, c.carried)
		}
		if waiting(l.T, server) {
			l.Errorf("port %d: the server has received a denied packet", c.port)
		}
	}
}

// waiting reports whether a socket has a datagram.
func waiting(t *testing.T, conn net.PacketConn) bool {
	t.Helper()
	raw, err := conn.(*net.UDPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var got error
	if err := raw.Control(func(fd uintptr) {
		_, _, got = unix.Recvfrom(int(fd), make([]byte, 1),
			unix.MSG_DONTWAIT)
	}); err != nil {
		t.Fatal(err)
	}
	return !errors.Is(got, unix.EAGAIN)
}
