// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"net/netip"
	"reflect"
	"strings"
	"testing"
)

func addr(text string) netip.Addr { return netip.MustParseAddr(text) }

func TestParse(t *testing.T) {
	for text, want := range map[string]Fields{
		"tcp 192.0.2.1:4000 > 192.0.2.2:80": {Src: addr("192.0.2.1"), Dst: addr("192.0.2.2"),
			TCP: &TCP{Ports: Ports{4000, 80}, Flags: "S", Seq: 1}},
		"TCP [2001:db8::1]:4000 > [2001:db8::2]:80 syn ACK length 9": {Src: addr("2001:db8::1"), Dst: addr("2001:db8::2"),
			TCP: &TCP{Ports: Ports{4000, 80}, Flags: "SA", Seq: 1, Ack: 1}, Payload: strings.Repeat("\x00", 9)},
		"icmp 192.0.2.1 > 192.0.2.2 type 3 code 1": {Src: addr("192.0.2.1"), Dst: addr("192.0.2.2"),
			ICMP: &ICMP{Type: 3, Code: 1, ID: 1, Seq: 1}},
		"icmpv6 2001:db8::1 > 2001:db8::2": {Src: addr("2001:db8::1"), Dst: addr("2001:db8::2"),
			ICMP: &ICMP{Type: 128, ID: 1, Seq: 1}},
	} {
		if got, err := Parse(text); err != nil || !reflect.DeepEqual(got, want) {
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
		"udp 192.0.2.1:1 > 192.0.2.2:2 length":          "needs a number after it",
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
