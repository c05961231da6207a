// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"net/netip"
	"time"
)

// Bits of TCPFlags.
const (
	tcpFIN = 1 << iota
	tcpSYN
	tcpRST
	_
	tcpACK
)

// kind mirrors enum fw_kind.
type kind int

const (
	kindPlain kind = iota
	kindEchoLocal
	kindEchoRemote
	kindError
	kindLoose
)

func (p *Packet) isICMP() bool {
	return p.Src.Is4() && p.Proto == protoICMP || p.Src.Is6() && p.Proto == protoICMPv6
}

func (p *Packet) isRequest() bool {
	return p.Src.Is4() && p.ICMPType == 8 || p.Src.Is6() && p.ICMPType == 128
}

func (p *Packet) kind() kind {
	t := p.ICMPType
	switch {
	case !p.isICMP():
		return kindPlain
	case p.isRequest() && !p.Ingress, p.isAnswer() && p.Ingress:
		return kindEchoLocal
	case p.isRequest(), p.isAnswer():
		return kindEchoRemote
	case p.Src.Is4() && (t == 3 || t == 11 || t == 12), p.Src.Is6() && t >= 1 && t <= 4:
		return kindError
	}
	return kindLoose
}

func (p *Packet) isAnswer() bool {
	return p.Src.Is4() && p.ICMPType == 0 || p.Src.Is6() && p.ICMPType == 129
}

// Model is the firewall in plain Go: the meaning that the data plane is tested against. It knows no limits of tables.
type Model struct {
	*Firewall
	conns   map[connKey]*connState
	headers headers
}

// NewModel returns a model without connections.
func NewModel(f *Firewall) *Model { return &Model{Firewall: f, conns: map[connKey]*connState{}} }

// connKey is a connection as seen from the service.
type connKey struct {
	ifindex               uint32
	local, remote         netip.Addr
	localPort, remotePort uint16
	proto                 int
	kind                  kind
}

type connState struct {
	seen       time.Duration
	generation uint32
	phase      connPhase
	ingress    bool // direction of the first packet
	fins       int
}

func (p *Packet) key() connKey {
	k := connKey{ifindex: p.Ifindex, proto: p.Proto, kind: p.kind()}
	k.local, k.remote, k.localPort, k.remotePort = p.Src, p.Dst, p.SrcPort, p.DstPort
	if p.Ingress {
		k.local, k.remote, k.localPort, k.remotePort = p.Dst, p.Src, p.DstPort, p.SrcPort
	}
	if k.kind != kindPlain {
		k.localPort, k.remotePort = p.ICMPID, 0
	}
	return k
}

func (m *Model) expired(k connKey, c *connState, now time.Duration) bool {
	t := m.config.State.Timeouts
	limit := t.UDP
	switch {
	case k.kind != kindPlain:
		limit = t.ICMP
	case k.proto != protoTCP && c.phase == phaseEstablished:
		limit = t.UDPStream
	case k.proto != protoTCP:
	case c.phase >= phaseReset || c.fins != 0:
		limit = t.TCPClosing
	case c.phase == phaseEstablished:
		limit = t.TCPEstablished
	default:
		limit = t.TCPSyn
	}
	return now-c.seen > time.Duration(limit)
}

// Decide is the decision on a packet at a time on any monotonic clock, with its effect on the connections.
func (m *Model) Decide(p *Packet, now time.Duration) Decision {
	if d, decided := m.byLink(p); decided {
		return d
	}
	if !m.config.State.Enabled {
		return m.byRules(p)
	}
	switch p.kind() {
	case kindError:
		if m.related(p, now) {
			return Decision{true, -1, slotRelated}
		}
		return m.byRules(p)
	case kindLoose:
		return m.byRules(p)
	}
	return m.track(p, now)
}

func (m *Model) track(p *Packet, now time.Duration) Decision {
	k := p.key()
	c := m.conns[k]
	opens := p.Proto == protoTCP && p.TCPFlags&(tcpSYN|tcpACK) == tcpSYN
	if c != nil && (m.expired(k, c, now) || opens && c.phase >= phaseReset) {
		delete(m.conns, k)
		c = nil
	}
	if c == nil {
		d := m.byRules(p)
		if d.Allow && p.begins() {
			m.conns[k] = &connState{seen: now, generation: m.generation(), ingress: p.Ingress}
		}
		return d
	}
	if c.generation != m.generation() {
		return m.recheck(p, k, c)
	}
	c.advance(p)
	c.seen = now
	return Decision{true, -1, slotTracked}
}

func (p *Packet) begins() bool {
	if p.kind() == kindPlain {
		return p.Proto != protoTCP || p.TCPFlags&tcpRST == 0
	}
	return p.isRequest()
}

// recheck asks the present rules about the beginning of a connection that others allowed.
func (m *Model) recheck(p *Packet, k connKey, c *connState) Decision {
	first := *p
	if p.Ingress != c.ingress {
		first.Ingress, first.Src, first.Dst, first.SrcPort, first.DstPort = c.ingress, p.Dst, p.Src, p.DstPort, p.SrcPort
		if p.isICMP() {
			first.ICMPType = map[bool]uint8{true: 8, false: 128}[p.Src.Is4()]
		}
	}
	d := m.byRules(&first)
	if d.Allow {
		c.generation = m.generation()
	} else {
		delete(m.conns, k)
	}
	if p.Ingress != c.ingress {
		d.Slot, d.Rule = slotTracked, -1
		if !d.Allow {
			d.Slot = slotRevoked
		}
	}
	return d
}

func (c *connState) advance(p *Packet) {
	flags := uint8(0)
	if p.Proto == protoTCP {
		flags = p.TCPFlags
	}
	bit := 1
	if p.Ingress {
		bit = 2
	}
	switch {
	case flags&tcpRST != 0:
		if c.phase != phaseClosed {
			c.phase = phaseReset
		}
	case flags&tcpFIN != 0:
		c.fins |= bit
		if c.fins == 3 {
			c.phase = phaseClosed
		}
	case c.phase == phaseEstablished || c.phase == phaseClosed:
	case p.Ingress != c.ingress:
		if c.phase == phaseNew {
			c.phase = phaseReplied
		}
	case c.phase != phaseNew && !p.isICMP() && flags&tcpSYN == 0:
		c.phase = phaseEstablished
	}
}

// related tells whether an ICMP error is about a connection and goes to whom the quoted packet came from.
func (m *Model) related(p *Packet, now time.Duration) bool {
	q := p.Quoted
	if q == nil || q.Src != p.Dst || q.Src.Is4() != p.Src.Is4() {
		return false
	}
	quoted := *q
	quoted.Ifindex, quoted.Ingress = p.Ifindex, !p.Ingress
	k := quoted.key()
	if k.kind > kindEchoRemote {
		return false
	}
	c := m.conns[k]
	return c != nil && c.generation == m.generation() && !m.expired(k, c, now)
}
