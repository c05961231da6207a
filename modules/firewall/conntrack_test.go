// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/seed"
	"github.com/kerb-edge/kerb/sdk/sdktest"
)

// The same random conversations, honest and hostile packets, go through two routers: one with the firewall on the
// service's interface, one with nftables and strict connection tracking. Each packet is looked for on the other side of
// both. The firewall must pass no hostile packet that conntrack refuses, and refuse no honest one that conntrack
// passes. KERB_DIFF_PACKETS sets how many packets, 4000 by default; the long form:
//
//	KERB_DIFF_PACKETS=120000 go test -count=1 -timeout 60m -run TestAgainstConntrack -v ./modules/firewall
func TestAgainstConntrack(t *testing.T) {
	notEmulated(t)
	sdktest.NeedRoot(t)
	want := 4000
	if n, err := strconv.Atoi(os.Getenv("KERB_DIFF_PACKETS")); err == nil {
		want = n
	}
	r := rand.New(rand.NewPCG(seed.Of(t), 3))
	oneCPU(t)
	kerb, conntrack := newRouter(t, "fwk"), newRouter(t, "fwc")
	kerb.guardByFirewall(t)
	conntrack.guardByConntrack(t)
	mix, sums := &mixer{Rand: r}, map[string]*tally{}
	for sent := 0; sent < want; {
		batch := mix.batch(diffBatch)
		sent += len(batch)
		ours, theirs := kerb.through(t, batch), conntrack.through(t, batch)
		for i, p := range batch {
			if sums[p.kind] == nil {
				sums[p.kind] = &tally{}
			}
			sums[p.kind].add(ours[i], theirs[i])
			if p.hostile && ours[i] && !theirs[i] || !p.hostile && theirs[i] && !ours[i] {
				t.Errorf("packet %d (%s): firewall passes %t, conntrack %t; its conversation until then:\n%s",
					sent-len(batch)+i, p.kind, ours[i], theirs[i], mix.history(p, batch[:i+1], ours, theirs))
				if mix.failures++; mix.failures > 3 {
					t.FailNow()
				}
			}
		}
	}
	report(t, sums)
}

// tally counts packets of a kind by the routers that passed them.
type tally struct{ both, kerb, conntrack, neither int }

func (c *tally) add(kerb, conntrack bool) {
	switch {
	case kerb && conntrack:
		c.both++
	case kerb:
		c.kerb++
	case conntrack:
		c.conntrack++
	default:
		c.neither++
	}
}

// report fails if firewall and conntrack both drop honest packets: then these are not honest, or both are wrong.
func report(t *testing.T, sums map[string]*tally) {
	for kind, c := range sums {
		t.Logf("%-28s both pass %6d, firewall only %5d, conntrack only %5d, both refuse %6d", kind, c.both, c.kerb,
			c.conntrack, c.neither)
		if !strings.HasPrefix(kind, "hostile") && c.neither > 0 {
			t.Errorf("%d packets of the kind %s are refused", c.neither, kind)
		}
	}
}

// oneCPU pins the test to one CPU, on which a packet has passed a veth before the next one is sent.
func oneCPU(t *testing.T) {
	runtime.LockOSThread()
	var before, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		t.Fatal(err)
	}
	for cpu := range 1024 {
		if before.IsSet(cpu) {
			one.Set(cpu)
			break
		}
	}
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = unix.SchedSetaffinity(0, &before)
		runtime.UnlockOSThread()
	})
}

// router forwards between a service and a remote host. Both ends are packet sockets; the stacks of their hosts have no
// addresses and send nothing.
type router struct {
	lab      *netlab.Lab
	web, far *wireEnd
}

type wireEnd struct {
	host  *netlab.Host
	fd    int
	ether [14]byte // destination of frames to the router
}

// diffAddrs are the addresses of the two sides, the same on both routers.
var diffAddrs = map[string][2]string{"web": {"10.99.1.1/32", "fd99::101/128"}, "far": {"10.99.1.2/32", "fd99::102/128"}}

func diffAddr(name string, v4 bool) string {
	prefix := diffAddrs[name][1]
	if v4 {
		prefix = diffAddrs[name][0]
	}
	return netip.MustParsePrefix(prefix).Addr().String()
}

