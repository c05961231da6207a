// SPDX-License-Identifier: Apache-2.0

package oakestra_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/kerb-edge/kerb/internal/lab/node/nodetest"
)

// A service with the NAT in its SLA connects to another one, and is reached by a forwarded port, over TCP, UDP, UDP in
// fragments and both versions of IP. The other service sees only the outside address.
func TestNAT(t *testing.T) {
	n := newNode(t)
	register(n)
	a, b := n.container(), n.container()
	a4, a6 := a.deploy(appName, 0, `,"ebpfModules":[{"name":"nat","config":{"to_ip":"10.99.9.9","to_ip6":"fd77::9",`+
		`"forward":[{"port":8080,"to_ip":"10.18.0.2","to_port":2000},{"port":8080,"to_ip":"fc00::2","to_port":2000},`+
		`{"proto":"udp","port":8080,"to_ip":"10.18.0.2","to_port":2000},`+
		`{"proto":"udp","port":8080,"to_ip":"fc00::2","to_port":2000}]}}]`)
	b4, b6 := b.deploy("other.test.back.test", 0, "")
	for _, v := range []struct{ outside, a, b string }{{"10.99.9.9", a4, b4}, {"fd77::9", a6, b6}} {
		n.route(v.outside, v.a)
		a.serveEcho(v.a)
		peers := b.serveEcho(v.b)
		for _, size := range []int{20, 4000} { // the MTU is 1450
			a.exchange("udp", net.JoinHostPort(v.b, "2000"), size)
			a.exchange("tcp", net.JoinHostPort(v.b, "2000"), size)
			b.exchange("udp", net.JoinHostPort(v.outside, "8080"), size)
			b.exchange("tcp", net.JoinHostPort(v.outside, "8080"), size)
		}
		for len(peers) > 0 {
			if peer := <-peers; peer.Addr().String() != v.outside || peer.Port() < 40000 || peer.Port() > 41023 {
				t.Errorf("%s sees %s", v.b, peer)
			}
		}
	}
	if got := n.must("GET", "/ebpf/0/mappings", ""); !strings.Contains(got, `"address":"10.18.0.2"`) ||
		!strings.Contains(got, `"address":"fc00::2"`) {
		t.Error(got)
	}
}

// route adds a route of the node to an address via another one.
func (n *node) route(to, via string) {
	n.T.Helper()
	err := n.Lab.Node().Do(func() error {
		a := netip.MustParseAddr(to)
		return netlink.RouteAdd(&netlink.Route{Gw: netip.MustParseAddr(via).AsSlice(),
			Dst: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}})
	})
	if err != nil {
		n.T.Fatal(err)
	}
}

// serveEcho echoes on port 2000, and returns the peers.
func (c *container) serveEcho(address string) <-chan netip.AddrPort {
	c.n.T.Helper()
	peers := make(chan netip.AddrPort, 100)
	at := net.JoinHostPort(address, "2000")
	err := c.do(func() error {
		listener, err := net.Listen("tcp", at)
		if err != nil {
			return err
		}
		packets, err := net.ListenPacket("udp", at)
		c.n.T.Cleanup(func() { listener.Close(); packets.Close() })
		go func() {
			for {
				conn, err := listener.Accept()
				if err != nil {
					return
				}
				peers <- conn.RemoteAddr().(*net.TCPAddr).AddrPort()
				go func() { defer conn.Close(); _, _ = io.Copy(conn, conn) }()
			}
		}()
		go func() {
			buffer := make([]byte, 1<<16)
			for {
				size, from, err := packets.ReadFrom(buffer)
				if err != nil {
					return
				}
				peers <- from.(*net.UDPAddr).AddrPort()
				_, _ = packets.WriteTo(buffer[:size], from)
			}
		}()
		return err
	})
	if err != nil {
		c.n.T.Fatal(err)
	}
	return peers
}

// exchange sends bytes and expects them back, from the address that it has sent them to.
func (c *container) exchange(network, to string, size int) {
	c.n.T.Helper()
	var conn net.Conn
	err := c.do(func() (err error) {
		conn, err = net.DialTimeout(network, to, nodetest.Patience)
		return err
	})
	if err != nil {
		c.n.T.Fatal(err)
	}
	defer conn.Close()
	sent, got := bytes.Repeat([]byte("0123456789abcdef"), size/16+1)[:size], make([]byte, size)
	for range manyTries {
		if _, err = conn.Write(sent); err != nil {
			continue // an ICMP error of an earlier packet
		}
		_ = conn.SetReadDeadline(time.Now().Add(time.Second))
		if _, err = io.ReadFull(conn, got); err == nil || network == "tcp" {
			break
		}
	}
	if err = errors.Join(err); err != nil || !bytes.Equal(sent, got) {
		c.n.T.Fatalf("%s %s with %d bytes: %v", network, to, size, err)
	}
}
