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

// withOffload sends a frame whose checksum, counted from start, is to be written offset bytes further on (struct
// virtio_net_hdr), and returns the destination ports of UDP packets that arrive.
func (w *wire) withOffload(fd int, frame []byte, start, offset int) (ports []uint16) {
	w.t.Helper()
	header := make([]byte, 10)
	header[0] = 1 // VIRTIO_NET_HDR_F_NEEDS_CSUM
	binary.NativeEndian.PutUint16(header[6:], uint16(start))
	binary.NativeEndian.PutUint16(header[8:], uint16(offset))
	arrived := w.after(func() error {
		if _, err := unix.Write(fd, slices.Concat(header, frame)); err != nil {
			return fmt.Errorf("checksum from %d at %d: %w", start, offset, err)
		}
		return nil
	})
	for _, f := range arrived {
		if len(f) >= 42 && f[12] == 8 && f[13] == 0 && f[23] == protoUDP {
			ports = append(ports, binary.BigEndian.Uint16(f[36:]))
		}
	}
	return ports
}

// summingTo is a UDP packet to port 7777 whose checksum over the UDP header and the payload is n.
func summingTo(src, dst *netlab.Host, n uint16) []byte {
	f := macs(frame{Packet: udp(src.Addr4().String(), 4000, dst.Addr4().String(), 7777), payload: 16}.bytes(), dst.MAC(), src.MAC())
	sum := uint32(0)
	for i := 34; i < len(f); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(f[i:]))
	}
	sum += 0xffff - (uint32(^n)) // what is still missing, in one's complement
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(f[len(f)-2:], ^uint16(sum))
	return f
}

// A sender that has a checksum written over the destination port, once the packet has been judged, reaches no other port; where
// the checksum is the transport header's own, or a tunnel's inside, packets pass.
func TestChecksumCannotOverwriteWhatWasJudged(t *testing.T) {
	b := newBridged(t)
	if err := dataplane.HaveSKBFields(); err != nil {
		t.Skip(err)
	}
	// The device towards the neighbour completes checksums in software.
	if err := b.lab.Node().Do(func() error { return netlab.SetTxChecksum(b.neighbour.Outer(), false) }); err != nil {
		t.Fatal(err)
	}
	w := b.wire(b.tenant, b.neighbour)
	fd := packetSocket(t, b.tenant)
	if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1); err != nil {
		t.Fatal(err)
	}
	attack := summingTo(b.tenant, b.neighbour, 22)
	if got := w.withOffload(fd, attack, 34, 2); !slices.Equal(got, []uint16{22}) {
		t.Fatalf("without a firewall the packet arrives at ports %v, not at 22: the test shows nothing", got)
	}
	for way, constants := range map[string]map[string]any{"as the kernel can": nil, "by copying, as before Linux 6.2": {"kerb_skb_cast": false}} {
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
