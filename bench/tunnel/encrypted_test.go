// SPDX-License-Identifier: Apache-2.0

package tunnel

import (
	"bytes"
	"crypto/ecdh"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// wireGuardPort is the UDP port of both nodes.
const wireGuardPort = 51820

// addWireGuard creates the interfaces with new keys and one peer each, at the addresses of the wire.
func addWireGuard(t *testing.T, g *topology) (start func(), err error) {
	var keys [2]*ecdh.PrivateKey
	for i := range keys {
		if keys[i], err = ecdh.X25519().GenerateKey(rand.Reader); err != nil {
			return nil, err
		}
	}
	return func() {}, g.each(func(i int) error {
		if err := netlink.LinkAdd(&netlink.Wireguard{LinkAttrs: netlink.LinkAttrs{Name: device}}); err != nil {
			return err
		}
		return setWireGuard(keys[i], keys[1-i].PublicKey(), netip.AddrPortFrom(g.node(1-i), wireGuardPort))
	})
}

// Attributes of include/uapi/linux/wireguard.h.
const (
	wgCmdSetDevice = 1

	wgDeviceIfname     = 2
	wgDevicePrivateKey = 3
	wgDeviceListenPort = 6
	wgDevicePeers      = 8 | unix.NLA_F_NESTED

	wgPeer           = 0 | unix.NLA_F_NESTED
	wgPeerPublicKey  = 1
	wgPeerEndpoint   = 4
	wgPeerAllowedIPs = 9 | unix.NLA_F_NESTED

	wgAllowedIP       = 0 | unix.NLA_F_NESTED
	wgAllowedIPFamily = 1
	wgAllowedIPAddr   = 2
	wgAllowedIPMask   = 3
)

// setWireGuard sets the device's key, and a peer with all addresses allowed.
func setWireGuard(private *ecdh.PrivateKey, public *ecdh.PublicKey, endpoint netip.AddrPort) error {
	family, err := netlink.GenlFamilyGet("wireguard")
	if err != nil {
		return err
	}
	peers := nl.NewRtAttr(wgDevicePeers, nil)
	peer := peers.AddRtAttr(wgPeer, nil)
	peer.AddRtAttr(wgPeerPublicKey, public.Bytes())
	peer.AddRtAttr(wgPeerEndpoint, sockaddr(endpoint))
	allowed := peer.AddRtAttr(wgPeerAllowedIPs, nil)
	for family, size := range map[uint16]int{unix.AF_INET: 4, unix.AF_INET6: 16} {
		all := allowed.AddRtAttr(wgAllowedIP, nil)
		all.AddRtAttr(wgAllowedIPFamily, nl.Uint16Attr(family))
		all.AddRtAttr(wgAllowedIPAddr, make([]byte, size))
		all.AddRtAttr(wgAllowedIPMask, []byte{0})
	}
	req := nl.NewNetlinkRequest(int(family.ID), unix.NLM_F_ACK)
	req.AddData(&nl.Genlmsg{Command: wgCmdSetDevice, Version: 1})
	req.AddData(nl.NewRtAttr(wgDeviceIfname, nl.ZeroTerminated(device)))
	req.AddData(nl.NewRtAttr(wgDevicePrivateKey, private.Bytes()))
	req.AddData(nl.NewRtAttr(wgDeviceListenPort, nl.Uint16Attr(wireGuardPort)))
	req.AddData(peers)
	_, err = req.Execute(unix.NETLINK_GENERIC, 0)
	return err
}

// sockaddr returns a struct sockaddr_in or sockaddr_in6.
func sockaddr(a netip.AddrPort) []byte {
	out, at := make([]byte, unix.SizeofSockaddrInet4), 4
	binary.NativeEndian.PutUint16(out, unix.AF_INET)
	if a.Addr().Is6() {
		out, at = make([]byte, unix.SizeofSockaddrInet6), 8
		binary.NativeEndian.PutUint16(out, unix.AF_INET6)
	}
	binary.BigEndian.PutUint16(out[2:], a.Port())
	copy(out[at:], a.Addr().AsSlice())
	return out
}

// xfrmState returns the iproute2 command that adds an AES-GCM security association for XFRM interfaces with if_id 1.
func xfrmState(src, dst string, spi int) string {
	const state = "xfrm state add src %s dst %s proto esp spi %d reqid 1 mode tunnel if_id 1 "
	const aead = `aead rfc4106\(gcm\(aes\)\) 0x%s 128`
	return fmt.Sprintf(state+aead, src, dst, spi, strings.Repeat("5a", 20))
}

// addXFRM creates the interfaces with security associations and policies for everything that is sent over them.
func addXFRM(t *testing.T, g *topology) (start func(), err error) {
	all := "0.0.0.0/0"
	if g.ip6 {
		all = "::/0"
	}
	for i, lab := range g.labs {
		g.onNode(t, i, fmt.Sprintf("ip link add %s type xfrm dev %s if_id 1", device, g.wire.Interface(lab)))
		for from, direction := range map[int]string{i: "out", 1 - i: "in"} {
			src, dst := g.node(from), g.node(1-from)
			g.onNode(t, i, "ip "+strings.ReplaceAll(xfrmState(src.String(), dst.String(), 0x100+from), `\`, ""))
			policy := "ip xfrm policy add src %s dst %s dir %s if_id 1 tmpl src %s dst %s proto esp reqid 1 mode tunnel"
			g.onNode(t, i, fmt.Sprintf(policy, all, all, direction, src, dst))
		}
	}
	return func() {}, nil
}

// carrier describes the packets of an encrypted underlay on the wire: a protocol, and for UDP a port.
type carrier struct {
	proto uint8
	port  uint16
}

// filter returns a socket filter that accepts all frames except those of the carrier.
func (c carrier) filter(ip6 bool) ([]bpf.RawInstruction, error) {
	etherType, protocol, ports := uint32(unix.ETH_P_IP), uint32(14+9), uint32(14+20)
	if ip6 {
		etherType, protocol, ports = unix.ETH_P_IPV6, 14+6, 14+40
	}
	return bpf.Assemble([]bpf.Instruction{
		bpf.LoadAbsolute{Off: 12, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: etherType, SkipTrue: 6},
		bpf.LoadAbsolute{Off: protocol, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: uint32(c.proto), SkipTrue: 4},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.IPPROTO_UDP, SkipTrue: 2},
		bpf.LoadAbsolute{Off: ports + 2, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: uint32(c.port), SkipTrue: 1},
		bpf.RetConstant{Val: 0},
		bpf.RetConstant{Val: 128},
	})
}

// wiretap is a packet socket on the second node's end of the wire, for both directions. Its filter discards the
// carrier.
type wiretap struct {
	carrier
	fd int
}

func tap(t *testing.T, g *topology, c carrier) *wiretap {
	t.Helper()
	w := &wiretap{carrier: c}
	code, err := c.filter(g.ip6)
	if err != nil {
		t.Fatal(err)
	}
	err = g.labs[1].Node().Do(func() (err error) {
		if w.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0); err != nil {
			return err
		}
		var filter []unix.SockFilter
		for _, in := range code {
			filter = append(filter, unix.SockFilter{Code: in.Op, Jt: in.Jt, Jf: in.Jf, K: in.K})
		}
		program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
		all := binary.NativeEndian.Uint16([]byte{0, unix.ETH_P_ALL})
		return errors.Join(unix.SetsockoptSockFprog(w.fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &program),
			unix.Bind(w.fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: g.wire.Index(g.labs[1])}))
	})
	limit := unix.NsecToTimeval(timeout.Nanoseconds())
	if err := errors.Join(err, unix.SetsockoptTimeval(w.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(w.fd) })
	return w
}

// check fails if the wire carried anything in clear, or if packets of the tunnel bypassed device and wire.
func (w *wiretap) check(t *testing.T, g *topology) {
	t.Helper()
	w.untilMarker(t, g)
	for i := range g.labs {
		node := stats(t, g, i)
		if node.Interface != device || node.Errors != 0 || node.ReceivedPackets < 100 {
			t.Errorf("node %d: %+v", i, node)
		}
		arrived := g.received(t, i, device)
		if arrived < node.ReceivedPackets {
			t.Errorf("node %d: the tunnel received %d packets, its device only %d", i, node.ReceivedPackets, arrived)
		}
		if on := g.received(t, i, g.wire.Interface(g.labs[i])); w.proto != 0 && on < arrived {
			t.Errorf("node %d: the device received %d packets, the wire only %d", i, arrived, on)
		}
	}
}

// untilMarker reads frames up to a marker sent in clear, which the tap must capture.
func (w *wiretap) untilMarker(t *testing.T, g *topology) {
	t.Helper()
	marker := []byte("sent in clear")
	err := g.labs[0].Node().Do(func() error {
		conn, err := net.Dial("udp", netip.AddrPortFrom(g.node(1), livePort).String())
		if err != nil {
			return err
		}
		_, err = conn.Write(marker)
		return errors.Join(err, conn.Close())
	})
	if err != nil {
		t.Fatal(err)
	}
	for frame := make([]byte, 2048); ; {
		n, err := unix.Read(w.fd, frame)
		switch {
		case errors.Is(err, unix.EINTR) || err == nil && resolves(frame[:n]):
		case err != nil:
			t.Fatalf("the tap does not see a packet in clear: %v", err)
		case bytes.HasSuffix(frame[:n], marker):
			return
		default:
			t.Errorf("in clear on the wire: %x", frame[:n])
		}
	}
}

// resolves reports whether a frame is ARP, or ICMPv6 for neighbours, routers or multicast groups.
func resolves(frame []byte) bool {
	const icmp = 14 + 40
	switch binary.BigEndian.Uint16(frame[12:]) {
	case unix.ETH_P_ARP:
		return true
	case unix.ETH_P_IPV6:
		nd := frame[20] == unix.IPPROTO_ICMPV6 && frame[icmp] >= 133 && frame[icmp] <= 136
		mld := frame[20] == unix.IPPROTO_HOPOPTS && frame[icmp] == unix.IPPROTO_ICMPV6 && frame[icmp+8] == 143
		return nd || mld
	}
	return false
}

// received returns the number of packets that an interface of a node has received.
func (g *topology) received(t *testing.T, node int, name string) (n uint64) {
	t.Helper()
	err := g.labs[node].Node().Do(func() error {
		link, err := netlink.LinkByName(name)
		if err == nil {
			n = link.Attrs().Statistics.RxPackets
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}
