// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"

	"github.com/kerb-edge/kerb/internal/packet"
)

// A translated packet is the one that its sender would have sent with the other addresses, for all lengths.
func TestPacketBetween(t *testing.T) {
	ports := packet.Ports{Src: 1000, Dst: 2000}
	for _, f := range []packet.Fields{{UDP: &ports}, {UDP: &ports, Payload: "odd"},
		{TCP: &packet.TCP{Ports: ports, Flags: "A"}}} {
		for _, addrs := range [][4]string{{"10.1.0.1", "10.30.0.1", "10.30.0.2", "10.1.0.2"},
			{"fd01::1", "fdff::1", "fdff::2", "fd01::2"}} {
			frame := func(src, dst string) []byte {
				f.Src, f.Dst = netip.MustParseAddr(src), netip.MustParseAddr(dst)
				frame, err := f.Frame()
				if err != nil {
					t.Fatal(err)
				}
				if f.Src.Is4() { // without the padding of Ethernet
					return slices.Clip(frame[14 : 14+binary.BigEndian.Uint16(frame[16:])])
				}
				return slices.Clip(frame[14:])
			}
			p, ok := ParsePacket(frame(addrs[0], addrs[1]))
			if !ok {
				t.Fatalf("%+v is not understood", f)
			}
			got := p.Between(netip.MustParseAddr(addrs[2]), netip.MustParseAddr(addrs[3]))
			if want := frame(addrs[2], addrs[3]); !slices.Equal(got, want) {
				t.Errorf("%x, want %x", got, want)
			}
		}
	}
}
