// SPDX-License-Identifier: Apache-2.0

package tunnel

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/lab/traffic"
	"github.com/kerb-edge/kerb/modules/tunnel"
)

// underlays are the networks between the nodes. Services have the MTU of the underlay, as if there were no tunnel.
var underlays = map[string]struct {
	load
	mac bool
	mtu int // of inner packets
}{
	"IPv4":          {load{underlay: 1500, service: 1500}, false, 1500 - 32},
	"IPv4 with MAC": {load{underlay: 1500, service: 1500}, true, 1500 - 40},
	"IPv6 with MAC": {load{ip6: true, underlay: 1500, service: 1500}, true, 1500 - 60},
	"IPv6, jumbo":   {load{ip6: true, underlay: 9000, service: 9000}, false, 9000 - 52},
}

// Packets of all kinds between two services arrive, in both address families, over both underlays, up to the MTU.
// Larger packets are answered with ICMP errors, so that the sender learns the MTU.
func TestTunnelCarriesEverything(t *testing.T) {
	number := 5
	for name, u := range underlays {
		t.Run(name, func(t *testing.T) {
			way := config{name: "kerb", setup: func(g *topology) error { return setupKerb(g, u.mac) }}
			g := ready(t, prepare, way, u.load, number)
			awaitReachable(t, g)
			before := settled(t, g)
			for _, to := range []netip.Addr{g.server.Addr4(), g.server.Addr6()} {
				l := &live{t, g, to, u.mtu}
				t.Run(fmt.Sprintf("IPv%d", to.BitLen()/96*2+4), func(t *testing.T) {
					l.T = t
					l.ping()
					l.learnsMTU()
					l.datagrams()
					l.stream()
				})
			}
			before.check(t, g)
		})
		number++
	}
}

// The kernel's tunnel devices encapsulate, configured as in docs/tunnel.md.
func TestTunnelByDevice(t *testing.T) {
	number := 10
	for _, kind := range []string{"vxlan", "geneve"} {
		for _, ip6 := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, IPv6 underlay %v", kind, ip6), func(t *testing.T) {
				mtu := 1450
				if ip6 {
					mtu = 1430
				}
				way := config{name: "kerb", setup: func(g *topology) error { return setupDevice(g, kind, mtu) }}
				if !haveDevice(kind) {
					t.Skipf("this kernel has no %s", kind)
				}
				g := ready(t, prepare, way, load{ip6: ip6, underlay: 1500, service: 1500}, number)
				awaitReachable(t, g)
				before := settled(t, g)
				for _, to := range []netip.Addr{g.server.Addr4(), g.server.Addr6()} {
					l := &live{t, g, to, mtu}
					l.ping()
					l.learnsMTU()
					l.datagrams()
					l.stream()
				}
				before.check(t, g)
			})
			number++
		}
	}
}

// awaitReachable waits until the services reach each other, since nodes may not know their services yet.
func awaitReachable(t *testing.T, g *topology) {
	t.Helper()
	for _, to := range []netip.Addr{g.server.Addr4(), g.server.Addr6()} {
		l := &live{t, g, to, 0}
		l.ping()
	}
}

// iproute2 returns the path of ip. By name only, busybox would run its own ip, which ignores "external".
func iproute2() string {
	path, err := exec.LookPath("ip")
	if err != nil {
		return "ip"
	}
	return path
}

// haveDevice creates the device in a temporary namespace.
func haveDevice(kind string) bool {
	return exec.Command("unshare", "--net", iproute2(), "link", "add", "overlay0", "type", kind, "external").Run() == nil
}

func setupDevice(g *topology, kind string, mtu int) error {
	const device = "overlay0"
	for _, lab := range g.labs {
		args := []string{"link", "add", device, "type", kind, "external"}
		if kind == "vxlan" {
			args = append(args, "dstport", "4789", "nolearning")
		}
		for _, args := range [][]string{args, {"link", "set", device, "mtu", fmt.Sprint(mtu), "up"}} {
			if out, err := lab.Node().Command(context.Background(), iproute2(), args...).CombinedOutput(); err != nil {
				return fmt.Errorf("ip %v: %w: %s", args, err, out)
			}
		}
	}
	configOf := func(i int) map[string]any {
		return map[string]any{"mode": "device", "network": 7, "localAddresses": []any{g.node(i).String()}}
	}
	return startKerb(g, false, configOf, func(*netlab.Lab) string { return device })
}

// counts are the counts of both nodes, and the drops of full queues on the machine.
type counts struct {
	nodes [2]tunnel.Node
	full  uint64
}

func read(t *testing.T, g *topology) counts {
	t.Helper()
	losses, err := traffic.ReadLosses()
	if err != nil {
		t.Fatal(err)
	}
	return counts{[2]tunnel.Node{stats(t, g, 0), stats(t, g, 1)}, losses.Backlog}
}