const (
	diffBatch   = 256
	diffPort    = 7777
	diffPrivate = 60000 // higher identifications are reserved for the test
)

func newRouter(t *testing.T, prefix string) *router {
	t.Helper()
	lab, err := netlab.NewIn(prefix)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { lab.Close() })
	r := &router{lab: lab}
	for name, end := range map[string]**wireEnd{"web": &r.web, "far": &r.far} {
		addrs := diffAddrs[name]
		host, err := lab.Host(name, netlab.HostOptions{Routed: true, Addr4: netip.MustParsePrefix(addrs[0]),
			Addr6: netip.MustParsePrefix(addrs[1])})
		if err != nil {
			t.Fatal(err)
		}
		if *end, err = newWireEnd(lab, host); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close((*end).fd) })
	}
	return r
}

func newWireEnd(lab *netlab.Lab, host *netlab.Host) (*wireEnd, error) {
	e := &wireEnd{host: host, fd: -1}
	err := lab.Node().Do(func() error {
		outer, err := netlink.LinkByIndex(host.OuterIndex())
		if err != nil {
			return err
		}
		copy(e.ether[:], outer.Attrs().HardwareAddr)
		copy(e.ether[6:], host.MAC())
		for _, addr := range [][]byte{host.Addr4().AsSlice(), host.Addr6().AsSlice()} {
			err = errors.Join(err, netlink.NeighSet(&netlink.Neigh{LinkIndex: host.OuterIndex(), State: netlink.NUD_PERMANENT,
				IP: addr, HardwareAddr: host.MAC()}))
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return e, host.Do(func() error { return e.open() })
}

// open removes the host's addresses, so that only the socket answers.
func (e *wireEnd) open() error {
	l, err := netlink.LinkByName(e.host.Interface())
	if err != nil {
		return err
	}
	addrs, err := netlink.AddrList(l, netlink.FAMILY_ALL)
	if err != nil {
		return err
	}
	for _, a := range addrs {
		if err := netlink.AddrDel(l, &a); err != nil {
			return err
		}
	}
	all := int(binary.NativeEndian.Uint16([]byte{0, unix.ETH_P_ALL}))
	if e.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, all); err != nil {
		return err
	}
	return errors.Join(unix.SetsockoptInt(e.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20),
		unix.SetsockoptTimeval(e.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 20}),
		unix.Bind(e.fd, &unix.SockaddrLinklayer{Protocol: uint16(all), Ifindex: l.Attrs().Index}))
}

func (r *router) guardByFirewall(t *testing.T) {
	k := loadFirewall(t, fmt.Sprintf(`{"state": {"pickup": "0s"}, "rules": [
		{"action": "allow", "direction": "ingress", "protocol": "tcp", "dstPort": %d},
		{"action": "allow", "direction": "ingress", "protocol": "udp", "dstPort": %d}]}`, diffPort, diffPort))
	err := r.lab.Node().Do(func() error {
		for attach, program := range map[ebpf.AttachType]*ebpf.Program{ebpf.AttachTCXIngress: k.egress,
			ebpf.AttachTCXEgress: k.ingress()} {
			l, err := link.AttachTCX(link.TCXOptions{Interface: r.web.host.OuterIndex(), Program: program, Attach: attach})
			if err != nil {
				return err
			}
			t.Cleanup(func() { l.Close() })
		}
		return nil
	})
	if errors.Is(err, link.ErrNotSupported) {
		t.Skip("needs TCX")
	}
	if err != nil {
		t.Fatal(err)
	}
}

func (r *router) guardByConntrack(t *testing.T) {
	rules := fmt.Sprintf(`table inet strict {
	chain forward {
		type filter hook forward priority 0; policy drop;
		ct state invalid drop
		ct state established,related accept
		iifname %q accept
		ct state new tcp dport %d tcp flags & (fin|syn|rst|ack) == syn accept
		ct state new udp dport %d accept
	}
}
`, r.web.host.Outer(), diffPort, diffPort)
	err := r.lab.Node().Do(func() error {
		return os.WriteFile("/proc/sys/net/netfilter/nf_conntrack_tcp_loose", []byte("0"), 0o644)
	})
	if err != nil {
		t.Fatal(err)
	}
	nft := r.lab.Node().Command(t.Context(), "nft", "-f", "-")
	nft.Stdin = strings.NewReader(rules)
	if out, err := nft.CombinedOutput(); err != nil {
		t.Fatalf("nft: %v\n%s", err, out)
	}
}

// through sends a batch of packets and returns which of them arrived. A final marker packet, which both routers pass,
// ends the batch.
func (r *router) through(t *testing.T, batch []planned) []bool {
	t.Helper()
	out := make([]bool, len(batch))
	for i, p := range batch {
		r.from(p.ingress).send(t, p.bytes(i))
	}
	for _, ingress := range []bool{true, false} {
		fence := udp(diffAddr("web", true), 9, diffAddr("far", true), 9)
		if ingress {
			fence = udp(diffAddr("far", true), 9, diffAddr("web", true), diffPort)
		}
		r.from(ingress).send(t, ipBytes(&fence, diffPrivate))
		for id := 0; id != diffPrivate; {
			packet := r.from(!ingress).receive(t)
			id = idOf(packet)
			if id < len(out) && batch[id].ingress == ingress && sameAddrs(packet, batch[id].bytes(id)) {
				out[id] = true
			}
		}
	}
	return out
}

func (r *router) from(ingress bool) *wireEnd {
	if ingress {
		return r.far
	}
	return r.web
}

func (e *wireEnd) send(t *testing.T, packet []byte) {
	t.Helper()
	ether := e.ether
	binary.BigEndian.PutUint16(ether[12:], unix.ETH_P_IP)
	if packet[0]>>4 == 6 {
		binary.BigEndian.PutUint16(ether[12:], unix.ETH_P_IPV6)
	}
	if _, err := unix.Write(e.fd, append(ether[:], packet...)); err != nil {
		t.Fatal(err)
	}
}

// receive returns the next received packet from its IP header on, or nil for a frame without one.
func (e *wireEnd) receive(t *testing.T) []byte {
	t.Helper()
	buf := make([]byte, 2048)
	n, from, err := unix.Recvfrom(e.fd, buf, 0)
	if err != nil {
		t.Fatalf("the last packet of a batch does not arrive: %v", err)
	}
	if at, ok := from.(*unix.SockaddrLinklayer); n < 34 || ok && at.Pkttype == unix.PACKET_OUTGOING {
		return nil
	}
	return buf[14:n]
}

// idOf returns the identification that ipBytes set, or a value above all of them if it is not an IP packet.
func idOf(packet []byte) int {
	switch {
	case len(packet) >= 20 && packet[0]>>4 == 4:
		return int(binary.BigEndian.Uint16(packet[4:]))
	case len(packet) >= 40 && packet[0]>>4 == 6:
		return int(binary.BigEndian.Uint32(packet) & 0xfffff)
	}
	return diffPrivate + 1
}

// sameAddrs distinguishes a packet of the test from a packet of the kernel with the same identification, such as
// multicast listener reports with flow label 0.
func sameAddrs(a, b []byte) bool {
	if a[0]>>4 != b[0]>>4 {
		return false
	}
	if a[0]>>4 == 4 {
		return bytes.Equal(a[12:20], b[12:20])
	}
	return bytes.Equal(a[8:40], b[8:40])
}

// planned is a packet of a conversation.
type planned struct {
	Packet
	kind         string
	hostile      bool
	ingress      bool
	conversation int
}

func (p *planned) bytes(id int) []byte {
	return ipBytes(&p.Packet, id)
}

func (m *mixer) history(p planned, batch []planned, ours, theirs []bool) string {
	var s strings.Builder
	for i, q := range batch {
		if q.conversation == p.conversation {
			fmt.Fprintf(&s, "  %-28s ingress %-5t flags %02x seq %10d ack %10d win %5d scale %d len %4d: firewall %t, "+
				"conntrack %t\n",
				q.kind, q.ingress, q.TCPFlags, q.Seq, q.Ack, q.Win, q.Scale, q.Len, ours[i], theirs[i])
		}
	}
	return s.String()
}
