// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
)

// sendFrom sends a datagram from web to db, with any source address.
func (n *node) sendFrom(source netip.Addr, port uint16, text string) error {
	transparent := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		if failed := c.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_TRANSPARENT,
				1)
		}); failed != nil {
			return failed
		}
		return err
	}}
	return n.web.Do(func() error {
		c, err := transparent.ListenPacket(context.Background(), "udp4", netip.AddrPortFrom(source, 0).String())
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.WriteTo([]byte(text), net.UDPAddrFromAddrPort(netip.AddrPortFrom(n.db.Addr4(), port)))
		return err
	})
}

// With egress deny, a service can send only from the addresses of its interface, and the agent follows their changes.
func TestServicesSendFromOwnAddressesOnly(t *testing.T) {
	n := newRunningNode(t)
	n.apply(module("fw", "firewall", "app=web", map[string]any{"defaultPolicy": map[string]any{"egress": "deny"},
		"rules": []any{map[string]any{"action": "allow"}}}))
	n.settled(map[string]int{"fw": 2})
	var in *net.UDPConn
	if err := n.db.Do(func() (err error) {
		in, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(n.db.Addr4(), 7000)))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	arrives := func(source netip.Addr, text string) bool {
		t.Helper()
		if err := n.sendFrom(source, 7000, text); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 100)
		in.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
		size, err := in.Read(buf)
		if err == nil && strings.HasPrefix(string(buf[:size]), "forged") {
			t.Fatalf("a datagram with another source address arrives: %s", buf[:size])
		}
		return err == nil
	}
	stranger := netip.MustParseAddr("203.0.113.9")
	n.Eventually("the own address passes", func() bool { return arrives(n.web.Addr4(), "own") })
	for range 3 {
		if err := n.sendFrom(stranger, 7000, "forged"); err != nil {
			t.Fatal(err)
		}
	}
	n.Eventually("the own address passes", func() bool { return arrives(n.web.Addr4(), "own") })
	n.Eventually("forged ones are dropped", func() bool {
		for _, d := range get[v1.Module](n, "module", "fw").Status.Drops {
			if d.Reason == "spoofed" {
				return d.Packets >= 3
			}
		}
		return false
	})
	if out, err := n.web.Command(t.Context(), "ip", "address", "add", stranger.String()+"/32", "dev",
		n.web.Interface()).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	n.Eventually("a new address passes", func() bool { return arrives(stranger, "new") })
}