// settled returns the counts after all packets in flight have arrived.
func settled(t *testing.T, g *topology) (now counts) {
	t.Helper()
	for before := (counts{}); ; before = now {
		if now = read(t, g); now.moved() == before.moved() {
			return now
		}
		time.Sleep(again) // packets in flight arrive between two readings
	}
}

func (c counts) moved() [4]uint64 {
	return [4]uint64{c.nodes[0].SentPackets, c.nodes[0].ReceivedPackets, c.nodes[1].SentPackets,
		c.nodes[1].ReceivedPackets}
}

// lost returns the number of packets sent since before that no node received.
func (c counts) lost(before counts) int64 {
	now, then := c.moved(), before.moved()
	return int64(now[0] + now[2] - then[0] - then[2] - (now[1] + now[3] - then[1] - then[3]))
}

// check reports packets of the other node that were dropped since before, and packets that no node received, except
// those dropped by full queues. It waits for packets in flight.
func (c counts) check(t *testing.T, g *topology) {
	t.Helper()
	now := read(t, g)
	for end := time.Now().Add(timeout); now.lost(c) > int64(now.full-c.full) && time.Now().Before(end); now = read(t, g) {
		time.Sleep(20 * time.Millisecond) // the rest is in flight
	}
	if now.lost(c) > int64(now.full-c.full) || now.nodes[0].Errors+now.nodes[1].Errors != c.nodes[0].Errors+
		c.nodes[1].Errors ||
		now.nodes[0].SentPackets == c.nodes[0].SentPackets {
		t.Errorf("before %+v\nnow %+v", c, now)
	}
}

// stats returns a node's status of the other one.
func stats(t *testing.T, g *topology, i int) tunnel.Node {
	t.Helper()
	var report tunnel.Report
	if err := g.agents[i].Get("/v1/modules/tunnel/nodes", &report); err != nil {
		t.Fatal(err)
	}
	for _, n := range report.Nodes {
		if !n.Local {
			return n
		}
	}
	t.Fatalf("%+v", report)
	return tunnel.Node{}
}

// live is a client and a server on two nodes.
type live struct {
	*testing.T
	*topology
	to  netip.Addr
	mtu int
}

// timeout limits tests, streamed is the number of bytes of a stream; emulated machines are 10 to 20 times
// slower.
var timeout, streamed = 30 * time.Second, 8 << 20

func init() {
	if os.Getenv("KERB_MATRIX") != "" {
		timeout, streamed = 10*timeout, streamed/8
	}
}

const (
	livePort = 7000
	again    = 200 * time.Millisecond // retransmission interval for packets that may be lost
)

func within[T any](l *live, h *netlab.Host, open func() (T, error)) (out T) {
	l.Helper()
	if err := h.Do(func() (err error) { out, err = open(); return err }); err != nil {
		l.Fatal(err)
	}
	return out
}

// headers returns the length of the IP and UDP headers.
func (l *live) headers() int {
	if l.to.Is4() {
		return 28
	}
	return 48
}

// ping sends five ICMP echo requests per second until a reply arrives.
func (l *live) ping() {
	l.Helper()
	family, proto, request, answer, head := unix.AF_INET, unix.IPPROTO_ICMP, byte(8), byte(0), 20
	if l.to.Is6() {
		family, proto, request, answer, head = unix.AF_INET6, unix.IPPROTO_ICMPV6, 128, 129, 0
	}
	fd := within(l, l.client, func() (int, error) { return unix.Socket(family, unix.SOCK_RAW, proto) })
	defer unix.Close(fd)
	limit := unix.NsecToTimeval(again.Nanoseconds())
	echo := append([]byte{request, 0, 0, 0, 0x12, 0x34, 0, 1}, bytes.Repeat([]byte{'k'}, 1000)...)
	if l.to.Is4() {
		binary.BigEndian.PutUint16(echo[2:], sum(echo))
	}
	var at unix.Sockaddr = &unix.SockaddrInet4{Addr: [4]byte(l.to.AsSlice()[:4])}
	if l.to.Is6() {
		at = &unix.SockaddrInet6{Addr: l.to.As16()}
	}
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit); err != nil {
		l.Fatal(err)
	}
	got := make([]byte, 2000)
	for range 150 {
		if err := unix.Sendto(fd, echo, 0, at); err != nil {
			l.Fatal(err)
		}
		for n, err := unix.Read(fd, got); err == nil; n, err = unix.Read(fd, got) {
			if n == head+len(echo) && got[head] == answer && bytes.Equal(got[head+4:n], echo[4:]) {
				return
			}
		}
	}
	l.Fatal("no echo")
}

