// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"net/netip"

	"github.com/kerb-edge/kerb/internal/packet"
)

// specimen is what a test run sends through a chain.
type specimen struct {
	kind  string
	frame []byte
}

// representative are the packets that modules are measured with: what opens a connection, what acknowledges or asks
// little, what carries much, and a datagram, in both families. Lengths are those of the payload.
func representative() []specimen {
	var out []specimen
	for _, family := range []string{"IPv4", "IPv6"} {
		for _, s := range []struct {
			kind    string
			proto   uint8
			flags   uint8
			payload int
		}{
			{"TCP SYN", packet.TCP, 0x02, 0},
			{"TCP 64 B", packet.TCP, 0x18, 64},
			{"TCP 1400 B", packet.TCP, 0x10, 1400},
			{"UDP 64 B", packet.UDP, 0, 64},
		} {
			out = append(out, specimen{family + " " + s.kind, representativeFrame(family, s.proto, s.flags, s.payload)})
		}
	}
	return out
}

// representativeFrame has ends of the ranges for documentation (RFC 5737, RFC 3849).
func representativeFrame(family string, proto, flags uint8, payload int) []byte {
	from, to := "192.0.2.1:40000", "198.51.100.2:80"
	if family == "IPv6" {
		from, to = "[2001:db8::1]:40000", "[2001:db8:1::2]:80"
	}
	return packet.Packet{Source: netip.MustParseAddrPort(from), Destination: netip.MustParseAddrPort(to),
		Protocol: proto, TCPFlags: flags, Payload: payload}.Frame()
}
