// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
)

// withOffload sends a frame as sendOffload does, and returns the destination ports of UDP packets that arrive.
func (w *wire) withOffload(fd int, frame []byte, start, offset int) (ports []uint16) {
	w.t.Helper()
	for _, f := range w.sendOffload(fd, frame, start, offset) {
		if len(f) >= 42 && f[12] == 8 && f[13] == 0 && f[23] == protoUDP {
			ports = append(ports, binary.BigEndian.Uint16(f[36:]))
		}
	}
	return ports
}

// sendOffload sends a frame with a deferred checksum, computed from start and written offset bytes after it (struct
// virtio_net_hdr), and returns what arrives.
func (w *wire) sendOffload(fd int, frame []byte, start, offset int) [][]byte {
	w.t.Helper()
	header := make([]byte, 10)
	header[0] = 1 // VIRTIO_NET_HDR_F_NEEDS_CSUM
	binary.NativeEndian.PutUint16(header[6:], uint16(start))
	binary.NativeEndian.PutUint16(header[8:], uint16(offset))
	return w.after(func() error {
		if _, err := unix.Write(fd, slices.Concat(header, frame)); err != nil {
			return fmt.Errorf("checksum from %d at %d: %w", start, offset, err)
		}
		return nil
	})
}

// offloadSocket returns a packet socket whose frames have a struct virtio_net_hdr.
func offloadSocket(t *testing.T, h *netlab.Host) int {
	t.Helper()
	fd := packetSocket(t, h)
	if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1); err != nil {
		t.Fatal(err)
	}
	return fd
}

// summingTo returns a UDP packet to port 7777 whose checksum over UDP header and payload is n.
func summingTo(src, dst *netlab.Host, n uint16) []byte {
	f := macs(frame{Packet: udp(src.Addr4().String(), 4000, dst.Addr4().String(), 7777), payload: 16}.bytes(), dst.MAC(),
		src.MAC())
	sum := uint32(0)
	for i := 34; i < len(f); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(f[i:]))
	}
	sum += 0xffff - (uint32(^n)) // the remaining sum, in one's complement
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(f[len(f)-2:], ^uint16(sum))
	return f
}

// A sender that lets the deferred checksum overwrite the destination port after the decision cannot reach another port.
// Packets with a deferred checksum of the transport header, or inside a tunnel, pass.
func TestChecksumCannotOverwriteWhatWasJudged(t *testing.T) {
	b := newBridged(t)
	if err := dataplane.HaveSKBFields(); err != nil {
		t.Skip(err)
	}
	// The device towards the neighbour completes checksums in software.
	if err := b.lab.Node().Do(func() error { return netlab.SetTxChecksum(b.neighbour.Outer(), false) }); err != nil {
		t.Fatal(err)
	}
	w, fd := b.wire(b.tenant, b.neighbour), offloadSocket(t, b.tenant)
	attack := summingTo(b.tenant, b.neighbour, 22)
	if got := w.withOffload(fd, attack, 34, 2); !slices.Equal(got, []uint16{22}) {
		t.Fatalf("without a firewall the packet arrives at ports %v, not at 22: the test shows nothing", got)
	}
	for way, constants := range map[string]map[string]any{"as the kernel can": nil,
		"by copying, as before Linux 6.2": {"kerb_skb_cast": false}} {
		t.Run(way, func(t *testing.T) {
			b := b.within(t)
			k := loadWith(t, allButOnePort, constants)
			b.filter(k)
			w.t = t
			for _, c := range []struct {
				name          string
				start, offset int
				arrives       []uint16
			}{
				{"own checksum", 34, 6, []uint16{7777}},
				{"over the destination port", 34, 2, nil},
				{"over the source port", 34, 0, nil},
				{"from another start over the destination port", 35, 1, nil},
				{"over the source address", 20, 6, nil},
				{"over the destination address", 26, 6, nil},
				{"over the last byte of the UDP header", 34, 7, nil},
				{"inside of a tunnel", 42, 6, []uint16{7777}},
			} {
				if got := w.withOffload(fd, attack, c.start, c.offset); !slices.Equal(got, c.arrives) {
					t.Errorf("%s: arrives at ports %v, want %v", c.name, got, c.arrives)
				}
			}
			if n := k.drops(dropBadOffload); n != 6 {
				t.Errorf("%d drops as bad_offload, want 6", n)
			}
		})
	}
}

// An ICMP error that a module has built from a packet quotes it with its deferred checksum. It passes if the checksum's
// position is that of the quoted transport header; nothing else of the quote can be overwritten.
func TestQuotedChecksum(t *testing.T) {
	b := newBridged(t)
	if err := dataplane.HaveSKBFields(); err != nil {
		t.Skip(err)
	}
	b.filter(loadFirewall(t, `{"defaultPolicy": {"ingress": "allow", "egress": "allow"}, "state": {"enabled": false}}`))
	w, fd := b.wire(b.tenant, b.neighbour), offloadSocket(t, b.tenant)
	quoting := func(ip6 bool, proto int, change map[int]byte) []byte {
		from, to := b.tenant.Addr4().String(), b.neighbour.Addr4().String()
		unreachable := uint8(3)
		if ip6 {
			from, to, unreachable = b.tenant.Addr6().String(), b.neighbour.Addr6().String(), 1
		}
		e, q := icmp(from, to, unreachable, 0), udp(to, 7777, from, 4000)
		q.Proto, e.Quoted = proto, &q
		f := macs(frame{Packet: e}.bytes(), b.neighbour.MAC(), b.tenant.MAC())
		for at, value := range change {
			f[at] = value
		}
		return f
	}
	const ip4, ip6 = 14 + 20 + 8, 14 + 40 + 8 // start of the quoted packet
	for _, c := range []struct {
		name          string
		frame         []byte
		start, offset int
		arrives       bool
	}{
		{"UDP", quoting(false, protoUDP, nil), ip4 + 20, 6, true},
		{"TCP", quoting(false, protoTCP, nil), ip4 + 20, 16, true},
		{"UDP over IPv6", quoting(true, protoUDP, nil), ip6 + 40, 6, true},
		{"over the port of UDP", quoting(false, protoUDP, nil), ip4 + 20, 2, false},
		{"over the address of UDP over IPv6", quoting(true, protoUDP, nil), ip6 + 20, 6, false},
		{"over the sequence number of TCP", quoting(false, protoTCP, nil), ip4 + 20, 6, false},
		{"over the port behind IPv4 options", quoting(false, protoUDP, map[int]byte{ip4: 0x47}), ip4 + 20, 6, false},
		{"over a later fragment", quoting(false, protoUDP, map[int]byte{ip4 + 7: 1}), ip4 + 20, 6, false},
		{"in an echo", quoting(false, protoUDP, map[int]byte{34: 8}), ip4 + 20, 6, false},
	} {
		if got := len(w.sendOffload(fd, c.frame, c.start, c.offset)) > 0; got != c.arrives {
			t.Errorf("%s: arrives: %v, want %v", c.name, got, c.arrives)
		}
	}
}
