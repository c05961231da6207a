// SPDX-License-Identifier: Apache-2.0

package firewall

import "net/netip"

// Packet is what the firewall sees of a packet that parsed and is no later fragment.
type Packet struct {
	Ifindex  uint32
	Ingress  bool // direction as the service sees it
	Src, Dst netip.Addr
	Proto    int    // IANA number, after extension headers
	SrcPort  uint16 // TCP and UDP
	DstPort  uint16
	TCPFlags uint8
	Seq, Ack uint32
	Win      uint16
	Scale    uint8 // 1 more than the window scale option of a SYN; 0: it has none
	Len      int   // bytes after the TCP header
	ICMPType uint8
	ICMPCode uint8
	ICMPID   uint16  // identifier of an echo
	HopLimit uint8   // IPv6
	Quoted   *Packet // the packet that an ICMP error is about, if it can be read
}

// Decision is the firewall's word on a packet.
type Decision struct {
	Allow bool
	Rule  int    // index of the rule that decided, -1: none
	Slot  uint32 // hit counter

	limited bool // over the limit of the rule; of the model only
}

// Match is the first rule that matches the packet, -1 if none does.
func (f *Firewall) Match(p *Packet, sets members) int {
	for i := range f.rules {
		if f.rules[i].matches(p) && sets.has(&f.rules[i], p) {
			return i
		}
	}
	return -1
}

// matches is the reference for the compiled trees: it evaluates one rule directly, in the terms of the configuration.
func (r *Rule) matches(p *Packet) bool {
	if p.Ingress && !r.Ingress || !p.Ingress && !r.Egress {
		return false
	}
	if p.Src.Is4() && !r.family4() || p.Src.Is6() && !r.family6() {
		return false
	}
	if r.Proto >= 0 && r.Proto != p.Proto {
		return false
	}
	if r.Src.IsValid() && !r.Src.Contains(p.Src) || r.Dst.IsValid() && !r.Dst.Contains(p.Dst) {
		return false
	}
	if r.ICMPType >= 0 {
		return r.ICMPType == int(p.ICMPType)
	}
	return r.SrcPort.contains(p.SrcPort) && r.DstPort.contains(p.DstPort)
}

func (p Ports) contains(x uint16) bool { return x >= p.Lo && x <= p.Hi }

// byRules is the decision without regard to connections.
func (f *Firewall) byRules(p *Packet, sets members) Decision {
	if i := f.Match(p, sets); i >= 0 {
		return Decision{Allow: f.rules[i].Allow, Rule: i, Slot: f.slotOf(i)}
	}
	if p.Ingress {
		return Decision{Allow: bool(f.config.DefaultPolicy.Ingress), Rule: -1, Slot: slotIngress}
	}
	return Decision{Allow: bool(f.config.DefaultPolicy.Egress), Rule: -1, Slot: slotEgress}
}

// slotOf is the rule's hit counter in the maps that were filled last.
func (f *Firewall) slotOf(i int) uint32 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.fillSlots[i]
}
