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

// underlays are what lies between the nodes. Services have the MTU of the underlay, as those have that know of no
// tunnel.
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

// Whatever two services say to each other arrives, in both families, over both underlays, at sizes up to what fits; and
// what does not fit is answered, so that the sender knows.
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

// The kernel's own tunnel devices do the wrapping, made as docs/tunnel.md says.
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

// awaitReachable waits until the services reach each other: the first packets meet a node that does not know its
// services yet.
func awaitReachable(t *testing.T, g *topology) {
	t.Helper()
	for _, to := range []netip.Addr{g.server.Addr4(), g.server.Addr6()} {
		l := &live{t, g, to, 0}
		l.ping()
	}
}

// iproute2 is its path: by the mere name busybox would run an ip of its own, which makes such devices without
// "external".
func iproute2() string {
	path, err := exec.LookPath("ip")
	if err != nil {
		return "ip"
	}
	return path
}

// haveDevice tries in a namespace that ends with the command.
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

// counts are those of both nodes, and what full queues of the machine have dropped.
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

// settled are the counts when nothing is on its way any more.
func settled(t *testing.T, g *topology) (now counts) {
	t.Helper()
	for before := (counts{}); ; before = now {
		if now = read(t, g); now.moved() == before.moved() {
			return now
		}
		time.Sleep(again) // what is on its way arrives between two readings
	}
}

func (c counts) moved() [4]uint64 {
	return [4]uint64{c.nodes[0].SentPackets, c.nodes[0].ReceivedPackets, c.nodes[1].SentPackets,
		c.nodes[1].ReceivedPackets}
}

// lost is the number of packets sent since before that no node received.
func (c counts) lost(before counts) int64 {
	now, then := c.moved(), before.moved()
	return int64(now[0] + now[2] - then[0] - then[2] - (now[1] + now[3] - then[1] - then[3]))
}

// check reports packets of the other node that were dropped since before, and packets that no node received, except
// those that found a queue full. The last ones may be in flight.
func (c counts) check(t *testing.T, g *topology) {
	t.Helper()
	now := read(t, g)
	for end := time.Now().Add(patience); now.lost(c) > int64(now.full-c.full) && time.Now().Before(end); now = read(t, g) {
		time.Sleep(20 * time.Millisecond) // the rest is on its way
	}
	if now.lost(c) > int64(now.full-c.full) || now.nodes[0].Errors+now.nodes[1].Errors != c.nodes[0].Errors+
		c.nodes[1].Errors ||
		now.nodes[0].SentPackets == c.nodes[0].SentPackets {
		t.Errorf("before %+v\nnow %+v", c, now)
	}
}

// stats are what a node knows of the other one.
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

// patience ends tests that hang, and streamed is how many bytes a stream has; emulated machines are 10 to 20 times
// slower.
var patience, streamed = 30 * time.Second, 8 << 20

func init() {
	if os.Getenv("KERB_MATRIX") != "" {
		patience, streamed = 10*patience, streamed/8
	}
}

const (
	livePort = 7000
	again    = 200 * time.Millisecond // is when a packet is sent again that may be lost
)

func within[T any](l *live, h *netlab.Host, open func() (T, error)) (out T) {
	l.Helper()
	if err := h.Do(func() (err error) { out, err = open(); return err }); err != nil {
		l.Fatal(err)
	}
	return out
}

// headers are IP and UDP.
func (l *live) headers() int {
	if l.to.Is4() {
		return 28
	}
	return 48
}

// ping sends ICMP echoes, five a second, and gets an answer.
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

// bind is where the server listens, in the family of the address that the client uses.
func (l *live) bind() netip.AddrPort {
	if l.to.Is4() {
		return netip.AddrPortFrom(l.server.Addr4(), livePort)
	}
	return netip.AddrPortFrom(l.server.Addr6(), livePort)
}

// echo is a UDP server that sends everything back.
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
			_, _ = server.WriteTo(buffer[:n], from) // what it learns of the MTU may be an error
		}
	}()
	return server
}

func (l *live) dial(network string) net.Conn {
	l.Helper()
	return within(l, l.client, func() (net.Conn, error) {
		return (&net.Dialer{Timeout: patience}).DialContext(context.Background(), network,
			netip.AddrPortFrom(l.to, livePort).String())
	})
}

// learnsMTU sends a datagram that is one byte too large, and asks the kernel of the client, and by an answer that of
// the server, what it knows then.
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
	for end := time.Now().Add(patience); time.Now().Before(end); {
		_, _ = client.Write(make([]byte, l.mtu+1-l.headers()))
		time.Sleep(10 * time.Millisecond) // the answer is on its way
		_ = raw.Control(func(fd uintptr) { known, err = unix.GetsockoptInt(int(fd), level, option) })
		if known == l.mtu {
			return
		}
	}
	l.Errorf("the client's path MTU is %d, %v; want %d", known, err, l.mtu)
}

// datagrams of many sizes come back, those that have to be fragmented inside too.
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

// roundTrip sends a datagram. One that has to be fragmented may be lost until its sender knows the MTU.
func (l *live) roundTrip(client net.Conn, data []byte, first bool) bool {
	got := make([]byte, 1<<16)
	for try := 0; try < 50 && (try == 0 || !first); try++ {
		if _, err := client.Write(data); err != nil {
			continue
		}
		_ = client.SetReadDeadline(time.Now().Add(again))
		if first {
			_ = client.SetReadDeadline(time.Now().Add(patience))
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

// stream sends some megabytes over TCP and back.
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
		_, _ = io.Copy(conn, conn) // the client counts
	}()
	client := l.dial("tcp")
	defer client.Close()
	_ = client.SetDeadline(time.Now().Add(patience))
	data := make([]byte, streamed)
	for i := range data {
		data[i] = byte(i * 7 >> 3)
	}
	go func() { _, _ = client.Write(data) }() // what is missing is seen below
	got := make([]byte, len(data))
	if n, err := io.ReadFull(client, got); err != nil || !bytes.Equal(got, data) {
		l.Errorf("%d of %d bytes came back, %v", n, len(data), err)
	}
}
