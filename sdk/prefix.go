// SPDX-License-Identifier: Apache-2.0

package sdk

import (
	"net/netip"
	"strings"
)

// ParsePrefix parses a prefix, or an address without a zone as the prefix of this address alone. Host bits are kept.
func ParsePrefix(text string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(text); err == nil && a.Zone() == "" {
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	return netip.ParsePrefix(text)
}

// MappedPrefix returns a prefix as an IPv6 prefix, an IPv4 one as IPv4-mapped (::ffff:0:0/96), which is the form in
// data planes.
func MappedPrefix(p netip.Prefix) netip.Prefix {
	if p.Addr().Is4() {
		return netip.PrefixFrom(netip.AddrFrom16(p.Addr().As16()), p.Bits()+96)
	}
	return p
}

// PrefixMask returns the mask of an IPv6 prefix length, in network byte order.
func PrefixMask(bits int) (mask [16]byte) {
	for i := range bits {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	return mask
}

// Printable returns the text up to its first zero byte, with ? for anything but printable ASCII: programs can choose
// any bytes as names.
func Printable(text []byte) string {
	s, _, _ := strings.Cut(string(text), "\x00")
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, s)
}
