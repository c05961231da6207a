// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"encoding/binary"
	"net/netip"
	"reflect"
	"strings"
	"testing"
)

func end(text string) netip.AddrPort { return netip.MustParseAddrPort(text) }

func TestParse(t *testing.T) {
	for text, want := range map[string]Packet{
		"tcp 192.0.2.1:4000 > 192.0.2.2:80": {Source: end("192.0.2.1:4000"), Destination: end("192.0.2.2:80"),
			Protocol: TCP, TCPFlags: 2},
		"TCP [2001:db8::1]:4000 > [2001:db8::2]:80 syn ACK length 9": {Source: end("[2001:db8::1]:4000"),
			Destination: end("[2001:db8::2]:80"), Protocol: TCP, TCPFlags: 18, Payload: 9},
		"icmp 192.0.2.1 > 192.0.2.2 type 3 code 1": {Source: end("192.0.2.1:0"), Destination: end("192.0.2.2:0"),
			Protocol: ICMP, ICMPType: 3, ICMPCode: 1},
		"icmpv6 2001:db8::1 > 2001:db8::2": {Source: end("[2001:db8::1]:0"), Destination: end("[2001:db8::2]:0"),
			Protocol: ICMPv6, ICMPType: 128},
	} {
		got, err := Parse(text)
		if got.Protocol == TCP {
			got.ICMPType = 0 // means nothing
		}
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, %v; want %+v", text, got, err, want)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for text, says := range map[string]string{
		"":                                              "want for example",
		"tcp 192.0.2.1:1 192.0.2.2:2":                   "want for example",
		"sctp 192.0.2.1:1 > 192.0.2.2:2":                "neither tcp",
		"tcp 192.0.2.1 > 192.0.2.2:2":                   "no address with a port",
		"tcp 192.0.2.1:1 > [2001:db8::1]:2":             "same IP version",
		"icmp 2001:db8::1 > 2001:db8::2":                "icmpv6 for IPv6",
		"icmp fe80::1%eth0 > fe80::2":                   "no IP address",
		"udp 192.0.2.1:1 > 192.0.2.2:2 syn":             `unknown option "syn" of udp`,
		"tcp 192.0.2.1:1 > 192.0.2.2:2 type 8":          "unknown option",
		"udp 192.0.2.1:1 > 192.0.2.2:2 length":          "no number behind it",
		"udp 192.0.2.1:1 > 192.0.2.2:2 length 9000":     "up to 1400",
		"udp 192.0.2.1:1 > 192.0.2.2:2 length -1":       "up to 1400",
		"icmp 192.0.2.1 > 192.0.2.2 type 256":           "up to 255",
		"tcp 192.0.2.1:99999 > 192.0.2.2:2":             "no address with a port",
		"udp 192.0.2.1:1 > 192.0.2.2:2 length 99999999": "up to 1400",
	} {
		if _, err := Parse(text); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v; want %q", text, err, says)
		}
	}
}

// The sum over what a checksum covers, itself included, is zero; also with an odd number of bytes.
func TestChecksums(t *testing.T) {
	for _, text := range []string{"tcp 192.0.2.1:4000 > 192.0.2.2:80 ack length 7", "udp 192.0.2.1:4000 > 192.0.2.2:80",
		"udp [2001:db8::1]:4000 > [2001:db8::2]:80 length 1", "icmp 192.0.2.1 > 192.0.2.2",
		"icmpv6 2001:db8::1 > 2001:db8::2 length 3"} {
		p, err := Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		frame := p.Frame()
		l3, length, l4 := frame[headerLength:], 20, 0
		if p.Source.Addr().Is4() {
			if Checksum(l3[:20]) != 0 || int(binary.BigEndian.Uint16(l3[2:])) != len(l3) {
				t.Errorf("%s: wrong IP header", text)
			}
		} else {
			length = 40
		}
		l4 = len(l3) - length
		covered := append(p.Source.Addr().AsSlice(), p.Destination.Addr().AsSlice()...)
		covered = append(covered, 0, p.Protocol, byte(l4>>8), byte(l4))
		if p.Protocol == ICMP {
			covered = nil
		}
		if Checksum(append(covered, l3[length:]...)) != 0 {
			t.Errorf("%s: wrong checksum", text)
		}
	}
}
