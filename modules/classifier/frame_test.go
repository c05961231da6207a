// SPDX-License-Identifier: Apache-2.0

package classifier_test

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
)

var (
	le = binary.LittleEndian
	be = binary.BigEndian
)

// macFrame describes an IEEE 802.15.4 frame; the zero value is data without addresses.
type macFrame struct {
	version   uint16 // 0: 2003, 1: 2006, 2: 2015
	kind      uint16 // 0: data (type 1), else the frame type + 1
	flags     uint16 // further bits of the frame control field
	noSeq     bool
	seq       byte
	dst, src  any // nil, uint16 or uint64
	compress  bool
	elements  []byte // IEs; with version 2
	payload   []byte
	dstPAN    uint16
	sourcePAN uint16
}

func mode(addr any) uint16 {
	switch addr.(type) {
	case uint16:
		return 2
	case uint64:
		return 3
	}
	return 0
}

func appendAddr(b []byte, addr any) []byte {
	switch a := addr.(type) {
	case uint16:
		return le.AppendUint16(b, a)
	case uint64:
		return le.AppendUint64(b, a)
	}
	return b
}

func (m macFrame) bytes() []byte {
	kind, dst, src := uint16(1), mode(m.dst), mode(m.src)
	if m.kind > 0 {
		kind = m.kind - 1
	}
	fcf := kind | m.flags | dst<<10 | m.version<<12 | src<<14
	dstPAN, srcPAN := dst != 0, src != 0 && !m.compress
	if m.version == 2 { // IEEE 802.15.4-2015, table 7-2, row by row
		row := [4]bool{dst != 0, src != 0, dst == 3 && src == 3, m.compress}
		switch row {
		case [4]bool{false, false, false, false}, [4]bool{true, false, false, true}, [4]bool{false, true, false, true},
			[4]bool{true, true, true, true}:
			dstPAN, srcPAN = false, false
		case [4]bool{false, false, false, true}, [4]bool{true, false, false, false}, [4]bool{true, true, true, false},
			[4]bool{true, true, false, true}:
			dstPAN, srcPAN = true, false
		case [4]bool{false, true, false, false}:
			dstPAN, srcPAN = false, true
		case [4]bool{true, true, false, false}:
			dstPAN, srcPAN = true, true
		}
	}
	if m.compress {
		fcf |= 1 << 6
	}
	if m.noSeq {
		fcf |= 1 << 8
	}
	if m.elements != nil {
		fcf |= 1 << 9
	}
	b := le.AppendUint16(nil, fcf)
	if !m.noSeq || m.version < 2 {
		b = append(b, m.seq)
	}
	if dstPAN {
		b = le.AppendUint16(b, m.dstPAN)
	}
	b = appendAddr(b, m.dst)
	if srcPAN {
		b = le.AppendUint16(b, m.sourcePAN)
	}
	return slices.Concat(appendAddr(b, m.src), m.elements, m.payload)
}

// node returns the EUI-64 of sender n.
func node(n uint64) uint64 { return 0x0012_4b00_0000_0000 | n }

const pan = 0xabcd

// rplFrame returns an RPL message of a node to all its neighbours, with the IPv6 source elided.
func rplFrame(n uint64, seq byte, code byte, body ...byte) []byte {
	// IPHC: traffic class elided, next header inline, hop limit 255; source from the MAC header, destination ff02::1a
	icmp := append([]byte{155, code, 0, 0}, body...)
	return macFrame{version: 1, seq: seq, compress: true, dstPAN: pan, dst: uint16(0xffff), src: node(n),
		payload: slices.Concat([]byte{0x7b, 0x3b, 58, 0x1a}, icmp)}.bytes()
}

func disFrame(n uint64, seq byte) []byte { return rplFrame(n, seq, 0, 0, 0) }

// dioFrame returns a minimal DIO with an instance, a DODAG version and a rank.
func dioFrame(n uint64, seq byte, version byte, rank uint16) []byte {
	return rplFrame(n, seq, 1, slices.Concat([]byte{0, version}, be.AppendUint16(nil, rank), make([]byte, 20))...)
}

// dataFrame returns a compressed UDP datagram.
func dataFrame(n uint64, seq byte) []byte {
	return macFrame{version: 1, seq: seq, compress: true, dstPAN: pan, dst: node(1), src: node(n),
		payload: []byte{0x7e, 0x33, 0xf3, 0x12, 0, 0, 1, 2, 3}}.bytes()
}

func zep(version byte, frame []byte) []byte {
	length := byte(len(frame) + 2)
	if version == 1 {
		return slices.Concat([]byte{'E', 'X', 1, 26, 0, 7, 1, 0, 0, 0, 0, 0, 0, 0, 0, length}, frame, []byte{0, 0})
	}
	return slices.Concat([]byte{'E', 'X', 2, 1, 26, 0, 7, 1, 0}, make([]byte, 8+4+10), []byte{length}, frame, []byte{0, 0})
}

