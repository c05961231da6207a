// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"net/netip"
	"strings"

	"github.com/kerb-edge/kerb/internal/packet"
)

// testPacket is a packet that a test run sends through a chain.
type testPacket struct {
	kind  string
	frame []byte
}

// representative returns the packets for measuring modules: one that opens a connection, one that acknowledges or is a
// short request, one with a large payload, and a datagram, in both families. Lengths are those of the payload.
func representative() []testPacket {
	ports := packet.Ports{Src: 40000, Dst: 80}
	var out []testPacket
	for _, family := range []string{"IPv4", "IPv6"} {
		for _, s := range []struct {
			kind, flags string // of UDP without flags
			payload     int
		}{{"TCP SYN", "S", 0}, {"TCP 64 B", "PA", 64}, {"TCP 1400 B", "A", 1400}, {"UDP 64 B", "", 64}} {
			f := packet.Fields{TCP: &packet.TCP{Ports: ports, Flags: s.flags, Seq: 1}}
			if s.flags == "" {
				f = packet.Fields{UDP: &ports}
			}
			f.Payload = strings.Repeat("\x00", s.payload)
			out = append(out, testPacket{family + " " + s.kind, representativeFrame(family, f)})
		}
	}
	return out
}

// representativeFrame uses addresses of the ranges for documentation (RFC 5737, RFC 3849).
func representativeFrame(family string, f packet.Fields) []byte {
	from, to := "192.0.2.1", "198.51.100.2"
	if family == "IPv6" {
		from, to = "2001:db8::1", "2001:db8:1::2"
	}
	f.Src, f.Dst = netip.MustParseAddr(from), netip.MustParseAddr(to)
	frame, err := f.Frame()
	if err != nil {
		panic(err) // the fields above are valid
	}
	return frame
}
