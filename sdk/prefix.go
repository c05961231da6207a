// SPDX-License-Identifier: Apache-2.0

package sdk

import (
	"net/netip"
	"strings"
)

// ParsePrefix reads a prefix, or an address without a zone, which stands for itself. Host bits stay as they are.
func ParsePrefix(text string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(text); err == nil && a.Zone() == "" {
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	return netip.ParsePrefix(text)
}

// MappedPrefix returns a prefix of IPv6 addresses: of IPv4 that of the mapped ones (::ffff:0:0/96), as data planes
// have them.
func MappedPrefix(p netip.Prefix) netip.Prefix {
	if p.Addr().Is4() {
		return netip.PrefixFrom(netip.AddrFrom16(p.Addr().As16()), p.Bits()+96)
	}
	return p
}

// PrefixMask returns which bits of an IPv6 address a prefix of so many bits compares, in network byte order.
func PrefixMask(bits int) (mask [16]byte) {
	for i := range bits {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	return mask
}

// Printable returns the text up to its first zero, with ? for what is not printable ASCII: names that programs give
// themselves may be anything.
func Printable(text []byte) string {
	s, _, _ := strings.Cut(string(text), "\x00")
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, s)
}