func ethernet(etherType uint16, payload []byte) []byte {
	return slices.Concat([]byte{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1}, be.AppendUint16(nil, etherType), payload)
}

// udp6 returns an Ethernet frame with a UDP datagram; the checksum is not verified.
func udp6(sport, dport uint16, payload []byte) []byte {
	length := uint16(8 + len(payload))
	h := slices.Concat([]byte{0x60, 0, 0, 0}, be.AppendUint16(nil, length), []byte{17, 64}, make([]byte, 15), []byte{1},
		make([]byte, 15), []byte{2})
	u := be.AppendUint16(be.AppendUint16(be.AppendUint16(nil, sport), dport), length)
	return ethernet(0x86dd, slices.Concat(h, u, []byte{0, 0}, payload))
}

// wrapping is an encapsulation of frames, and its config.
type wrapping struct {
	name   string
	config settings
	wrap   func(frame []byte) []byte
}

var wrappings = []wrapping{
	{"raw", settings{"frames": uint8(0)}, func(f []byte) []byte { return f }},
	{"checksum", settings{"frames": uint8(0), "fcs_len": uint8(2)}, func(f []byte) []byte {
		return append(slices.Clone(f), 0x12, 0x34)
	}},
	{"ethernet", settings{"frames": uint8(1)}, func(f []byte) []byte { return ethernet(0x809a, f) }},
	{"vlan", settings{"frames": uint8(1)}, func(f []byte) []byte {
		return ethernet(0x8100, slices.Concat([]byte{0, 5, 0x80, 0x9a}, f))
	}},
	{"zep1", settings{"frames": uint8(2)}, func(f []byte) []byte { return udp6(17754, 17754, zep(1, f)) }},
	{"zep2", settings{"frames": uint8(2)}, func(f []byte) []byte { return udp6(40000, 17754, zep(2, f)) }},
}

// randomFrames generates frames, most of them well-formed, from few nodes, so that windows fill; some are truncated or
// modified.
type randomFrames struct {
	*rand.Rand
	seq  byte
	last []byte
}

func (r *randomFrames) addr() any {
	switch r.IntN(5) {
	case 0:
		return nil
	case 1, 2:
		return uint16(r.IntN(4))
	default:
		return node(uint64(r.IntN(4)))
	}
}

func (r *randomFrames) bytes(n int) []byte {
	out := make([]byte, n)
	for i := range out {
		out[i] = byte(r.Uint32())
	}
	return out
}

// pick returns a random choice.
func pick[T any](r *randomFrames, choices ...T) T { return choices[r.IntN(len(choices))] }

func (r *randomFrames) icmp() []byte {
	kind := pick[byte](r, 155, 155, 155, 155, 128, 135)
	code := pick[byte](r, 0, 1, 1, 2, 3, 4, 0x80, 0x81, 0x8a)
	body := r.bytes(pick(r, 0, 2, 4, 8, 24))
	if len(body) >= 4 {
		body[1], body[2], body[3] = body[1]&1, 0, body[3]&3
	}
	return slices.Concat([]byte{kind, code, 0, 0}, body)
}

// extended adds extension headers before an ICMPv6 message, and returns the type of the first one, and all bytes.
func (r *randomFrames) extended() (byte, []byte) {
	next, out := pick[byte](r, 58, 58, 58, 58, 17, 6), r.icmp()
	for range pick(r, 0, 0, 0, 1, 1, 2, 5) {
		units := r.IntN(2)
		out = slices.Concat([]byte{next, byte(units)}, r.bytes(6+8*units), out)
		next = pick[byte](r, 0, 43, 60, 135, 44)
	}
	return next, out
}

func (r *randomFrames) id() []byte {
	return be.AppendUint64(nil, pick[uint64](r, 0, 1, 2, 0xfffe000001, 0x0000_00ff_fe00_0002, node(1)))
}

func (r *randomFrames) iphc() []byte {
	first, flags := 0x60|byte(r.IntN(32)), byte(r.Uint32())
	b := []byte{first, flags}
	if flags&0x80 != 0 {
		b = append(b, 0x12)
	}
	b = append(b, r.bytes([]int{4, 3, 1, 0}[first>>3&3])...)
	next, rest := r.extended()
	if first&4 == 0 {
		b = append(b, next)
	} else {
		rest = r.nhc(next, rest)
	}
	if first&3 == 0 {
		b = append(b, 64)
	}
	switch flags >> 4 & 7 {
	case 0:
		b = slices.Concat(b, r.bytes(8), r.id())
	case 1, 5:
		b = append(b, r.id()...)
	case 2, 6:
		b = append(b, 0, byte(r.IntN(3)))
	}
	lengths := []int{16, 8, 2, 0, 0, 8, 2, 0, 16, 6, 4, 1, 6, 0, 0, 0}
	return slices.Concat(b, r.bytes(lengths[flags&0xf]), rest)
}

