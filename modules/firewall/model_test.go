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
	tcpPSH
	tcpACK
	tcpURG
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

// Model is the firewall in plain Go, with which the data plane is compared. Its tables are unlimited.
type Model struct {
	*Firewall
	conns     map[connKey]*connState
	alongside map[connKey]*connState // reopened by the initiator of an established one
	answered  map[answerPlace]uint32 // hashes of keys whose answers may pass
	taken     map[int]int64          // remaining tokens of rules
	matched   int                    // the rule whose match with the last packet may be logged, -1: none
	reported  map[int]int64          // remaining tokens for logging
	headers   headers
	sets      members
}

// NewModel returns a model without connections.
func NewModel(f *Firewall) *Model {
	return &Model{Firewall: f, conns: map[connKey]*connState{}, alongside: map[connKey]*connState{},
		answered: map[answerPlace]uint32{}, taken: map[int]int64{}, reported: map[int]int64{}}
}

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
	learnt     bool // TCP that began unseen
	peer       [2]tcpPeer
	begun      time.Duration
}

// tcpPeer is one side of a TCP connection. Sequence numbers.
type tcpPeer struct {
	end, maxEnd, maxWin, acked uint32
	scale                      uint8
	hasScale, hasAcked         bool
	fin                        bool // ends at end
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
	case c.phase >= phaseReset:
		limit = t.TCPClosing
	case c.peer[0].fin || c.peer[1].fin:
		limit = t.TCPHalfClosed
	case c.phase == phaseEstablished:
		limit = t.TCPEstablished
	default:
		limit = t.TCPSyn
	}
	return now-c.seen > time.Duration(limit)
}

// Decide decides on a packet at a time of any monotonic clock, and updates the connections.
func (m *Model) Decide(p *Packet, now time.Duration) Decision {
	m.matched = -1
	if d, decided := m.byLink(p); decided {
		return d
	}
	if p.Proto == protoTCP && !bool(m.config.Malformed) && !p.flagsValid() {
		return Decision{Allow: false, Rule: -1, Slot: slotInvalid}
	}
	d := m.judge(p, now)
	if d.Allow || m.config.Mode == modeAudit {
		return d
	}
	if m.takeAnswer(p) {
		return Decision{Allow: true, Rule: -1, Slot: slotRelated}
	}
	return d
}

// judge decides by connections and rules.
func (m *Model) judge(p *Packet, now time.Duration) Decision {
	if !m.config.State.Enabled {
		return m.byLimits(p)
	}
	switch p.kind() {
	case kindError:
		if m.related(p, now) {
			return Decision{Allow: true, Rule: -1, Slot: slotRelated}
		}
		return m.byLimits(p)
	case kindLoose:
		return m.byLimits(p)
	}
	return m.track(p, now)
}

func (p *Packet) flagsValid() bool {
	switch p.TCPFlags &^ tcpPSH & 0x3f {
	case tcpSYN, tcpSYN | tcpURG, tcpSYN | tcpACK, tcpRST, tcpRST | tcpACK, tcpACK, tcpACK | tcpURG, tcpFIN | tcpACK,
		tcpFIN | tcpACK | tcpURG:
		return true
	}
	return false
}

func (p *Packet) tcp(flags uint8) bool { return p.Proto == protoTCP && p.TCPFlags&flags != 0 }

func (p *Packet) isSYN() bool {
	return p.Proto == protoTCP && p.TCPFlags&(tcpSYN|tcpACK|tcpRST|tcpFIN) == tcpSYN
}

var invalid = Decision{Allow: false, Rule: -1, Slot: slotInvalid}

func (m *Model) track(p *Packet, now time.Duration) Decision {
	k := p.key()
	c := m.conns[k]
	if c != nil && c.phase == phaseEstablished {
		if !m.expired(k, c, now) {
			return m.onEstablished(p, k, c, now)
		}
		m.dropEstablished(k)
		c = m.conns[k]
	}
	if c == nil {
		return m.unknown(p, k, m.conns, now)
	}
	known, fits := m.onOpening(p, k, c, now)
	switch {
	case !known:
		delete(m.conns, k)
		return m.unknown(p, k, m.conns, now)
	case !fits:
		return invalid
	}
	return m.tracked(p, k, c)
}

// dropEstablished removes an established connection. One that is being opened with the same key takes its place.
func (m *Model) dropEstablished(k connKey) {
	delete(m.conns, k)
	if c := m.alongside[k]; c != nil {
		m.conns[k] = c
		delete(m.alongside, k)
	}
}

func (m *Model) onEstablished(p *Packet, k connKey, c *connState, now time.Duration) Decision {
	if p.Proto != protoTCP {
		c.seen = now
		return m.tracked(p, k, c)
	}
	if p.TCPFlags&(tcpSYN|tcpACK|tcpRST) == tcpSYN && p.Ingress == c.ingress {
		return m.unknown(p, k, m.alongside, now)
	}
	switch c.fit(p) {
	case fitNot:
		alt := m.alongside[k]
		if alt == nil {
			return invalid
		}
		known, fits := m.onOpening(p, k, alt, now)
		if !known {
			delete(m.alongside, k)
		}
		if !known || !fits {
			return invalid
		}
		if p.tcp(tcpSYN | tcpRST) {
			m.dropEstablished(k)
		}
		return m.tracked(p, k, alt)
	case fitPass:
		return m.tracked(p, k, c)
	}
	c.seen = now
	c.ends(p)
	if c.phase != phaseEstablished {
		delete(m.alongside, k)
	}
	return m.tracked(p, k, c)
}

