// SPDX-License-Identifier: Apache-2.0

package firewall

import "slices"

// headers are the IPv4 options and IPv6 extension headers of the packet.
type headers struct {
	options int
	ext     []int
	extLen  int
}

// onlyAlert reports whether the headers can only contain a router alert.
func (h headers) onlyAlert() bool {
	return len(h.ext) == 0 || len(h.ext) == 1 && h.ext[0] == 0 && h.extLen <= 8
}

// byLink returns the decision of linkControl on an IPv6 packet; Packet cannot describe control protocols of IPv4.
func (m *Model) byLink(p *Packet) (d Decision, decided bool) {
	if m.config.LinkControl != "allow" || !p.Src.Is6() || p.Proto != protoICMPv6 {
		return d, false
	}
	host := []uint8{133, 135, 136}
	listener := []uint8{131, 132, 143}
	switch t := p.ICMPType; {
	case t >= 133 && t <= 137:
		if len(m.headers.ext) > 0 || !p.Ingress && !slices.Contains(host, t) {
			return Decision{Allow: false, Rule: -1, Slot: slotLinkDenied}, true
		}
		return Decision{Allow: true, Rule: -1, Slot: slotLink}, p.ICMPCode == 0 && p.HopLimit == 255
	case t == 130 || slices.Contains(listener, t):
		onLink := p.Src.IsLinkLocalUnicast() || p.Src.IsUnspecified()
		if p.ICMPCode != 0 || p.HopLimit != 1 || !onLink || !m.headers.onlyAlert() {
			return d, false
		}
		if t == 130 && !p.Ingress {
			return Decision{Allow: false, Rule: -1, Slot: slotLinkDenied}, true
		}
		return Decision{Allow: true, Rule: -1, Slot: slotLink}, true
	}
	return d, false
}
