// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"encoding/binary"
	"math/rand/v2"
)

// ipBytes returns a packet with correct checksums and an identification in the IPv4 header or the IPv6 flow label.
func ipBytes(p *Packet, id int) []byte {
	f := frame{Packet: *p, payload: p.Len, fragID: uint32(id)}
	if p.Proto == protoUDP {
		f.payload = max(f.payload, 1)
	}
	b := f.bytes()[14:]
	header := 20
	if p.Src.Is6() {
		header = 40
		binary.BigEndian.PutUint32(b, 6<<28|uint32(id))
	} else {
		binary.BigEndian.PutUint16(b[10:], ^onesSum(0, b[:header]))
	}
	body := b[header:]
	at, pseudo := map[int]int{protoTCP: 16, protoUDP: 6}[p.Proto], uint32(p.Proto)+uint32(len(body))
	for _, addr := range [][]byte{p.Src.AsSlice(), p.Dst.AsSlice()} {
		pseudo = uint32(onesSum(pseudo, addr))
	}
	switch p.Proto {
	case protoICMP:
		at, pseudo = 2, 0
	case protoICMPv6:
		at = 2
	}
	sum := ^onesSum(pseudo, body)
	if sum == 0 && p.Proto == protoUDP {
		sum = 0xffff
	}
	binary.BigEndian.PutUint16(body[at:], sum)
	return b
}

