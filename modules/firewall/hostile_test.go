// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/sdk"
	"github.com/kerb-edge/kerb/sdk/sdktest"
)

// bridged has two hosts on a bridge: a tenant, whose packets are filtered, and a neighbour.
type bridged struct {
	t                 *testing.T
	lab               *netlab.Lab
	tenant, neighbour *netlab.Host
}

func newBridged(t *testing.T) *bridged {
	t.Helper()
	sdktest.NeedRoot(t)
	lab, err := netlab.NewIn("fwho")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { lab.Close() })
	b := &bridged{t: t, lab: lab}
	for name, host := range map[string]**netlab.Host{"tenant": &b.tenant, "neighbour": &b.neighbour} {
		if *host, err = lab.Host(name, netlab.HostOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

// filter attaches the firewall to the tenant's interface, as for a service. The returned function detaches it.
func (b *bridged) filter(k *kernel) {
	b.t.Helper()
	b.attach(netlink.HANDLE_MIN_INGRESS, k.egress.FD())
	b.attach(netlink.HANDLE_MIN_EGRESS, k.ingress().FD())
	k.open(b.live(k)).AttachmentChanged(sdk.Attachment{}, true)
}

func (b *bridged) attach(parent uint32, fd int) {
	b.t.Helper()
	filter := &netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{LinkIndex: b.tenant.OuterIndex(), Parent: parent, Handle: 1,
			Protocol: unix.ETH_P_ALL, Priority: 1},
		Fd: fd, Name: "kerb_test", DirectAction: true,
	}
	err := b.lab.Node().Do(func() error {
		attrs := netlink.QdiscAttrs{LinkIndex: b.tenant.OuterIndex(), Handle: netlink.MakeHandle(0xffff, 0),
			Parent: netlink.HANDLE_CLSACT}
		if err := netlink.QdiscReplace(&netlink.GenericQdisc{QdiscAttrs: attrs, QdiscType: "clsact"}); err != nil {
			return err
		}
		return netlink.FilterReplace(filter)
	})
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { b.lab.Node().Do(func() error { return netlink.FilterDel(filter) }) })
}

// live returns the control plane's view of the tenant.
func (b *bridged) live(k *kernel) sdk.Live {
	return sdk.Live{Module: "fw", Maps: k.maps, Attachments: func() []sdk.Attachment {
		return []sdk.Attachment{{Service: "tenant", Interface: b.tenant.Outer(), Ifindex: uint32(b.tenant.OuterIndex()),
			Addresses: []string{b.tenant.Addr4().String() + "/16", b.tenant.Addr6().String() + "/64"},
			MAC:       b.tenant.MAC().String()}}
	}}
}

// nft loads a rule set into the node's namespace until the test ends.
func (b *bridged) nft(rules string) {
	b.t.Helper()
	err := b.lab.Node().Do(func() error {
		cmd := exec.Command("nft", "-f", "-")
		cmd.Stdin = strings.NewReader(rules)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("nft: %w: %s", err, out)
		}
		return nil
	})
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() {
		b.lab.Node().Do(func() error { return exec.Command("nft", "delete", "table", "bridge", "kerbtest").Run() })
	})
}

// wire sends frames from one host and checks which of them arrive at the other.
type wire struct {
	t        *testing.T
	from, to *netlab.Host
	out, in  int
	marker   func(n uint32) []byte // a frame that always passes
	sent     uint32
}

func (b *bridged) wire(from, to *netlab.Host) *wire {
	b.t.Helper()
	w := &wire{t: b.t, from: from, to: to, out: packetSocket(b.t, from), in: packetSocket(b.t, to)}
	w.marker = func(n uint32) []byte {
		p := udp(from.Addr4().String(), 7777, to.Addr4().String(), 7777)
		f := macs(frame{Packet: p, payload: 64}.bytes(), to.MAC(), from.MAC())
		binary.BigEndian.PutUint32(f[len(f)-4:], n)
		return f
	}
	return w
}

