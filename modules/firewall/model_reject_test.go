// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"encoding/binary"
)

// rejects reports whether the sender of a packet gets an answer.
func (m *Model) rejects(d Decision) bool {
	return !d.Allow && !d.limited && d.Rule >= 0 && m.rules[d.Rule].Reject
}

// byLimits is byRules for packets that take a token of their rule. Time does not advance: each rule matches a burst of
// packets.
func (m *Model) byLimits(p *Packet) Decision {
	d := m.byRules(p, m.sets)
	m.matched = d.Rule
	if d.Rule < 0 || !m.rules[d.Rule].Limit.isSet() {
		return d
	}
	if m.taken[d.Rule] == m.rules[d.Rule].Limit.Burst {
		d.Allow, d.limited = false, true
	} else {
		m.taken[d.Rule]++
	}
	return d
}

// reports reports whether the last packet is logged, and takes a token of the rule's log limit.
func (m *Model) reports() bool {
	i := m.matched
	if i < 0 || !m.rules[i].Log.isSet() || m.reported[i] == m.rules[i].Log.Burst {
		return false
	}
	m.reported[i]++
	return true
}

// answerPlace is the slot that records that an answer may pass.
type answerPlace struct {
	ingress bool // direction of the answer
	index   uint32
}

// expectAnswer lets the answer to a packet pass.
func (m *Model) expectAnswer(p *Packet) {
	if k := p.key(); k.kind < kindError {
		m.answered[k.answerPlace(!p.Ingress)] = k.hash()
	}
}

// takeAnswer reports whether a packet is the answer to a rejected one, and clears its slot.
func (m *Model) takeAnswer(p *Packet) bool {
	k := p.key()
	if m.headers.options > 0 || len(m.headers.ext) > 0 {
		return false
	}
	if q := p.quoted(); q != nil {
		prohibited := p.ICMPType == 3 && p.ICMPCode == 13
		if p.Src.Is6() {
			prohibited = p.ICMPType == 1 && p.ICMPCode == 1
		}
		if !prohibited {
			return false
		}
		k = q.key()
	} else if !p.tcp(tcpRST) || p.Len > 0 || p.Scale != 0 {
		return false
	}
	place := k.answerPlace(p.Ingress)
	hash, ok := m.answered[place]
	if !ok || hash != k.hash() {
		return false
	}
	delete(m.answered, place)
	return true
}

// hash mirrors fw_key_hash.
func (k connKey) hash() uint32 {
	text := binary.NativeEndian.AppendUint32(nil, k.ifindex)
	text = append(append(text, k.local.AsSlice()...), k.remote.AsSlice()...)
	text = binary.BigEndian.AppendUint16(text, k.localPort)
	text = binary.BigEndian.AppendUint16(text, k.remotePort)
	text = append(text, byte(k.proto), byte(k.kind), 0, 0)
	factor, sum := uint32(1), uint32(0)
	for ; len(text) > 0; text = text[4:] {
		factor *= 0x9e3779b1
		sum += binary.NativeEndian.Uint32(text) * factor
	}
	return sum
}

// answerPlace mirrors fw_answer_at.
func (k connKey) answerPlace(ingress bool) answerPlace {
	return answerPlace{ingress, k.hash() * 0x85ebca6b >> 24}
}

// answerable reports whether a frame requires an answer, and can be answered: TC cannot make room in frames with VLAN
// tags.
func (f *frame) answerable() bool {
	t := f.ICMPType
	switch {
	case f.options > 0 || len(f.ext) > 0:
		return false
	case f.Proto == protoTCP:
		return f.TCPFlags&tcpRST == 0
	case f.vlans > 0:
		return false
	case f.Proto != protoICMP && f.Proto != protoICMPv6:
		return true
	case !f.isICMP(): // no header: the bytes are zero
		return f.Src.Is4() && f.payload > 0
	case f.Src.Is6():
		return t >= 128 && t != 137
	}
	return t == 0 || t == 8 || t == 13 || t == 14
}
