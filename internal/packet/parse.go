// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Usage says what Parse reads.
const Usage = "want for example 'tcp 198.51.100.7:40000 > 10.0.0.2:80 syn', " +
	"'udp [2001:db8::7]:5000 > [fd00::2]:53 length 64' or 'icmp 198.51.100.7 > 10.0.0.2 type 8'"

// mostPayload keeps a packet below the MTU of Ethernet: the data plane fragments what is longer.
const mostPayload = 1400

var protocols = map[string]uint8{"tcp": TCP, "udp": UDP, "icmp": ICMP, "icmpv6": ICMPv6}

var tcpFlags = map[string]uint8{"fin": 1, "syn": 2, "rst": 4, "psh": 8, "ack": 16, "urg": 32, "ece": 64, "cwr": 128}

// Parse reads a packet: protocol, source > destination, and options: names of TCP flags (syn by default), type and code
// of ICMP (echo request by default), and the length of the payload.
func Parse(text string) (Packet, error) {
	words := strings.Fields(strings.ToLower(text))
	if len(words) < 4 || words[2] != ">" {
		return Packet{}, fmt.Errorf("packet %q: %s", text, Usage)
	}
	protocol, ok := protocols[words[0]]
	if !ok {
		return Packet{}, fmt.Errorf("packet %q: %q is neither tcp, udp, icmp nor icmpv6", text, words[0])
	}
	p := Packet{Protocol: protocol}
	var err error
	if p.Source, err = p.end(words[1]); err == nil {
		p.Destination, err = p.end(words[3])
	}
	if err == nil && p.Source.Addr().Is4() != p.Destination.Addr().Is4() {
		err = fmt.Errorf("source and destination must have the same IP version")
	}
	if err == nil && (protocol == ICMP && !p.Source.Addr().Is4() || protocol == ICMPv6 && p.Source.Addr().Is4()) {
		err = fmt.Errorf("icmp is for IPv4, icmpv6 for IPv6")
	}
	if err == nil {
		err = p.options(words[4:])
	}
	if err != nil {
		return Packet{}, fmt.Errorf("packet %q: %w", text, err)
	}
	return p, nil
}

// end reads an address, with a port for TCP and UDP.
func (p *Packet) end(text string) (netip.AddrPort, error) {
	if p.Protocol == TCP || p.Protocol == UDP {
		end, err := netip.ParseAddrPort(text)
		if err != nil || end.Addr().Zone() != "" {
			return end, fmt.Errorf("%q is no address with a port, such as 192.0.2.1:80 or [2001:db8::1]:80", text)
		}
		return netip.AddrPortFrom(end.Addr().Unmap(), end.Port()), nil
	}
	addr, err := netip.ParseAddr(text)
	if err != nil || addr.Zone() != "" {
		return netip.AddrPort{}, fmt.Errorf("%q is no IP address", text)
	}
	return netip.AddrPortFrom(addr.Unmap(), 0), nil
}

func (p *Packet) options(words []string) error {
	if p.ICMPType = 8; p.Protocol == ICMPv6 {
		p.ICMPType = 128
	}
	for len(words) > 0 {
		word := words[0]
		words = words[1:]
		if flag, ok := tcpFlags[word]; ok && p.Protocol == TCP {
			p.TCPFlags |= flag
			continue
		}
		most := map[string]uint64{"length": mostPayload}
		if p.Protocol == ICMP || p.Protocol == ICMPv6 {
			most["type"], most["code"] = 255, 255
		}
		limit, ok := most[word]
		if !ok {
			return fmt.Errorf("unknown option %q of %s: %s", word, protocolName(p.Protocol), Usage)
		}
		if len(words) == 0 {
			return fmt.Errorf("%s has no number behind it", word)
		}
		n, err := strconv.ParseUint(words[0], 10, 16)
		if err != nil || n > limit {
			return fmt.Errorf("%s %s: want a number up to %d", word, words[0], limit)
		}
		words = words[1:]
		switch word {
		case "type":
			p.ICMPType = uint8(n)
		case "code":
			p.ICMPCode = uint8(n)
		default:
			p.Payload = int(n)
		}
	}
	if p.Protocol == TCP && p.TCPFlags == 0 {
		p.TCPFlags = tcpFlags["syn"]
	}
	return nil
}

func protocolName(n uint8) string {
	for name, number := range protocols {
		if number == n {
			return name
		}
	}
	return strconv.Itoa(int(n))
}