// closed reports whether both sides have sent FIN and acknowledged the other one's.
func (c *connState) closed() bool {
	a, b := &c.peer[0], &c.peer[1]
	return a.fin && b.fin && a.hasAcked && b.hasAcked && !after(a.end, b.acked) && !after(b.end, a.acked)
}

// ends handles a RST, or the segment that completes the closing by both sides.
func (c *connState) ends(p *Packet) {
	if p.tcp(tcpRST) {
		if c.phase != phaseClosed {
			c.phase = phaseReset
		}
	} else if c.closed() {
		c.phase = phaseClosed
	}
}

// unknown handles a packet without a connection, or one that may create one.
func (m *Model) unknown(p *Packet, k connKey, table map[connKey]*connState, now time.Duration) Decision {
	d := m.byRules(p, m.sets)
	stray := p.Proto == protoTCP && !p.isSYN() && p.Ingress && (p.tcp(tcpSYN|tcpRST) || m.config.State.Pickup == 0)
	m.matched = d.Rule
	if !d.Allow || !stray {
		d = m.byLimits(p)
	}
	middle := !p.Ingress && !p.tcp(tcpSYN|tcpRST)
	audited := m.config.Mode == modeAudit && (p.Proto != protoTCP || p.isSYN() || middle)
	if !p.begins() && p.Proto != protoTCP || !d.Allow && !audited {
		return d
	}
	c := &connState{seen: now, begun: now, generation: m.set, ingress: p.Ingress}
	if !d.Allow {
		c.generation = ^c.generation
	}
	if p.Proto == protoTCP && !p.isSYN() {
		if stray {
			return invalid
		}
		if p.tcp(tcpSYN | tcpRST) {
			return d
		}
		c.learnt = true
		c.fit(p)
	} else if p.Proto == protoTCP {
		c.peer[side(p)].init(p)
	}
	table[k] = c
	return d
}

func (p *Packet) begins() bool { return p.kind() == kindPlain || p.isRequest() }

// decided reports whether the current rules have allowed a connection, or denied it in audit mode.
func (m *Model) decided(c *connState) bool {
	return c.generation == m.set || m.config.Mode == modeAudit && c.generation == ^m.set
}

// tracked handles a packet of a connection. If other rules allowed the connection, it is checked again.
func (m *Model) tracked(p *Packet, k connKey, c *connState) Decision {
	if m.decided(c) {
		return Decision{Allow: true, Rule: -1, Slot: slotTracked}
	}
	first := *p
	if p.Ingress != c.ingress {
		first.Ingress, first.Src, first.Dst, first.SrcPort, first.DstPort = c.ingress, p.Dst, p.Src, p.DstPort, p.SrcPort
		if p.isICMP() {
			first.ICMPType = map[bool]uint8{true: 8, false: 128}[p.Src.Is4()]
		}
	}
	d := m.byRules(&first, m.sets)
	switch {
	case d.Allow:
		m.conns[k].generation = m.set
	case m.config.Mode == modeAudit:
		m.conns[k].generation = ^m.set
	default:
		delete(m.conns, k)
		delete(m.alongside, k)
	}
	if p.Ingress == c.ingress && !d.Allow {
		m.matched = d.Rule
	}
	if p.Ingress != c.ingress {
		d.Slot, d.Rule = slotTracked, -1
		if !d.Allow {
			d.Slot = slotRevoked
		}
	}
	return d
}

// onOpening handles a packet of a connection that is not, or no longer, established.
func (m *Model) onOpening(p *Packet, k connKey, c *connState, now time.Duration) (known, fits bool) {
	opens := p.Proto == protoTCP && p.TCPFlags&(tcpSYN|tcpACK) == tcpSYN && p.Ingress == c.ingress
	if m.expired(k, c, now) || opens && c.phase >= phaseReset {
		return false, false
	}
	if p.Proto == protoTCP {
		fit := c.open(p)
		if fit == fitYes {
			c.seen = now
		}
		return true, fit != fitNot
	}
	c.seen = now
	switch {
	case p.Ingress != c.ingress:
		if c.phase == phaseNew {
			c.phase = phaseReplied
		}
	case c.phase == phaseReplied && !p.isICMP() && now-c.begun >= time.Duration(m.config.State.assured):
		c.phase = phaseEstablished
	}
	return true, true
}

// quoted returns the packet that an ICMP error is about, or nil if the error is not addressed to its sender.
func (p *Packet) quoted() *Packet {
	q := p.Quoted
	if p.kind() != kindError || q == nil || q.Src != p.Dst || q.Src.Is4() != p.Src.Is4() {
		return nil
	}
	quoted := *q
	quoted.Ifindex, quoted.Ingress = p.Ifindex, !p.Ingress
	if quoted.kind() > kindEchoRemote {
		return nil
	}
	return &quoted
}

// related reports whether an ICMP error is about a connection.
func (m *Model) related(p *Packet, now time.Duration) bool {
	q := p.quoted()
	if q == nil {
		return false
	}
	k := q.key()
	c := m.conns[k]
	return c != nil && m.decided(c) && !m.expired(k, c, now) && (q.Proto != protoTCP || c.quotes(q))
}