func sum(data []byte) uint16 {
	var n uint32
	for i := 0; i < len(data); i += 2 {
		n += uint32(binary.BigEndian.Uint16(data[i:]))
	}
	return ^uint16(n>>16 + n&0xffff)
}

// bind returns the server's address, in the family that the client uses.
func (l *live) bind() netip.AddrPort {
	if l.to.Is4() {
		return netip.AddrPortFrom(l.server.Addr4(), livePort)
	}
	return netip.AddrPortFrom(l.server.Addr6(), livePort)
}

// echo starts a UDP echo server.
func (l *live) echo() net.PacketConn {
	l.Helper()
	server := within(l, l.server, func() (net.PacketConn, error) {
		return net.ListenPacket("udp", l.bind().String())
	})
	go func() {
		buffer := make([]byte, 1<<16)
		for {
			n, from, err := server.ReadFrom(buffer)
			if err != nil {
				return
			}
			_, _ = server.WriteTo(buffer[:n], from) // errors may report the MTU
		}
	}()
	return server
}

func (l *live) dial(network string) net.Conn {
	l.Helper()
	return within(l, l.client, func() (net.Conn, error) {
		return (&net.Dialer{Timeout: timeout}).DialContext(context.Background(), network,
			netip.AddrPortFrom(l.to, livePort).String())
	})
}

// learnsMTU sends a datagram that is one byte too large, and checks the path MTU that the client's kernel has learned.
// With an answer, it checks the server's.
func (l *live) learnsMTU() {
	l.Helper()
	server := l.echo()
	defer server.Close()
	client := l.dial("udp")
	defer client.Close()
	level, option := unix.IPPROTO_IP, unix.IP_MTU
	if l.to.Is6() {
		level, option = unix.IPPROTO_IPV6, unix.IPV6_MTU
	}
	raw, err := client.(*net.UDPConn).SyscallConn()
	if err != nil {
		l.Fatal(err)
	}
	known := 0
	for end := time.Now().Add(timeout); time.Now().Before(end); {
		_, _ = client.Write(make([]byte, l.mtu+1-l.headers()))
		time.Sleep(10 * time.Millisecond) // the answer is in flight
		_ = raw.Control(func(fd uintptr) { known, err = unix.GetsockoptInt(int(fd), level, option) })
		if known == l.mtu {
			return
		}
	}
	l.Errorf("the client's path MTU is %d, %v; want %d", known, err, l.mtu)
}

// datagrams checks that datagrams of many sizes are echoed, including those that are fragmented inside the tunnel.
func (l *live) datagrams() {
	l.Helper()
	server := l.echo()
	defer server.Close()
	client := l.dial("udp")
	defer client.Close()
	most := l.mtu - l.headers()
	sizes := []int{1, 2, 3, 17, 100, 101, 512, 1000, 1280, 1301, 1302, 1303, most - 1, most}
	for i, size := range append(sizes, most+1, 3000, 20000) {
		if !l.roundTrip(client, bytes.Repeat([]byte{byte(i + 1)}, size), i < len(sizes)) {
			l.Errorf("%d bytes do not come back", size)
		}
	}
}

// roundTrip sends a datagram and receives its echo. One that must be fragmented may be lost until its sender has
// learned the MTU.
func (l *live) roundTrip(client net.Conn, data []byte, first bool) bool {
	got := make([]byte, 1<<16)
	for try := 0; try < 50 && (try == 0 || !first); try++ {
		if _, err := client.Write(data); err != nil {
			continue
		}
		_ = client.SetReadDeadline(time.Now().Add(again))
		if first {
			_ = client.SetReadDeadline(time.Now().Add(timeout))
		}
		for {
			n, err := client.Read(got)
			if err != nil {
				break
			}
			if bytes.Equal(got[:n], data) {
				return true
			}
		}
	}
	return false
}

// stream sends some megabytes over TCP in both directions.
func (l *live) stream() {
	l.Helper()
	listener := within(l, l.server, func() (net.Listener, error) {
		return net.Listen("tcp", l.bind().String())
	})
	defer listener.Close()
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = io.Copy(conn, conn) // the client checks the bytes
	}()
	client := l.dial("tcp")
	defer client.Close()
	_ = client.SetDeadline(time.Now().Add(timeout))
	data := make([]byte, streamed)
	for i := range data {
		data[i] = byte(i * 7 >> 3)
	}
	go func() { _, _ = client.Write(data) }() // missing bytes are detected below
	got := make([]byte, len(data))
	if n, err := io.ReadFull(client, got); err != nil || !bytes.Equal(got, data) {
		l.Errorf("%d of %d bytes came back, %v", n, len(data), err)
	}
}