func packetSocket(t *testing.T, h *netlab.Host) (fd int) {
	t.Helper()
	err := h.Do(func() (err error) {
		at, err := net.InterfaceByName(h.Interface())
		if err != nil {
			return err
		}
		all := int(binary.NativeEndian.Uint16([]byte{0, unix.ETH_P_ALL}))
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, all); err != nil {
			return err
		}
		if err := unix.Bind(fd, &unix.SockaddrLinklayer{Ifindex: at.Index, Protocol: uint16(all)}); err != nil {
			return err
		}
		if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1); err != nil {
			return err
		}
		mreq := &unix.PacketMreq{Ifindex: int32(at.Index), Type: unix.PACKET_MR_PROMISC}
		if err := unix.SetsockoptPacketMreq(fd, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP, mreq); err != nil {
			return err
		}
		timeout := unix.NsecToTimeval(int64(10 * time.Second))
		return unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout)
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

// arrives sends a frame, and reports whether it arrives.
func (w *wire) arrives(frame []byte) bool {
	w.t.Helper()
	untagged := slices.Concat(frame[:12], frame[min(16, len(frame)):]) // the kernel removes the outermost tag
	arrived := w.after(func() error {
		_, err := unix.Write(w.out, frame)
		return err
	})
	return slices.ContainsFunc(arrived, func(got []byte) bool {
		return bytes.Equal(got, frame) || bytes.Equal(got, untagged)
	})
}

// after sends frames and then a marker, and returns the frames that arrive before the marker. All use the same path on
// one CPU, so that they stay in order.
func (w *wire) after(send func() error) (arrived [][]byte) {
	w.t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var cpus, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &cpus); err != nil {
		w.t.Fatal(err)
	}
	defer unix.SchedSetaffinity(0, &cpus)
	one.Set(firstCPU(&cpus))
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		w.t.Fatal(err)
	}
	w.sent++
	end := w.marker(w.sent)
	if err := send(); err != nil {
		w.t.Fatalf("send: %v", err)
	}
	if _, err := unix.Write(w.out, end); err != nil {
		w.t.Fatalf("send the marker: %v", err)
	}
	buf := make([]byte, 1<<16)
	for {
		n, err := unix.Read(w.in, buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			w.t.Fatalf("the marker did not arrive: %v", err)
		}
		if bytes.Equal(buf[:n], end) {
			return arrived
		}
		arrived = append(arrived, slices.Clone(buf[:n]))
	}
}

func firstCPU(set *unix.CPUSet) int {
	for i := range 1024 {
		if set.IsSet(i) {
			return i
		}
	}
	return 0
}

// arrive returns the names of the frames that arrive.
func (w *wire) arrive(frames []hostile) map[string]bool {
	w.t.Helper()
	out := map[string]bool{}
	for _, f := range frames {
		if w.arrives(f.frame) {
			out[f.name] = true
		}
	}
	return out
}

// macs sets the addresses of a frame.
func macs(f []byte, dst, src net.HardwareAddr) []byte {
	copy(f, dst)
	copy(f[6:], src)
	return f
}

// hostile is a kind of frame. Honest ones must pass every firewall.
type hostile struct {
	name   string
	frame  []byte
	honest bool
}

// hostiles generates frames of every kind, from one host to another. gateway is a third party on the link.
type hostiles struct {
	src, dst, gateway    net.HardwareAddr
	src4, dst4, gateway4 netip.Addr
	src6, dst6, gateway6 netip.Addr
	all                  []hostile
}

func hostileFrames(from, to *netlab.Host, lab *netlab.Lab) []hostile {
	h := &hostiles{src: from.MAC(), dst: to.MAC(), gateway: net.HardwareAddr{2, 0xee, 0, 0, 0, 1}, src4: from.Addr4(),
		dst4: to.Addr4(),
		src6: from.Addr6(), dst6: to.Addr6(), gateway4: lab.Gateway4(), gateway6: lab.Gateway6()}
	h.etherTypes()
	h.tags()
	h.protocols()
	h.arp()
	h.discovery()
	h.groups()
	h.headers()
	h.service()
	return h.all
}

func (h *hostiles) add(name string, frame []byte) { h.all = append(h.all, hostile{name, frame, false}) }

func (h *hostiles) addHonest(name string, frame []byte) {
	h.all = append(h.all, hostile{name, frame, true})
}

