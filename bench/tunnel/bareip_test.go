// SPDX-License-Identifier: Apache-2.0

package tunnel

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/lab/traffic"
)

// device is the underlay interface of both nodes. Its MTU leaves room for WireGuard and ESP over either IP version.
const (
	device    = "bare0"
	deviceMTU = 1420
)

// bare is a kind of underlay interface without a link header.
type bare struct {
	// probe is a shell script that fails if the kernel lacks the kind; ip is iproute2.
	probe string
	// add creates both devices; start runs when they are up.
	add func(t *testing.T, g *topology) (start func(), err error)
	// carrier selects the packets on the wire that carry those of the device; zero: none.
	carrier carrier
}

var bares = map[string]bare{
	"TUN": {probe: "test -c /dev/net/tun", add: addTUN},
	"WireGuard": {
		probe: "ip link add bare0 type wireguard",
		add:   addWireGuard, carrier: carrier{unix.IPPROTO_UDP, wireGuardPort},
	},
	"XFRM": {
		probe: "ip link add bare0 type xfrm dev lo if_id 1 && ip " + xfrmState("192.0.2.1", "192.0.2.2", 1),
		add:   addXFRM, carrier: carrier{proto: unix.IPPROTO_ESP},
	},
}

// deviceAddrs are the nodes' addresses on the device, by IP version.
var deviceAddrs = map[bool][2]netip.Prefix{
	false: {netip.MustParsePrefix("198.51.100.1/24"), netip.MustParsePrefix("198.51.100.2/24")},
	true:  {netip.MustParsePrefix("2001:db8:51::1/64"), netip.MustParsePrefix("2001:db8:51::2/64")},
}

// Underlay interfaces without a link header: all packets arrive, including fragments, and the wire below carries none
// of them in clear. TUN devices, whose packets a process forwards, exist on all kernels; the kernel matrix tests the
// others.
func TestTunnelOverBareIP(t *testing.T) {
	number := 24
	for name, kind := range bares {
		for _, ip6 := range []bool{false, true} { // with keys over IPv4, without over IPv6
			t.Run(fmt.Sprintf("%s, IPv6 underlay %v", name, ip6), func(t *testing.T) {
				needs(t, kind.probe)
				setup := func(g *topology) error { return setupBare(t, g, kind) }
				g := ready(t, prepare, config{name: "kerb", setup: setup}, load{ip6: ip6, underlay: 1500, service: 1500}, number)
				wire := tap(t, g, kind.carrier)
				awaitReachable(t, g)
				overBareIP(t, g)
				wire.check(t, g)
			})
			number++
		}
	}
}

// needs skips a test if a script fails in a new namespace. The kernel matrix supports all kinds.
func needs(t *testing.T, script string) {
	t.Helper()
	cmd := exec.Command("unshare", "--net", "sh", "-c", strings.ReplaceAll(script, "ip ", iproute2()+" "))
	if out, err := cmd.CombinedOutput(); err != nil {
		if os.Getenv("KERB_MATRIX") != "" {
			t.Fatalf("%s: %v: %s", script, err, out)
		}
		t.Skipf("this kernel refuses %q: %s", script, out)
	}
}

func setupBare(t *testing.T, g *topology, kind bare) error {
	start, err := kind.add(t, g)
	if err != nil {
		return err
	}
	addrs := deviceAddrs[g.ip6]
	for i := range g.labs {
		g.onNode(t, i, fmt.Sprintf("ip addr add %s dev %s", addrs[i], device))
		g.onNode(t, i, fmt.Sprintf("ip link set %s mtu %d up", device, deviceMTU))
	}
	start()
	configOf := func(int) map[string]any {
		var nodes []any
		for i, p := range addrs {
			subnets := []any{plans[i][0].String(), plans[i][1].String()}
			nodes = append(nodes, map[string]any{"address": p.Addr().String(), "subnets": subnets})
		}
		return map[string]any{"nodes": nodes}
	}
	return startKerb(g, !g.ip6, configOf, func(*netlab.Lab) string { return device })
}

// overBareIP sends all kinds of packets of services.
func overBareIP(t *testing.T, g *topology) {
	mtu := deviceMTU - 40
	if g.ip6 {
		mtu = deviceMTU - 52
	}
	for _, to := range []netip.Addr{g.server.Addr4(), g.server.Addr6()} {
		l := &live{t, g, to, mtu}
		l.learnsMTU()
		l.datagrams()
		l.stream()
	}
	l := &live{t, g, g.server.Addr4(), mtu}
	server := within(l, g.server, func() (net.PacketConn, error) {
		return net.ListenPacket("udp", netip.AddrPortFrom(l.to, livePort).String())
	})
	defer server.Close()
	client := l.dial("udp")
	defer client.Close()
	l.pathDiscovery(client, unix.IP_PMTUDISC_OMIT)
	for _, size := range []int{mtu - 28, mtu - 27, 1472, 3000} {
		l.arrives(client, server, size)
	}
}

// addTUN creates devices whose packets a process forwards to the peer device.
func addTUN(t *testing.T, g *topology) (start func(), err error) {
	var ends [2]*os.File
	for i, lab := range g.labs {
		if err := lab.Node().Do(func() (err error) { ends[i], err = traffic.OpenTUN(device); return }); err != nil {
			return nil, err
		}
		t.Cleanup(func() { ends[i].Close() })
	}
	return func() {
		go carry(ends[0], ends[1])
		go carry(ends[1], ends[0])
	}, nil
}

// carry copies packets until the devices are closed.
func carry(from, to *os.File) {
	packet := make([]byte, 1<<16)
	for {
		n, err := from.Read(packet)
		if err != nil {
			return
		}
		_, _ = to.Write(packet[:n])
	}
}