func onesSum(start uint32, b []byte) uint16 {
	sum := uint64(start)
	for ; len(b) > 1; b = b[2:] {
		sum += uint64(b[0])<<8 | uint64(b[1])
	}
	if len(b) == 1 {
		sum += uint64(b[0]) << 8
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return uint16(sum)
}

// mixer generates batches from several concurrent conversations.
type mixer struct {
	*rand.Rand
	running  []*conversation
	count    int
	failures int
}

func (m *mixer) batch(n int) []planned {
	var out []planned
	for len(out) < n {
		for len(m.running) < 8 {
			m.count++
			m.running = append(m.running, m.conversation(m.count))
		}
		at := m.IntN(len(m.running))
		c := m.running[at]
		out = append(out, c.script[0])
		if c.script = c.script[1:]; len(c.script) == 0 {
			m.running = append(m.running[:at], m.running[at+1:]...)
		}
	}
	return out
}

// conversation generates the packets of two hosts that follow the RFCs, and of a blind attacker. Side 0 is the service,
// 1 the peer.
type conversation struct {
	*rand.Rand
	script []planned
	number int
	addr   [2]string
	port   [2]uint16
	first  int // initiating side

	isn, next, acked [2]uint32 // acked: sequence number of the other side that this side has acknowledged
	edge             [2]uint32 // right edge of the window of the other side
	win              [2]uint16
	scale            [2]uint8 // as in Packet: the option plus 1
	fin              [2]bool
}

func (m *mixer) conversation(number int) *conversation {
	c := &conversation{Rand: m.Rand, number: number}
	v4 := m.IntN(3) > 0
	c.addr = [2]string{diffAddr("web", v4), diffAddr("far", v4)}
	far := uint16(10000 + number%50000)
	if c.port = [2]uint16{diffPort, far}; m.IntN(2) == 0 {
		c.port = [2]uint16{far, 443}
	} else {
		c.first = 1
	}
	switch m.IntN(12) {
	case 0:
		c.strangers()
	case 1:
		c.datagrams()
	default:
		c.stream()
	}
	return c
}

func (c *conversation) add(kind string, p Packet) {
	c.script = append(c.script, planned{Packet: p, kind: kind, ingress: p.Ingress, conversation: c.number})
}

func (c *conversation) attack(kind string, p Packet) {
	c.script = append(c.script, planned{Packet: p, kind: "hostile " + kind, hostile: true, ingress: p.Ingress,
		conversation: c.number})
}

// segment returns the next segment of side s.
func (c *conversation) segment(s int, flags uint8, length int) Packet {
	p := tcp(c.addr[s], c.port[s], c.addr[1-s], c.port[1-s], flags)
	p.Ingress, p.Seq, p.Win, p.Len = s == 1, c.next[s], c.win[s], length
	if flags&tcpACK != 0 {
		p.Ack = c.acked[s]
	}
	if flags&tcpSYN != 0 {
		p.Scale = c.scale[s]
	}
	return p
}

// window returns the scaled window of side s.
func (c *conversation) window(s int) uint32 {
	if c.scale[0] == 0 || c.scale[1] == 0 {
		return uint32(c.win[s])
	}
	return uint32(c.win[s]) << min(14, c.scale[s]-1)
}

// send sends a segment of side s; the other side learns of it when it acknowledges.
func (c *conversation) send(kind string, s int, flags uint8, length int) Packet {
	if flags&tcpACK != 0 && c.IntN(4) > 0 { // else a delayed acknowledgement
		c.acked[s] = c.next[1-s]
	}
	p := c.segment(s, flags, length)
	c.add(kind, p)
	c.next[s] = p.end()
	if flags&tcpACK != 0 {
		edge := c.acked[s] + c.window(s)
		if flags&tcpSYN != 0 {
			edge = c.acked[s] + uint32(c.win[s])
		}
		if after(edge, c.edge[1-s]) {
			c.edge[1-s] = edge
		}
	}
	return p
}

// begin resets the state and chooses sequence numbers.
func (c *conversation) begin() {
	again := len(c.script) > 0
	for s := range 2 {
		c.isn[s] = c.next[s] + 100000 + c.Uint32N(1<<20)
		if !again && c.number%3 == 0 {
			c.isn[s] = -c.Uint32N(3000) // wraps soon
		} else if !again {
			c.isn[s] = c.Uint32()
		}
		c.next[s], c.edge[s], c.acked[s], c.fin[s] = c.isn[s], c.isn[s], 0, false
		c.win[s] = []uint16{65535, 64240, 29200, 1000, 100}[c.IntN(5)]
		c.scale[s] = []uint8{0, 1, 8, 8, 4}[c.IntN(5)]
	}
}

func (c *conversation) stream() {
	for round := 1 + c.IntN(2); round > 0; round-- {
		c.begin()
		if !c.handshake() {
			continue
		}
		for n := c.IntN(14); n > 0; n-- {
			c.talk()
		}
		if c.IntN(10) == 0 {
			c.restart()
			continue
		}
		c.end()
	}
}

// handshake runs a handshake, and reports whether the connection is open.
func (c *conversation) handshake() bool {
	a, b := c.first, 1-c.first
	if c.IntN(20) == 0 {
		return c.simultaneousOpen()
	}
	fast := 0
	if c.IntN(20) == 0 {
		fast = 100 // TCP Fast Open
	}
	syn := c.send("SYN", a, tcpSYN, fast)
	if c.IntN(8) == 0 {
		c.add("SYN again", syn)
	}
	c.handshakeAttack()
	if c.IntN(12) == 0 {
		refuse := c.segment(b, tcpRST|tcpACK, 0)
		refuse.Seq, refuse.Ack, refuse.Win = 0, c.next[a], 0
		c.add("RST of a SYN", refuse)
		return false
	}
	if fast > 0 && c.IntN(2) == 0 {
		c.next[a] = c.isn[a] + 1 // the data is not accepted, and retransmitted
	}
	c.acked[b] = c.next[a]
	answer := c.segment(b, tcpSYN|tcpACK, 0)
	c.add("SYN ACK", answer)
	c.next[b], c.edge[a] = answer.end(), c.acked[b]+uint32(c.win[b])
	if c.IntN(8) == 0 {
		c.add("SYN ACK again", answer)
	}
	c.handshakeAttack()
	c.acked[a] = c.next[b]
	c.add("ACK", c.segment(a, tcpACK, 0))
	c.edge[b] = c.acked[a] + c.window(a)
	return true
}

// simultaneousOpen runs a simultaneous open.
func (c *conversation) simultaneousOpen() bool {
	for _, s := range []int{c.first, 1 - c.first} {
		p := c.segment(s, tcpSYN, 0)
		c.add("SYN of both", p)
		c.next[s] = p.end()
	}
	for _, s := range []int{c.first, 1 - c.first} {
		c.acked[s] = c.next[1-s]
		p := c.segment(s, tcpSYN|tcpACK, 0)
		p.Seq = c.isn[s]
		c.add("SYN ACK of both", p)
		c.edge[1-s] = c.acked[s] + uint32(c.win[s])
	}
	return true
}

// talk runs one event of an open connection.
func (c *conversation) talk() {
	s := c.IntN(2)
	if c.IntN(3) == 0 {
		c.streamAttack()
	}
	if c.fin[s] {
		c.send("ACK", s, tcpACK, 0)
		return
	}
	room := int(c.edge[s] - c.next[s])
	switch c.IntN(12) {
	case 0:
		c.keepalive(s)
	case 1:
		c.probe(s)
	case 2:
		c.reorder(s, room)
	case 3:
		c.icmp(s)
	case 4, 5:
		c.send("ACK", s, tcpACK, 0)
	case 6:
		if room > 0 && !c.fin[1-s] {
			c.send("FIN of one side", s, tcpFIN|tcpACK, 0)
			c.fin[s] = true
		}
	default:
		if room > 0 {
			p := c.send("data", s, tcpACK|tcpPSH, 1+c.IntN(min(room, 1300)))
			if c.IntN(6) == 0 {
				c.add("data again", p)
			}
		}
	}
}

func (c *conversation) keepalive(s int) {
	if c.acked[1-s] != c.next[s] {
		c.send("ACK", 1-s, tcpACK, 0)
		return
	}
	p := c.segment(s, tcpACK, c.IntN(2))
	p.Seq--
	c.add("keep-alive", p)
	c.acked[1-s] = c.next[s]
	c.add("ACK", c.segment(1-s, tcpACK, 0))
}

// probe fills a small window, closes it, sends window probes, and opens it again.
func (c *conversation) probe(s int) {
	if room := c.edge[s] - c.next[s]; room == 0 || room > 1300 {
		return
	} else {
		c.send("data", s, tcpACK, int(room))
	}
	win := c.win[1-s]
	c.win[1-s] = 0
	for range 2 {
		c.acked[1-s] = c.next[s]
		c.add("closed window", c.segment(1-s, tcpACK, 0))
		probe := c.segment(s, tcpACK, 1)
		c.add("window probe", probe)
	}
	c.win[1-s] = win
	c.add("window update", c.segment(1-s, tcpACK, 0))
	c.edge[s] = c.acked[1-s] + c.window(1-s)
}

func (c *conversation) reorder(s, room int) {
	if room < 20 {
		return
	}
	one := c.segment(s, tcpACK, 10)
	two := c.segment(s, tcpACK, 10)
	two.Seq += 10
	c.add("data out of order", two)
	c.add("data out of order", one)
	c.next[s] = two.end()
}

// icmp returns an error about the last segment of side s, from a router on the path.
func (c *conversation) icmp(s int) {
	p := c.segment(s, tcpACK, 20)
	p.Seq -= 20
	c.add("ICMP error", c.errorAbout(p))
}

func (c *conversation) errorAbout(p Packet) Packet {
	e := Packet{Ingress: !p.Ingress, Src: p.Dst, Dst: p.Src, Proto: protoICMP, ICMPType: 3, ICMPCode: 1, HopLimit: 64,
		Quoted: &p}
	if p.Src.Is6() {
		e.Proto, e.ICMPType, e.ICMPCode = protoICMPv6, 1, 0
	}
	return e
}

// restart reboots the initiating side, which then connects again from the same port.
func (c *conversation) restart() {
	a, b := c.first, 1-c.first
	old := *c
	c.isn[a] = c.next[a] + 1<<25 + c.Uint32N(1<<20)
	c.next[a] = c.isn[a]
	syn := c.segment(a, tcpSYN, 0)
	c.add("SYN after a crash", syn)
	if c.IntN(2) == 0 { // the other side has rebooted, too
		c.isn[b] = c.Uint32()
		c.next[b], c.next[a] = c.isn[b], syn.end()
		c.acked[b] = c.next[a]
		answer := c.segment(b, tcpSYN|tcpACK, 0)
		c.add("SYN ACK after a crash", answer)
		c.next[b] = answer.end()
		c.acked[a], c.fin = c.next[b], [2]bool{}
		c.add("ACK after a crash", c.segment(a, tcpACK, 0))
		c.edge[a], c.edge[b] = c.next[a]+uint32(c.win[b]), c.next[b]+c.window(a)
		c.send("data after a crash", b, tcpACK, 1)
		c.end()
		return
	}
	old.acked[b] = old.next[a]
	challenge := old.segment(b, tcpACK, 0)
	c.add("challenge ACK", challenge)
	rst := c.segment(a, tcpRST, 0)
	rst.Seq = challenge.Ack
	c.add("RST of a challenge", rst)
	c.add("SYN after a crash", syn)
	c.next[b], c.next[a] = old.next[b]+500000, syn.end()
	c.acked[b] = c.next[a]
	c.add("SYN ACK after a crash", c.segment(b, tcpSYN|tcpACK, 0))
	c.next[b]++
	c.acked[a] = c.next[b]
	c.add("ACK after a crash", c.segment(a, tcpACK, 0))
}

// end closes the connection by FIN or RST, or leaves it open.
func (c *conversation) end() {
	s := c.IntN(2)
	switch c.IntN(5) {
	case 0:
		c.acked[s] = c.next[1-s]
		c.add("RST", c.segment(s, []uint8{tcpRST, tcpRST | tcpACK}[c.IntN(2)], 0))
		return
	case 1:
		return
	}
	for _, side := range []int{s, 1 - s} {
		c.streamAttack()
		if !c.fin[side] {
			c.acked[side] = c.next[1-side]
			p := c.segment(side, tcpFIN|tcpACK, 0)
			c.add("FIN", p)
			c.next[side], c.fin[side] = p.end(), true
			if c.IntN(8) == 0 {
				c.add("FIN again", p)
			}
		}
		c.acked[1-side] = c.next[side]
		c.add("ACK of FIN", c.segment(1-side, tcpACK, 0))
	}
	if c.IntN(4) == 0 {
		c.streamAttack()
	}
}

// outOfWindow moves a sequence number outside all windows.
func (c *conversation) outOfWindow(x uint32) uint32 { return x + 1<<28 + c.Uint32N(1<<32-1<<29) }

// blind returns a segment of the attacker, who spoofs the other side and knows addresses and ports only.
func (c *conversation) blind(flags uint8, length int) Packet {
	p := c.segment(1, flags, length)
	p.Seq = c.outOfWindow(c.next[1])
	if flags&tcpACK != 0 {
		p.Ack = c.outOfWindow(c.next[0])
	}
	return p
}

func (c *conversation) handshakeAttack() {
	if c.IntN(4) > 0 || c.first == 1 {
		return
	}
	switch c.IntN(4) {
	case 0:
		c.attack("SYN ACK of a wrong number", c.blind(tcpSYN|tcpACK, 0))
	case 1:
		c.attack("RST in the handshake", c.blind(tcpRST|tcpACK, 0))
	case 2:
		c.attack("data in the handshake", c.blind(tcpACK|tcpPSH, 10))
	case 3:
		c.attack("FIN in the handshake", c.blind(tcpFIN|tcpACK, 0))
	}
}

func (c *conversation) streamAttack() {
	right := func(flags uint8) Packet { // valid sequence numbers, but wrong flags
		p := c.segment(1, flags, 0)
		p.Ack = c.next[0]
		return p
	}
	switch c.IntN(11) {
	case 0:
		c.attack("data out of window", c.blind(tcpACK|tcpPSH, 1+c.IntN(500)))
	case 1:
		c.attack("FIN out of window", c.blind(tcpFIN|tcpACK, 0))
	case 2:
		c.attack("RST out of window", c.blind([]uint8{tcpRST, tcpRST | tcpACK}[c.IntN(2)], 0))
	case 3:
		p := c.segment(1, tcpACK, 1)
		p.Ack = c.next[0] + 1<<20 + c.Uint32N(1<<30)
		c.attack("ACK of what was never sent", p)
	case 4:
		c.attack("null", right(0))
	case 5:
		c.attack("xmas", right(tcpFIN|tcpPSH|tcpURG))
	case 6:
		c.attack("SYN FIN", right(tcpSYN|tcpFIN))
	case 7:
		c.attack("SYN RST", right(tcpSYN|tcpRST))
	case 8:
		c.attack("SYN ACK", c.blind(tcpSYN|tcpACK, 0))
	case 9:
		p := c.segment(0, tcpACK, 20)
		p.Seq = c.outOfWindow(c.next[0])
		c.attack("ICMP error of a wrong number", c.errorAbout(p))
	case 10:
		if c.first == 0 {
			c.attack("SYN to who began", c.blind(tcpSYN, 0))
		}
	}
}

// strangers returns packets without a connection.
func (c *conversation) strangers() {
	c.begin()
	c.first = 1
	for n := 1 + c.IntN(6); n > 0; n-- {
		flags := []uint8{tcpSYN | tcpACK, tcpACK, tcpACK | tcpPSH, tcpFIN | tcpACK, tcpRST, tcpRST | tcpACK, 0,
			tcpSYN | tcpFIN, tcpSYN | tcpRST, tcpFIN | tcpPSH | tcpURG}
		c.attack("segment of no connection", c.blind(flags[c.IntN(len(flags))], c.IntN(2)))
		if c.IntN(4) == 0 {
			c.attack("ICMP error of no connection", c.errorAbout(c.segment(0, tcpACK, 20)))
		}
		if c.IntN(4) == 0 {
			p := c.blind(tcpSYN, 0)
			p.DstPort = 22
			c.attack("SYN to a closed port", p)
		}
	}
}

func (c *conversation) datagrams() {
	packet := func(s int) Packet {
		p := udp(c.addr[s], c.port[s], c.addr[1-s], c.port[1-s])
		p.Ingress = s == 1
		return p
	}
	for n := 1 + c.IntN(4); n > 0; n-- {
		c.add("datagram", packet(c.first))
		c.add("datagram", packet(1-c.first))
		p := packet(1)
		p.DstPort = 53
		c.attack("datagram to a closed port", p)
	}
}
