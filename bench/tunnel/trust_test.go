// SPDX-License-Identifier: Apache-2.0

package tunnel

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/lab/wait"
)

func (g *topology) onNode(t *testing.T, i int, args string) {
	t.Helper()
	words := strings.Fields(args)
	if words[0] == "ip" {
		words[0] = iproute2()
	}
	if out, err := g.labs[i].Node().Command(context.Background(), words[0], words[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", args, err, out)
	}
}

// encrypted returns the condition Encrypted of the tunnel on a node, or an empty one.
func encrypted(t *testing.T, g *topology, i int) v1alpha1.Condition {
	t.Helper()
	var m v1alpha1.Module
	if err := g.agents[i].Get("/v1/modules/tunnel", &m); err != nil {
		t.Fatal(err)
	}
	at := slices.IndexFunc(m.Status.Conditions, func(c v1alpha1.Condition) bool { return c.Type == "Encrypted" })
	if at < 0 {
		return v1alpha1.Condition{}
	}
	return m.Status.Conditions[at]
}

// sendDatagrams sends datagrams to the server's node without waiting for an answer.
func (l *live) sendDatagrams(n int) {
	l.Helper()
	client := l.dial("udp")
	defer client.Close()
	for range n {
		_, _ = client.Write([]byte("in the clear?"))
	}
}

// While an IPsec policy matches the outer packets, none are sent or accepted, also if the policy is added while the
// tunnel runs.
func TestTunnelObeysIPsecPolicies(t *testing.T) {
	way := config{name: "kerb", setup: func(g *topology) error { return setupKerb(g, true) }}
	g := ready(t, prepare, way, load{underlay: 1500, service: 1500}, 20)
	awaitReachable(t, g)
	l := &live{t, g, g.server.Addr4(), 1460}
	policy := func(do, direction string, from, to int) string {
		return fmt.Sprintf("ip xfrm policy %s src %s/32 dst %s/32 proto 17 dport 7187 dir %s", do, g.node(from), g.node(to),
			direction)
	}
	const template = " tmpl proto esp mode transport level required"
	for _, c := range []struct {
		direction string
		at, drops int // node with the policy
	}{{"out", 0, 0}, {"in", 1, 1}} {
		g.onNode(t, c.at, policy("add", c.direction, 0, 1)+template)
		wait.Until(t, "condition Encrypted with policy "+c.direction, func() bool {
			return encrypted(t, g, c.at).Status == "False"
		})
		text := encrypted(t, g, c.at).Message
		if !strings.Contains(text, "dir "+c.direction) || !strings.Contains(text, g.node(1-c.at).String()) {
			t.Errorf("the condition names neither policy nor node: %s", text)
		}
		before := settled(t, g)
		l.sendDatagrams(20)
		wait.Until(t, "drops with reason ipsec", func() bool { return dropsOf(t, g, c.drops, "tunnel", "ipsec") >= 20 })
		if now := settled(t, g); now.nodes[1].ReceivedPackets != before.nodes[1].ReceivedPackets {
			t.Errorf("policy %s: %d packets have passed in the clear", c.direction,
				now.nodes[1].ReceivedPackets-before.nodes[1].ReceivedPackets)
		}
		// The operator exempts the tunnel, as IPsec daemons do, and then removes both policies.
		g.onNode(t, c.at, strings.Replace(policy("add", c.direction, 0, 1), "/32", "/31", 2)+" action allow priority 0")
		g.onNode(t, c.at, policy("delete", c.direction, 0, 1))
		wait.Until(t, "no condition", func() bool { return encrypted(t, g, c.at).Status == "" })
		l.ping()
		g.onNode(t, c.at, "ip xfrm policy deleteall")
	}
}

// dropsOf returns the number of packets that a module on a node has dropped for a reason.
func dropsOf(t *testing.T, g *topology, i int, module, reason string) (n uint64) {
	t.Helper()
	var m v1alpha1.Module
	if err := g.agents[i].Get("/v1/modules/"+module, &m); err != nil {
		t.Fatal(err)
	}
	for _, d := range m.Status.Drops {
		if d.Reason == reason {
			n += d.Packets
		}
	}
	return
}

// pathDiscovery sets a socket's path MTU discovery mode, which determines DF.
func (l *live) pathDiscovery(conn net.Conn, how int) {
	l.Helper()
	raw, err := conn.(*net.UDPConn).SyscallConn()
	if err != nil {
		l.Fatal(err)
	}
	if e := raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER,
			how)
	}); e != nil || err != nil {
		l.Fatal(e, err)
	}
}

// Datagrams of senders that do not set DF, and ignore ICMP, arrive unchanged at any size. The receiving kernel verifies
// their UDP checksums.
func TestTunnelFragmentsWithoutDF(t *testing.T) {
	number := 21
	for name, u := range map[string]struct {
		load
		mtu int
	}{
		"over IPv4":      {load{underlay: 1500, service: 1500}, 1460},
		"over IPv6":      {load{ip6: true, underlay: 1500, service: 1500}, 1440},
		"jumbo services": {load{underlay: 1500, service: 9000}, 1460},
	} {
		t.Run(name, func(t *testing.T) {
			way := config{name: "kerb", setup: func(g *topology) error { return setupKerb(g, true) }}
			g := ready(t, prepare, way, u.load, number)
			awaitReachable(t, g)
			l := &live{t, g, g.server.Addr4(), u.mtu}
			server := within(l, g.server, func() (net.PacketConn, error) {
				return net.ListenPacket("udp", netip.AddrPortFrom(l.to, livePort).String())
			})
			defer server.Close()
			for _, how := range []int{unix.IP_PMTUDISC_OMIT, unix.IP_PMTUDISC_DONT} {
				client := l.dial("udp")
				defer client.Close()
				l.pathDiscovery(client, how)
				for _, size := range []int{u.mtu - 28, u.mtu - 27, u.mtu - 20, 1465, 1471, 1472, 1473, 2000, 3001, 8972, 20001} {
					l.arrives(client, server, size)
				}
			}
			if n := stats(t, g, 0); n.Fragmented == 0 || n.TooBig != 0 {
				t.Errorf("%+v", n)
			}
		})
		number++
	}
}

func (l *live) arrives(client net.Conn, server net.PacketConn, size int) {
	l.Helper()
	data := make([]byte, size)
	for i := range data {
		data[i] = byte(i*7 + i>>8 + size)
	}
	if _, err := client.Write(data); err != nil {
		l.Errorf("%d bytes: %v", size, err)
		return
	}
	got := make([]byte, 1<<16)
	_ = server.SetReadDeadline(time.Now().Add(timeout))
	n, _, err := server.ReadFrom(got)
	if err != nil || !bytes.Equal(got[:n], data) {
		l.Errorf("of %d bytes %d arrive, %v", size, n, err)
	}
}
