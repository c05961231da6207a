// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"errors"
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

// tcpFlags are the letters of TCP.Flags by the names of descriptions.
var tcpFlags = map[string]string{"fin": "F", "syn": "S", "rst": "R", "psh": "P", "ack": "A", "urg": "U", "ece": "E",
	"cwr": "C"}

// Parse reads a packet: protocol, source > destination, and options: names of TCP flags (syn by default), type and code
// of ICMP (echo request by default), and the length of the payload, which is zeros.
func Parse(text string) (Fields, error) {
	words := strings.Fields(strings.ToLower(text))
	if len(words) < 4 || words[2] != ">" {
		return Fields{}, fmt.Errorf("packet %q: %s", text, Usage)
	}
	var f Fields
	err := f.ends(words[0], words[1], words[3])
	if err == nil {
		err = f.options(words[0], words[4:])
	}
	if err != nil {
		return Fields{}, fmt.Errorf("packet %q: %w", text, err)
	}
	return f, nil
}

// ends reads protocol and addresses together: only both say whether a port is needed, and which ICMP is meant.
func (f *Fields) ends(protocol, from, to string) error {
	var src, dst netip.AddrPort
	var err error
	ported := protocol == "tcp" || protocol == "udp"
	if src, err = end(from, ported); err == nil {
		dst, err = end(to, ported)
	}
	f.Src, f.Dst = src.Addr(), dst.Addr()
	ports := Ports{src.Port(), dst.Port()}
	switch protocol {
	case "tcp":
		f.TCP = &TCP{Ports: ports, Seq: 1}
	case "udp":
		f.UDP = &ports
	case "icmp":
		f.ICMP = &ICMP{Type: 8, ID: 1, Seq: 1}
	case "icmpv6":
		f.ICMP = &ICMP{Type: 128, ID: 1, Seq: 1}
	default:
		return fmt.Errorf("%q is neither tcp, udp, icmp nor icmpv6", protocol)
	}
	switch {
	case err != nil:
		return err
	case f.Src.Is4() != f.Dst.Is4():
		return errors.New("source and destination must have the same IP version")
	case f.ICMP != nil && f.Src.Is4() != (protocol == "icmp"):
		return errors.New("icmp is for IPv4, icmpv6 for IPv6")
	}
	return nil
}

// end reads an address, with a port where the protocol has some.
func end(text string, ported bool) (netip.AddrPort, error) {
	if ported {
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

// options reads words behind the addresses. Which ones there are depends on the protocol, so that a TCP flag on a UDP
// packet is a mistake and not ignored.
func (f *Fields) options(protocol string, words []string) error {
	most := map[string]uint64{"length": mostPayload}
	if f.ICMP != nil {
		most["type"], most["code"] = 255, 255
	}
	for len(words) > 0 {
		word := words[0]
		words = words[1:]
		if flag, ok := tcpFlags[word]; ok && f.TCP != nil {
			f.TCP.Flags += flag
			continue
		}
		limit, ok := most[word]
		if !ok {
			return fmt.Errorf("unknown option %q of %s: %s", word, protocol, Usage)
		}
		if len(words) == 0 {
			return fmt.Errorf("%s needs a number after it", word)
		}
		n, err := strconv.ParseUint(words[0], 10, 16)
		if err != nil || n > limit {
			return fmt.Errorf("%s %s: want a number up to %d", word, words[0], limit)
		}
		words = words[1:]
		switch word {
		case "type":
			f.ICMP.Type = uint8(n)
		case "code":
			f.ICMP.Code = uint8(n)
		default:
			f.Payload = strings.Repeat("\x00", int(n))
		}
	}
	if f.TCP == nil {
		return nil
	}
	if f.TCP.Flags == "" {
		f.TCP.Flags = "S"
	}
	if strings.Contains(f.TCP.Flags, "A") {
		f.TCP.Ack = 1
	}
	return nil
}