// ether returns a frame of any EtherType.
func (h *hostiles) ether(etherType uint16, body []byte) []byte {
	out := binary.BigEndian.AppendUint16(macs(make([]byte, 12), h.dst, h.src), etherType)
	return append(out, body...)
}

// udp4 returns an IPv4 packet to a port that no rule allows, except 7777.
func (h *hostiles) udp4(port uint16) frame {
	return frame{Packet: udp(h.src4.String(), 4000, h.dst4.String(), port), payload: 30}
}

func (h *hostiles) udp6(port uint16) frame {
	return frame{Packet: udp(h.src6.String(), 4000, h.dst6.String(), port), payload: 30}
}

func (h *hostiles) ip(f frame) []byte { return macs(f.bytes(), h.dst, h.src) }

func (h *hostiles) etherTypes() {
	inner := h.udp4(7777).bytes()
	for _, t := range []struct {
		name   string
		number uint16
		header int
	}{
		{"MPLS unicast", 0x8847, 4}, {"MPLS multicast", 0x8848, 4}, {"PPPoE discovery", 0x8863, 6},
		{"PPPoE session", 0x8864, 8},
		{"802.1ah", 0x88e7, 18}, {"NSH", 0x894f, 8}, {"HSR", 0x892f, 6}, {"PRP", 0x88fb, 6}, {"batman", 0x4305, 10},
		{"TRILL", 0x22f3, 6},
		{"MACsec", 0x88e5, 8}, {"local experimental 1", 0x88b5, 0}, {"local experimental 2", 0x88b6, 0}, {"EAPOL", 0x888e, 4},
		{"loopback", 0x9000, 2}, {"RARP", 0x8035, 28}, {"LLDP", 0x88cc, 0}, {"LACP", 0x8809, 0}, {"PTP", 0x88f7, 0},
		{"FCoE", 0x8906, 0},
		{"AoE", 0x88a2, 0}, {"PROFINET", 0x8892, 0}, {"EtherCAT", 0x88a4, 0}, {"CFM", 0x8902, 0}, {"IPX", 0x8137, 0},
		{"AppleTalk", 0x809b, 0},
		{"transparent bridging", 0x6558, 0}, {"WoL", 0x0842, 0}, {"Cisco tag", 0x8909, 0}, {"zero type", 0x0600, 0},
		{"last type", 0xffff, 0},
	} {
		h.add(t.name, h.ether(t.number, append(make([]byte, t.header), inner[14:]...)))
	}
	llc := append([]byte{0xaa, 0xaa, 3, 0, 0, 0, 8, 0}, inner[14:]...)
	h.add("LLC SNAP with IP", h.ether(uint16(len(llc)), llc))
	bare := append([]byte{0x42, 0x42, 3}, make([]byte, 40)...)
	h.add("LLC spanning tree to a host", h.ether(uint16(len(bare)), bare))
	h.add("LLC NetBEUI", h.ether(uint16(len(bare)), append([]byte{0xf0, 0xf0, 3}, make([]byte, 40)...)))
	h.add("IPv6 type with IPv4", h.ether(0x86dd, inner[14:]))
	h.add("IPv4 type with IPv6", h.ether(0x0800, h.udp6(7777).bytes()[14:]))
}

func (h *hostiles) tags() {
	inner := h.udp4(22).bytes()[12:]
	for _, tag := range []uint16{0x8100, 0x88a8, 0x9100, 0x9200} {
		for depth := 1; depth <= 8; depth++ {
			f := macs(make([]byte, 12), h.dst, h.src)
			for range depth {
				f = binary.BigEndian.AppendUint16(f, tag)
				f = append(f, 0, 5)
			}
			h.add(fmt.Sprintf("%d tags %#x", depth, tag), append(f, inner...))
		}
	}
}

func (h *hostiles) protocols() {
	for _, p := range []int{0, 1, 3, 4, 5, 6, 8, 17, 27, 33, 41, 46, 47, 50, 51, 55, 59, 80, 88, 89, 94, 97, 98, 103, 108,
		112, 115, 124, 132, 136, 137, 139, 253, 255} {
		f := h.udp4(22)
		f.Proto, f.payload = p, 40
		h.add(fmt.Sprintf("protocol %d", p), h.ip(f))
	}
}

