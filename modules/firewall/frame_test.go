// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"encoding/binary"
	"net/netip"
)

// frame describes the encapsulation of a packet. Checksums are zero, since nothing in the chain reads them.
type frame struct {
	Packet
	vlans   int
	options int   // bytes of IPv4 options, a multiple of 4
	ext     []int // IPv6 extension headers by number (0 hop-by-hop, 43 routing, 60 destination, 44 fragment)
	extLen  int   // bytes of the last extension header, a multiple of 8; 8 unless set
	fragOff int   // bytes; with fragMore or an offset this is a fragment
	more    bool
	fragID  uint32
	payload int
}

func (f frame) bytes() []byte {
	out := []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2}
	for range f.vlans {
		out = append(out, 0x81, 0x00, 0x00, 0x05)
	}
	if f.Src.Is4() {
		return append(append(out, 0x08, 0x00), f.ip4()...)
	}
	return append(append(out, 0x86, 0xdd), f.ip6()...)
}

func (f frame) transport() []byte {
	if f.fragOff > 0 {
		return make([]byte, f.payload)
	}
	var out []byte
	switch {
	case f.Proto == protoTCP:
		out = make([]byte, 20)
		binary.BigEndian.PutUint16(out, f.SrcPort)
		binary.BigEndian.PutUint16(out[2:], f.DstPort)
		binary.BigEndian.PutUint32(out[4:], f.Seq)
		binary.BigEndian.PutUint32(out[8:], f.Ack)
		if f.Scale != 0 { // after another option
			out = append(out, 2, 4, 5, 0xb4, 1, 3, 3, f.Scale-1)
		}
		out[12], out[13] = byte(len(out)/4)<<4, f.TCPFlags
		binary.BigEndian.PutUint16(out[14:], f.Win)
	case f.Proto == protoUDP:
		out = make([]byte, 8)
		binary.BigEndian.PutUint16(out, f.SrcPort)
		binary.BigEndian.PutUint16(out[2:], f.DstPort)
		binary.BigEndian.PutUint16(out[4:], uint16(8+f.payload))
	case f.isICMP():
		out = make([]byte, 8)
		out[0], out[1] = f.ICMPType, f.ICMPCode
		binary.BigEndian.PutUint16(out[4:], f.ICMPID)
		if f.Quoted != nil {
			q := frame{Packet: *f.Quoted, payload: 8}.bytes()[14:]
			out = append(out, q[:min(len(q), 48)]...)
		}
	}
	return append(out, make([]byte, f.payload)...)
}

func (f frame) ip4() []byte {
	body := f.transport()
	out := make([]byte, 20+f.options)
	out[0] = 0x40 | byte(len(out)/4)
	binary.BigEndian.PutUint16(out[2:], uint16(len(out)+len(body)))
	binary.BigEndian.PutUint16(out[4:], uint16(f.fragID))
	off := uint16(f.fragOff / 8)
	if f.more {
		off |= 0x2000
	}
	binary.BigEndian.PutUint16(out[6:], off)
	out[8], out[9] = 64, byte(f.Proto)
	copy(out[12:], f.Src.AsSlice())
	copy(out[16:], f.Dst.AsSlice())
	for i := 20; i < len(out); i++ {
		out[i] = 1 // no operation
	}
	return append(out, body...)
}

func (f frame) ip6() []byte {
	body := f.transport()
	next := f.Proto
	for i := len(f.ext) - 1; i >= 0; i-- {
		h := make([]byte, 8)
		if i == len(f.ext)-1 && f.extLen > 8 {
			h = make([]byte, f.extLen)
			h[1] = byte(f.extLen/8 - 1)
		}
		h[0] = byte(next)
		if f.ext[i] == 44 {
			off := uint16(f.fragOff)
			if f.more {
				off |= 1
			}
			binary.BigEndian.PutUint16(h[2:], off)
			binary.BigEndian.PutUint32(h[4:], f.fragID)
		}
		body = append(h, body...)
		next = f.ext[i]
	}
	out := make([]byte, 40)
	out[0] = 0x60
	binary.BigEndian.PutUint16(out[4:], uint16(len(body)))
	out[6], out[7] = byte(next), f.HopLimit
	copy(out[8:], f.Src.AsSlice())
	copy(out[24:], f.Dst.AsSlice())
	return append(out, body...)
}

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func tcp(src string, sport uint16, dst string, dport uint16, flags uint8) Packet {
	return Packet{Src: addr(src), Dst: addr(dst), Proto: protoTCP, SrcPort: sport, DstPort: dport, TCPFlags: flags,
		Win: 1000, HopLimit: 64}
}

func udp(src string, sport uint16, dst string, dport uint16) Packet {
	return Packet{Src: addr(src), Dst: addr(dst), Proto: protoUDP, SrcPort: sport, DstPort: dport, HopLimit: 64}
}

func icmp(src, dst string, t uint8, id uint16) Packet {
	p := Packet{Src: addr(src), Dst: addr(dst), Proto: protoICMP, ICMPType: t, ICMPID: id, HopLimit: 64}
	if p.Src.Is6() {
		p.Proto = protoICMPv6
	}
	return p
}

// tcpFlow generates the segments of one connection, with the current sequence numbers of both sides.
type tcpFlow struct {
	addr [2]string // of the service, and of the peer
	port [2]uint16
	next [2]uint32
}

func newTCPFlow(service string, servicePort uint16, far string, farPort uint16) *tcpFlow {
	return &tcpFlow{[2]string{service, far}, [2]uint16{servicePort, farPort}, [2]uint32{1000, 0xfffffff0}}
}

// out returns a segment from the service.
func (f *tcpFlow) out(flags uint8, length int) frame { return f.segment(0, flags, length) }

// in returns a segment to the service.
func (f *tcpFlow) in(flags uint8, length int) frame { return f.segment(1, flags, length) }

func (f *tcpFlow) segment(from int, flags uint8, length int) frame {
	p := tcp(f.addr[from], f.port[from], f.addr[1-from], f.port[1-from], flags)
	p.Ingress, p.Seq, p.Len = from == 1, f.next[from], length
	if flags&tcpACK != 0 {
		p.Ack = f.next[1-from]
	}
	f.next[from] = p.end()
	return frame{Packet: p, payload: length}
}

// again returns a retransmission of the last segment, of one sequence number.
func (f *tcpFlow) again(from int, flags uint8) frame {
	f.next[from]--
	return f.segment(from, flags, 0)
}

// establish passes the handshake of a connection that the service or the peer initiates.
func (k *kernel) establish(f *tcpFlow, from int) bool {
	k.t.Helper()
	for _, segment := range []frame{f.segment(from, tcpSYN, 0), f.segment(1-from, tcpSYN|tcpACK, 0),
		f.segment(from, tcpACK, 0)} {
		if !k.pass(segment.bytes(), segment.Ingress) {
			return false
		}
	}
	return true
}
