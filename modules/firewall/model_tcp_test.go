// SPDX-License-Identifier: Apache-2.0

package firewall

// The semantics of tcp.h in plain Go.

type fit int

const (
	fitNot  fit = iota
	fitPass     // passes without a change of state
	fitYes
)

const lag = 66000

func after(a, b uint32) bool { return int32(a-b) > 0 }

// side returns the index of a packet's sender: the service, or the peer.
func side(p *Packet) int {
	if p.Ingress {
		return 1
	}
	return 0
}

func (p *Packet) end() uint32 {
	n := p.Seq + uint32(p.Len)
	for _, flag := range []uint8{tcpSYN, tcpFIN} {
		if p.TCPFlags&flag != 0 {
			n++
		}
	}
	return n
}

func (s *tcpPeer) init(p *Packet) {
	*s = tcpPeer{end: p.end(), maxEnd: p.Seq + 1, maxWin: max(1, uint32(p.Win)), hasScale: p.Scale != 0}
	if s.hasScale {
		s.scale = min(p.Scale-1, 14)
	}
}

func (s *tcpPeer) ack(ack uint32) {
	if !s.hasAcked || after(ack, s.acked) {
		s.acked, s.hasAcked = ack, true
	}
}

func (c *connState) unseen() bool {
	return c.learnt || c.peer[0].maxWin|c.peer[1].maxWin == 0
}

func (c *connState) peers(p *Packet) (s, r *tcpPeer) { return &c.peer[side(p)], &c.peer[1-side(p)] }

func (c *connState) learn(p *Packet) fit {
	s, r := c.peers(p)
	next := p.Seq == s.end
	if s.maxWin == 0 {
		next = !p.tcp(tcpRST)
	}
	next = next || r.hasAcked && p.Seq == r.acked
	switch {
	case p.tcp(tcpRST|tcpFIN) && !next:
		return fitPass
	case p.tcp(tcpRST):
		return fitYes
	}
	if s.maxWin == 0 || p.tcp(tcpFIN) || after(p.end(), s.end) {
		s.end, s.fin = p.end(), p.tcp(tcpFIN)
	}
	s.maxWin = 1
	s.ack(p.Ack)
	return fitYes
}

// fit handles a segment of a connection with known state of both sides.
func (c *connState) fit(p *Packet) fit {
	s, r := c.peers(p)
	ack, end := r.end, p.end()
	if p.tcp(tcpACK) {
		ack = p.Ack
	}
	switch {
	case !p.tcp(tcpACK | tcpRST):
		return fitNot
	case c.unseen():
		return c.learn(p)
	case after(p.Seq, s.maxEnd), !after(end, s.end-r.maxWin-1), after(ack, r.end), !after(ack, r.end-max(s.maxWin, lag)-1):
		return fitNot
	case p.tcp(tcpRST):
		exact := p.Seq == s.end || r.hasAcked && p.Seq == r.acked
		switch {
		case r.hasAcked && after(r.acked, p.Seq):
			return fitNot
		case exact:
			return fitYes
		}
		return fitPass
	}
	win := uint32(p.Win)
	if !p.tcp(tcpSYN) {
		win <<= s.scale
	}
	s.maxWin = max(s.maxWin, win)
	if after(end, s.maxEnd) {
		r.maxWin += end - s.maxEnd
	}
	if after(end, s.end) || p.tcp(tcpFIN) && !after(r.acked, end) {
		s.end, s.fin = end, p.tcp(tcpFIN)
	}
	s.ack(ack)
	if edge := ack + max(1, win); after(edge, r.maxEnd) {
		r.maxEnd = edge
	}
	return fitYes
}

// accept handles a SYN+ACK.
func (c *connState) accept(p *Packet) fit {
	s, r := c.peers(p)
	if c.phase == phaseNew {
		if r.maxWin == 0 || after(r.maxEnd, p.Ack) || after(p.Ack, r.end) {
			return fitNot
		}
	} else if !s.hasAcked || p.Ack != s.acked {
		return fitNot
	}
	if s.maxWin == 0 || p.end() != s.end {
		s.init(p)
	}
	if !s.hasScale || !r.hasScale {
		s.scale, r.scale = 0, 0
	}
	s.ack(p.Ack)
	r.end, r.maxEnd = p.Ack, p.Ack+max(1, uint32(p.Win))
	c.phase = phaseReplied
	return fitYes
}

// open handles a segment of a connection that is not, or no longer, established.
func (c *connState) open(p *Packet) fit {
	s, r := c.peers(p)
	first, syn := p.Ingress == c.ingress, p.TCPFlags&(tcpSYN|tcpACK) == tcpSYN
	if c.phase == phaseNew && !c.unseen() {
		return c.handshake(p)
	}
	if syn {
		if c.phase == phaseReplied && (first || p.end() == s.end) {
			return fitPass
		}
		return fitNot
	}
	if p.tcp(tcpSYN) && c.phase == phaseReplied && !r.hasAcked && p.end() != s.end {
		return c.accept(p)
	}
	acknowledges := s.hasAcked || p.tcp(tcpACK) && !after(r.maxEnd, p.Ack)
	if !c.unseen() && c.phase == phaseReplied && first && !acknowledges && !p.tcp(tcpRST) {
		return fitNot
	}
	if f := c.fit(p); f != fitYes || p.tcp(tcpRST) {
		if f == fitYes {
			c.ends(p)
		}
		return f
	}
	c.ends(p)
	switch {
	case c.phase == phaseNew && !first:
		c.phase = phaseReplied
	case c.phase == phaseReplied && (c.unseen() && first || !c.unseen() && s.hasAcked && r.hasAcked):
		c.phase = phaseEstablished
	}
	return fitYes
}

// handshake handles a segment of a connection whose SYN is unanswered.
func (c *connState) handshake(p *Packet) fit {
	s, r := c.peers(p)
	first := p.Ingress == c.ingress
	answers := p.tcp(tcpACK) && !after(r.maxEnd, p.Ack) && !after(p.Ack, r.end)
	switch p.TCPFlags & (tcpSYN | tcpACK | tcpRST | tcpFIN) {
	case tcpSYN:
		if s.maxWin != 0 && !after(p.end(), s.end) {
			return fitPass
		}
		s.init(p)
		return fitYes
	case tcpSYN | tcpACK:
		return c.accept(p)
	case tcpACK:
		if !first && p.Len == 0 {
			s.acked, s.hasAcked = p.Ack, true
			return fitYes
		}
	case tcpRST, tcpRST | tcpACK:
		if p.TCPFlags&tcpACK == 0 && first && r.hasAcked && p.Seq == r.acked {
			return fitPass
		}
		if first && p.Seq == s.end || !first && answers {
			c.phase = phaseReset
			return fitYes
		}
	}
	return fitNot
}

// quotes reports whether an ICMP error may be about a segment.
func (c *connState) quotes(p *Packet) bool {
	s, r := c.peers(p)
	return c.unseen() || s.maxWin != 0 && s.end-p.Seq <= max(r.maxWin, lag)
}