func (h *hostiles) arp() {
	packet := func(op byte, mac net.HardwareAddr, ip netip.Addr) []byte {
		out := []byte{0, 1, 8, 0, 6, 4, 0, op}
		out = append(append(out, mac...), ip.AsSlice()...)
		out = append(append(out, h.dst...), h.dst4.AsSlice()...)
		return append(out, make([]byte, 18)...)
	}
	h.addHonest("ARP request", h.ether(0x0806, packet(1, h.src, h.src4)))
	h.addHonest("ARP reply", h.ether(0x0806, packet(2, h.src, h.src4)))
	h.addHonest("ARP probe", h.ether(0x0806, packet(1, h.src, netip.IPv4Unspecified())))
	h.add("ARP reply for the gateway", h.ether(0x0806, packet(2, h.src, h.gateway4)))
	h.add("ARP request as the gateway", h.ether(0x0806, packet(1, h.src, h.gateway4)))
	h.add("ARP reply for a neighbour", h.ether(0x0806, packet(2, h.src, h.dst4)))
	h.add("ARP reply with a strange MAC", h.ether(0x0806, packet(2, h.gateway, h.src4)))
	h.add("ARP from a strange MAC", macs(h.ether(0x0806, packet(2, h.gateway, h.gateway4)), h.dst, h.gateway))
	h.add("ARP of another hardware", h.ether(0x0806, append([]byte{0, 6}, packet(1, h.src, h.src4)[2:]...)))
	h.add("ARP cut", h.ether(0x0806, packet(1, h.src, h.src4)[:20]))
	h.add("ARP for the gateway in a tag", h.ether(0x8100, append([]byte{0, 5, 8, 6}, packet(2, h.src, h.gateway4)...)))
}

// icmp6 returns a message of neighbour or multicast listener discovery.
func (h *hostiles) icmp6(src, dst netip.Addr, hops uint8, ext []int, body ...byte) []byte {
	inner := frame{Packet: Packet{Src: src, Dst: dst, Proto: protoICMPv6, HopLimit: hops, ICMPType: body[0]}, ext: ext,
		payload: len(body) - 8}
	f := h.ip(inner)
	copy(f[len(f)-len(body):], body)
	at := len(f) - len(body)
	if !slices.Contains(ext, 44) {
		binary.BigEndian.PutUint16(f[at+2:], icmp6Checksum(src, dst, f[at:]))
	}
	return f
}

