// SPDX-License-Identifier: Apache-2.0

package combinations

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/lab/node/nodetest"
)

const outsidePort = 7300 // replies with the client's address

// translated are the client's outside addresses by nat, and outside the destinations for which it is used; nat does not
// translate packets to addresses of services.
var (
	translated = [2]netip.Addr{netip.MustParseAddr("198.51.100.7"), netip.MustParseAddr("2001:db8:7::7")}
	outside    = [2]netip.Addr{netip.MustParseAddr("203.0.113.9"), netip.MustParseAddr("2001:db8:9::9")}
)

func natConfig() map[string]any {
	return map[string]any{"to_ip": translated[0].String(), "to_ip6": translated[1].String(),
		"except": []any{plans[0][0].String(), plans[0][1].String(), plans[1][0].String(), plans[1][1].String(),
			"10.30.0.0/16", "fdff:2000::/21"}}
}

// addOutside adds a host behind the second node that is not a service, and the routes to it and back to the client's
// outside addresses.
func (f *field) addOutside() {
	f.t.Helper()
	h := f.nodes[1].Host("outside")
	own, client := [2]netip.Addr{h.Addr4(), h.Addr6()}, [2]netip.Addr{f.client.Addr4(), f.client.Addr6()}
	routes := [2]map[netip.Addr]netip.Addr{{}, {}}
	for i := range outside {
		over := [2]netip.Addr{wireAddr(f.wire, f.nodes[0].Lab, i), wireAddr(f.wire, f.nodes[1].Lab, i)}
		routes[0][outside[i]], routes[0][translated[i]] = over[1], client[i]
		routes[1][outside[i]], routes[1][translated[i]] = own[i], over[0]
		if err := h.Do(func() error { return serveOutside(f, h.Interface(), outside[i]) }); err != nil {
			f.t.Fatal(err)
		}
	}
	for node, all := range routes {
		for to, via := range all {
			err := f.nodes[node].Lab.Node().Do(func() error {
				return netlink.RouteAdd(&netlink.Route{Dst: single(to), Gw: via.AsSlice()})
			})
			if err != nil {
				f.t.Fatalf("node %d: route to %s by %s: %v", node, to, via, err)
			}
		}
	}
}

func wireAddr(w *netlab.Wire, l *netlab.Lab, family int) netip.Addr {
	if family == 0 {
		return w.Addr4(l)
	}
	return w.Addr6(l)
}

func single(a netip.Addr) *net.IPNet {
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}
}

// serveOutside answers TCP connections and datagrams with the client's address.
func serveOutside(f *field, device string, addr netip.Addr) error {
	link, err := netlink.LinkByName(device)
	if err != nil {
		return err
	}
	a := &netlink.Addr{IPNet: single(addr)}
	if addr.Is6() {
		a.Flags = 0x02 // IFA_F_NODAD
	}
	if err := netlink.AddrAdd(link, a); err != nil {
		return fmt.Errorf("add %s: %w", addr, err)
	}
	at := netip.AddrPortFrom(addr, outsidePort)
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
	if err != nil {
		return err
	}
	l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(at))
	if err != nil {
		return err
	}
	f.root.Cleanup(func() { c.Close(); l.Close() })
	go func() {
		for data := make([]byte, 64); ; {
			_, from, err := c.ReadFromUDPAddrPort(data)
			if err != nil {
				return // closed
			}
			_, _ = c.WriteToUDPAddrPort([]byte(from.Addr().Unmap().String()), from)
		}
	}()
	go func() {
		for {
			conn, err := l.AcceptTCP()
			if err != nil {
				return // closed
			}
			_, _ = io.WriteString(conn, conn.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap().String())
			_ = conn.Close()
		}
	}()
	return nil
}

// checkTranslation checks that the client reaches the outside, by TCP and UDP, with the address of nat.
func (c *combination) checkTranslation() {
	c.t.Helper()
	for i, addr := range outside {
		to, want := netip.AddrPortFrom(addr, outsidePort), translated[i].String()
		conn := c.dial("tcp", to)
		_ = conn.SetDeadline(time.Now().Add(nodetest.Patience))
		if got, err := io.ReadAll(conn); err != nil || string(got) != want {
			c.t.Errorf("tcp %v sees the client as %q, %v, want %s", to, got, err, want)
		}
		_ = conn.Close()
		conn = c.dial("udp", to)
		_ = conn.SetDeadline(time.Now().Add(nodetest.Patience))
		data := make([]byte, 64)
		if _, err := conn.Write([]byte("who?")); err != nil {
			c.t.Fatal(err)
		}
		if n, err := conn.Read(data); err != nil || string(data[:n]) != want {
			c.t.Errorf("udp %v sees the client as %q, %v, want %s", to, data[:n], err, want)
		}
		_ = conn.Close()
	}
}