func (r *randomFrames) nhc(next byte, rest []byte) []byte {
	if r.IntN(4) == 0 {
		return append([]byte{0xf0 | byte(r.IntN(8))}, rest...)
	}
	var b []byte
	for range pick(r, 0, 1, 3, 4) {
		n := r.IntN(4)
		b = slices.Concat(b, []byte{0xe1 | byte(r.IntN(8))<<1, byte(n)}, r.bytes(n))
	}
	n := r.IntN(4)
	return slices.Concat(b, []byte{0xe0 | byte(r.IntN(5))<<1, next, byte(n)}, r.bytes(n), rest)
}

func (r *randomFrames) lowpan() []byte {
	switch r.IntN(8) {
	case 0:
		next, rest := r.extended()
		return slices.Concat([]byte{0x41, 0x60, 0, 0, 0, 0, 0, next, 255}, r.bytes(8), r.id(), r.bytes(16), rest)
	case 1:
		return slices.Concat([]byte{0xc0, 100, 0, byte(r.IntN(4))}, r.iphc())
	case 2:
		return slices.Concat([]byte{0xe0, 100, 0, byte(r.IntN(4)), byte(r.IntN(12))}, r.bytes(20))
	case 3:
		flags := byte(r.IntN(4)) << 4
		b := []byte{0x80 | flags | pick[byte](r, 3, 0xf)}
		if b[0]&0xf == 0xf {
			b = append(b, 20)
		}
		for _, short := range []bool{flags&0x20 != 0, flags&0x10 != 0} {
			if short {
				b = append(b, 0, byte(r.IntN(4)))
			} else {
				b = append(b, r.id()...)
			}
		}
		if r.IntN(2) == 0 {
			b = append(b, 0x50, 7)
		}
		return append(b, r.iphc()...)
	case 4:
		return append([]byte{pick[byte](r, 0x42, 0x00, 0xf1, 0x50, 0x7f)}, r.bytes(r.IntN(30))...)
	default:
		return r.iphc()
	}
}

func (r *randomFrames) elements() []byte {
	var b []byte
	for range r.IntN(3) {
		n := r.IntN(6)
		b = slices.Concat(b, le.AppendUint16(nil, uint16(n)|uint16(r.IntN(0x20))<<7), r.bytes(n))
	}
	if r.IntN(2) == 0 {
		return le.AppendUint16(b, 0x7f<<7)
	}
	b = le.AppendUint16(b, 0x7e<<7)
	for range r.IntN(3) {
		n := r.IntN(6)
		b = slices.Concat(b, le.AppendUint16(nil, 0x8000|uint16(n)|uint16(r.IntN(3))<<11), r.bytes(n))
	}
	return le.AppendUint16(b, 0x8000|0xf<<11)
}

// frame returns the next frame.
func (r *randomFrames) frame() []byte {
	if r.last == nil || r.IntN(6) > 0 {
		if r.IntN(4) > 0 {
			r.seq++
		}
		r.last = r.odd()
		if r.IntN(2) == 0 {
			r.last = r.usual()
		}
	}
	return slices.Clone(r.last)
}

// usual returns a well-formed frame.
func (r *randomFrames) usual() []byte {
	switch n := uint64(r.IntN(6)); r.IntN(4) {
	case 0:
		return disFrame(n, r.seq)
	case 1:
		return dioFrame(n, r.seq, byte(r.IntN(2)), uint16(128*r.IntN(8)))
	case 2:
		return dataFrame(n, r.seq)
	default:
		return rplFrame(n, r.seq, byte(r.IntN(5)), 0, 0, 0, 0)
	}
}

// odd returns an arbitrary frame.
func (r *randomFrames) odd() []byte {
	m := macFrame{version: uint16(r.IntN(3)), seq: r.seq, dst: r.addr(), src: r.addr(), compress: r.IntN(2) == 0,
		dstPAN:    pan,
		sourcePAN: pan + uint16(r.IntN(2)), payload: r.lowpan()}
	if r.IntN(3) == 0 {
		m.dst = uint16(0xffff)
	}
	switch r.IntN(16) {
	case 0:
		m.flags = 1 << 3
	case 1:
		m.kind = uint16(1 + r.IntN(8))
	case 2:
		m.version = 3
	}
	if m.version == 2 && r.IntN(2) == 0 {
		m.noSeq = true
	}
	if m.version == 2 && r.IntN(2) == 0 {
		m.elements = r.elements()
	}
	return r.corrupted(m.bytes())
}

// corrupted sometimes truncates or modifies a frame.
func (r *randomFrames) corrupted(b []byte) []byte {
	switch r.IntN(8) {
	case 0:
		return b[:r.IntN(len(b))+1]
	case 1:
		for range 1 + r.IntN(3) {
			b[r.IntN(len(b))] ^= byte(1 << r.IntN(8))
		}
	case 2:
		return r.bytes(1 + r.IntN(140))
	case 3:
		return append(b, r.bytes(r.IntN(120))...)
	}
	return b
}