func icmp6Checksum(src, dst netip.Addr, message []byte) uint16 {
	message = slices.Clone(message)
	message[2], message[3] = 0, 0
	all := slices.Concat(src.AsSlice(), dst.AsSlice(), []byte{0, 0, 0, byte(len(message)), 0, 0, 0, protoICMPv6}, message)
	sum := uint32(0)
	for i := 0; i+1 < len(all); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(all[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

func (h *hostiles) discovery() {
	routers, nodes, local := netip.MustParseAddr("ff02::2"), netip.MustParseAddr("ff02::1"), linkLocal([6]byte(h.src))
	option := func(kind byte, mac net.HardwareAddr) []byte { return append([]byte{kind, 1}, mac...) }
	message := func(kind byte, flags byte, target netip.Addr, options ...byte) []byte {
		out := []byte{kind, 0, 0, 0, flags, 0, 0, 0}
		if target.IsValid() {
			out = append(out, target.AsSlice()...)
		}
		return append(out, options...)
	}
	none := netip.Addr{}
	ra := append([]byte{134, 0, 0, 0, 64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0}, option(1, h.src)...)
	redirect := append(message(137, 0, h.gateway6), h.dst6.AsSlice()...)
	h.addHonest("NS", h.icmp6(h.src6, h.dst6, 255, nil, message(135, 0, h.dst6, option(1, h.src)...)...))
	h.addHonest("NA", h.icmp6(h.src6, h.dst6, 255, nil, message(136, 0x60, h.src6, option(2, h.src)...)...))
	h.addHonest("RS", h.icmp6(local, routers, 255, nil, message(133, 0, none, option(1, h.src)...)...))
	h.addHonest("DAD", h.icmp6(netip.IPv6Unspecified(), nodes, 255, nil, message(135, 0, h.src6)...))
	h.add("DAD for the gateway", h.icmp6(netip.IPv6Unspecified(), nodes, 255, nil, message(135, 0, h.gateway6)...))
	h.add("NA spoof of the gateway",
		h.icmp6(h.src6, h.dst6, 255, nil, message(136, 0xe0, h.gateway6, option(2, h.src)...)...))
	h.add("NA from the gateway",
		h.icmp6(h.gateway6, h.dst6, 255, nil, message(136, 0xe0, h.gateway6, option(2, h.src)...)...))
	h.add("NA with a strange MAC",
		h.icmp6(h.src6, h.dst6, 255, nil, message(136, 0x60, h.src6, option(2, h.gateway)...)...))
	h.add("NS with a strange MAC", h.icmp6(h.src6, h.dst6, 255, nil, message(135, 0, h.dst6, option(1, h.gateway)...)...))
	h.add("NS as the gateway", h.icmp6(h.gateway6, h.dst6, 255, nil, message(135, 0, h.dst6, option(1, h.src)...)...))
	h.add("NS from beyond", h.icmp6(h.src6, h.dst6, 64, nil, message(135, 0, h.dst6)...))
	h.add("RA", h.icmp6(local, nodes, 255, nil, ra...))
	tagged := h.icmp6(local, nodes, 255, nil, ra...)
	h.add("RA vlan", slices.Concat(tagged[:12], []byte{0x81, 0, 0, 5}, tagged[12:]))
	h.add("RA vlan 0", slices.Concat(tagged[:12], []byte{0x81, 0, 0, 0}, tagged[12:]))
	h.add("RA ext hdr", h.icmp6(local, nodes, 255, []int{60}, ra...))
	h.add("RA hop-by-hop", h.icmp6(local, nodes, 255, []int{0}, ra...))
	h.add("RA frag", h.icmp6(local, nodes, 255, []int{44}, ra...))
	h.add("RA frag and ext hdr", h.icmp6(local, nodes, 255, []int{44, 60}, ra...))
	h.add("Redirect", h.icmp6(local, h.dst6, 255, nil, redirect...))
	h.add("Redirect frag", h.icmp6(local, h.dst6, 255, []int{44}, redirect...))
	h.add("NS frag", h.icmp6(h.src6, h.dst6, 255, []int{44}, message(135, 0, h.dst6)...))
	h.add("NA ext hdr", h.icmp6(h.src6, h.dst6, 255, []int{60}, message(136, 0x60, h.src6)...))
	h.add("inverse NS", h.icmp6(h.src6, h.dst6, 255, nil, message(141, 0, none)...))
	h.add("node information", h.icmp6(h.src6, h.dst6, 255, nil, message(139, 0, none, make([]byte, 24)...)...))
	h.add("router renumbering", h.icmp6(h.src6, h.dst6, 255, nil, message(138, 0, none)...))
	h.add("echo request 6", h.icmp6(h.src6, h.dst6, 64, nil, message(128, 0, none)...))
}

// groups returns messages of multicast group protocols, and DHCP.
func (h *hostiles) groups() {
	local, all := linkLocal([6]byte(h.src)), netip.MustParseAddr("ff02::16")
	record := append([]byte{4, 0, 0, 0}, netip.MustParseAddr("ff05::1").AsSlice()...)
	h.addHonest("MLD report", h.icmp6(local, all, 1, []int{0}, append([]byte{143, 0, 0, 0, 0, 0, 0, 1}, record...)...))
	h.add("MLD query", h.icmp6(local, netip.MustParseAddr("ff02::1"), 1, []int{0},
		append([]byte{130, 0, 0, 0, 0, 100, 0, 0}, make([]byte, 16)...)...))
	h.add("MLD report from beyond", h.icmp6(h.src6, all, 64, nil, append([]byte{143, 0, 0, 0, 0, 0, 0, 1}, record...)...))
	igmp := func(kind byte, dst string, ttl byte) []byte {
		f := h.ip(frame{Packet: Packet{Src: h.src4, Dst: addr(dst), Proto: 2}, payload: 16})
		f[22], f[34] = ttl, kind
		return f
	}
	h.addHonest("IGMP report", igmp(0x22, "224.0.0.22", 1))
	h.addHonest("IGMP 2 report", igmp(0x16, "239.1.2.3", 1))
	h.add("IGMP query", igmp(0x11, "224.0.0.1", 1))
	h.add("IGMP from beyond", igmp(0x22, "224.0.0.22", 64))
	h.add("IGMP to a host", igmp(0x22, h.dst4.String(), 1))
	h.add("IGMP of another kind", igmp(0x13, "224.0.0.2", 1))
	h.add("DHCP discover", h.ip(frame{Packet: udp("0.0.0.0", 68, "255.255.255.255", 67), payload: 240}))
	h.add("DHCP offer", h.ip(frame{Packet: udp(h.src4.String(), 67, "255.255.255.255", 68), payload: 240}))
	h.add("DHCPv6 solicit", h.ip(frame{Packet: udp(local.String(), 546, "ff02::1:2", 547), payload: 60}))
	h.add("DHCPv6 advertise", h.ip(frame{Packet: udp(local.String(), 547, h.dst6.String(), 546), payload: 60}))
	h.add("mDNS", h.ip(frame{Packet: udp(h.src4.String(), 5353, "224.0.0.251", 5353), payload: 60}))
}

func (h *hostiles) headers() {
	for name, ext := range map[string][]int{"hop-by-hop": {0}, "routing": {43}, "destination": {60},
		"many": {0, 60, 43, 60}} {
		f := h.udp6(22)
		f.ext = ext
		h.add("IPv6 "+name, h.ip(f))
	}
	f := h.udp6(7777)
	f.ext = []int{60, 60, 60, 60, 60, 60, 60, 60}
	h.add("IPv6 too many headers", h.ip(f))
	f = h.udp4(22)
	f.options = 20
	h.add("IPv4 options", h.ip(f))
	for _, name := range []string{"first", "later", "overlapping"} {
		f := h.udp4(22)
		f.fragID, f.more = 77, name == "first"
		f.fragOff = map[string]int{"later": 64, "overlapping": 8}[name]
		h.add("IPv4 "+name+" fragment", h.ip(f))
		g := h.udp6(22)
		g.ext, g.fragID, g.more, g.fragOff = []int{44}, 77, f.more, f.fragOff
		h.add("IPv6 "+name+" fragment", h.ip(g))
	}
	short := h.ip(h.udp4(7777))
	h.add("IPv4 cut in UDP", short[:38])
	long := h.ip(h.udp4(7777))
	binary.BigEndian.PutUint16(long[16:], 1400)
	h.add("IPv4 too long", long)
}

// service returns packets to the port that a rule allows.
func (h *hostiles) service() {
	h.addHonest("UDP 7777", h.ip(h.udp4(7777)))
	h.addHonest("UDP 7777 IPv6", h.ip(h.udp6(7777)))
	h.addHonest("UDP 7777 with a trailer", append(h.ip(h.udp4(7777)), make([]byte, 20)...))
	large := h.udp4(7777)
	large.payload = 1400
	h.addHonest("UDP 7777 large", h.ip(large))
	h.add("UDP 22", h.ip(h.udp4(22)))
	h.add("UDP 22 IPv6", h.ip(h.udp6(22)))
	h.add("spoofed MAC", macs(h.ip(h.udp4(7777)), h.dst, h.gateway))
	for name, a := range map[string][2]netip.Addr{"far": {addr("8.8.8.8"), addr("2001:db8::8")},
		"the gateway": {h.gateway4, h.gateway6}, "the neighbour": {h.dst4, h.dst6},
		"unspecified": {addr("0.0.0.0"), addr("::")}, "the link": {addr("169.254.1.1"), addr("fe80::bad")},
		"multicast": {addr("224.0.0.1"), addr("ff02::1")}} {
		f, g := h.udp4(7777), h.udp6(7777)
		f.Src, g.Src = a[0], a[1]
		h.add("spoofed source "+name, h.ip(f))
		h.add("spoofed IPv6 source "+name, h.ip(g))
	}
}

// reference has the best known rules for an nftables bridge: those of libvirt's clean-traffic and OpenStack's port
// security, and the control protocols that hosts need.
const reference = `table bridge kerbtest {
	chain forward {
		type filter hook forward priority 0; policy accept;
		meta iifname "PORT" goto from
		meta oifname "PORT" goto to
	}
	chain from {
		ether saddr != MAC drop
		ether type arp arp htype 1 arp ptype ip arp hlen 6 arp plen 4 arp saddr ether MAC arp saddr ip { ADDR4, 0.0.0.0 } accept
		ip6 hoplimit 255 icmpv6 type { nd-router-solicit, nd-neighbor-solicit, nd-neighbor-advert } ip6 saddr { ADDR6, LOCAL, :: } accept
		goto common
	}
	chain to {
		ether type arp accept
		vlan type arp accept
		ip6 hoplimit 255 icmpv6 type { nd-router-solicit, nd-router-advert, nd-neighbor-solicit, nd-neighbor-advert, nd-redirect } accept
		ip6 hoplimit 1 icmpv6 type mld-listener-query accept
		ip ttl 1 ip daddr 224.0.0.0/4 ip protocol igmp accept
		udp dport 7777 accept
		goto common
	}
	chain common {
		ip6 hoplimit 1 icmpv6 type { mld-listener-report, mld-listener-done, mld2-listener-report } accept
		ip ttl 1 ip daddr 224.0.0.0/4 ip protocol igmp @th,0,8 { 0x12, 0x16, 0x17, 0x22 } accept
		ip saddr ADDR4 udp dport 7777 accept
		ip6 saddr ADDR6 udp dport 7777 accept
		drop
	}
}`

const allButOnePort = `{"defaultPolicy": {"ingress": "deny", "egress": "deny"},
	"rules": [{"action": "allow", "protocol": "udp", "dstPort": 7777}]}`

// Frames of every kind from and to a tenant, with a firewall that allows one UDP port, compared with an nftables bridge
// with the best known rules: every frame that passes Kerb also passes those rules, and frames that hosts need pass
// both.
func TestHostileFramesOnABridge(t *testing.T) {
	notEmulated(t)
	b := newBridged(t)
	replace := strings.NewReplacer("PORT", b.tenant.Outer(), "MAC", b.tenant.MAC().String(), "ADDR4",
		b.tenant.Addr4().String(),
		"ADDR6", b.tenant.Addr6().String(), "LOCAL", linkLocal([6]byte(b.tenant.MAC())).String())
	for _, d := range []struct {
		name     string
		from, to *netlab.Host
	}{{"from the tenant", b.tenant, b.neighbour}, {"to the tenant", b.neighbour, b.tenant}} {
		frames := hostileFrames(d.from, d.to, b.lab)
		var plain, nft, kerb map[string]bool
		t.Run(d.name, func(t *testing.T) {
			t.Run("plain", func(t *testing.T) { plain = b.within(t).wire(d.from, d.to).arrive(frames) })
			t.Run("nftables", func(t *testing.T) {
				b := b.within(t)
				b.nft(replace.Replace(reference))
				nft = b.wire(d.from, d.to).arrive(frames)
			})
			t.Run("kerb", func(t *testing.T) {
				b := b.within(t)
				b.filter(loadFirewall(t, allButOnePort))
				kerb = b.wire(d.from, d.to).arrive(frames)
			})
			t.Logf("of %d frames arrive %d without a firewall, %d with nftables, %d with Kerb", len(frames), len(plain),
				len(nft), len(kerb))
			for _, f := range frames {
				if kerb[f.name] && !nft[f.name] {
					t.Errorf("%s: passes Kerb and not nftables", f.name)
				}
				if f.honest && !(plain[f.name] && nft[f.name] && kerb[f.name]) {
					t.Errorf("%s: arrives %t without a firewall, %t with nftables, %t with Kerb", f.name, plain[f.name], nft[f.name],
						kerb[f.name])
				}
			}
		})
	}
}

// within returns the same bridge for a subtest.
func (b *bridged) within(t *testing.T) *bridged {
	c := *b
	c.t = t
	return &c
}
