// SPDX-License-Identifier: Apache-2.0

package tunnel

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/lab/netlab"
)

// Underlay interfaces without link header, as WireGuard and XFRM interfaces are: here a TUN device on each node, whose packets a process
// carries over. Everything arrives, fragments included.
func TestTunnelOverBareIP(t *testing.T) {
	const device = "bare0"
	addrs := [2]netip.Addr{netip.MustParseAddr("192.0.2.129"), netip.MustParseAddr("192.0.2.130")}
	var ends [2]*os.File
	raise := func(g *ground) (closer, error) {
		for i, lab := range g.labs {
			if err := lab.Node().Do(func() (err error) { ends[i], err = openTUN(device); return }); err != nil {
				return nil, err
			}
			t.Cleanup(func() { ends[i].Close() })
			for _, args := range [][]string{{"addr", "add", addrs[i].String() + "/29", "dev", device}, {"link", "set", device, "mtu", "1420", "up"}} {
				if out, err := lab.Node().Command(context.Background(), "ip", args...).CombinedOutput(); err != nil {
					return nil, fmt.Errorf("ip %v: %w: %s", args, err, out)
				}
			}
		}
		go carry(ends[0], ends[1])
		go carry(ends[1], ends[0])
		configOf := func(int) map[string]any {
			var nodes []any
			for i := range addrs {
				nodes = append(nodes, map[string]any{"address": addrs[i].String(), "subnets": []any{plans[i][0].String(), plans[i][1].String()}})
			}
			return map[string]any{"nodes": nodes}
		}
		return startKerb(g, true, configOf, func(*netlab.Lab) string { return device })
	}
	g := ready(t, prepare, config{name: "kerb", raise: raise}, load{underlay: 1500, service: 1500}, 24)
	meet(t, g)
	const mtu = 1380
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
	if n := stats(t, g, 0); n.Interface != device || n.Errors != 0 {
		t.Errorf("%+v", n)
	}
}

func openTUN(name string) (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	req, err := unix.NewIfreq(name)
	if err != nil {
		return nil, err
	}
	req.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, req); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// carry ends when the devices are closed.
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
