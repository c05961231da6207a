// SPDX-License-Identifier: Apache-2.0

// Package extract is what the classifier's data plane does before a model is asked, in Go: from packets to the features
// of sources in windows. Tests hold both against each other, number by number; so features that models are trained with
// are those that they meet in the kernel.
package extract

import (
	"encoding/binary"
	"math/bits"
)

var (
	le = binary.LittleEndian
	be = binary.BigEndian
)

// Outcome is the result of parsing a frame: enum cls_outcome.
type Outcome int

// Outcomes.
const (
	Message   Outcome = iota
	Fragment          // a later one
	Secured           // cannot be read
	NoSource          // acknowledgements, beacons, commands; no source to count it for
	Truncated         // ends within a header
	Malformed         // reserved modes, impossible lengths
	NotOurs
)

// Kinds of messages, in the order of the features.
const (
	DIS = iota
	DIO
	DAO
	DAOAck
	Control // RPL messages of other kinds
	Other   // no RPL
)

// Frame is what is found in one of IEEE 802.15.4. Addresses are numbers, in network byte order.
type Frame struct {
	Link         uint64 // source address of the MAC header
	ID           uint64 // interface identifier of the source, 0: none
	PAN          uint16 // of the source
	Broadcast    bool   // to the link's broadcast address
	HasSeq       bool
	Seq          uint8
	Tag, Size    uint16 // of a 6LoWPAN fragment; Size 0: none
	Kind         int
	RPL          bool
	HasDIO       bool
	DODAGVersion uint8
	Rank         uint16
}

const (
	maxFrame = 127 // of longer frames the first so many bytes are examined

	fcfSecurity = 1 << 3
	fcfCompress = 1 << 6
	fcfNoSeq    = 1 << 8
	fcfIE       = 1 << 9

	modeReserved = 1
	modeShort    = 2
	modeExtended = 3
)

// walk goes through a frame: what is left of it. err is set by the first step that fails, and all steps after it do
// nothing.
type walk struct {
	left []byte
	err  Outcome // Message: none
	f    *Frame
}

// take returns the next n bytes, or as many zeros when the frame ends before.
func (w *walk) take(n int) []byte {
	if w.err == Message && len(w.left) < n {
		w.err = Truncated
	}
	if w.err != Message {
		return make([]byte, n)
	}
	out := w.left[:n]
	w.left = w.left[n:]
	return out
}

func (w *walk) fail(o Outcome) {
	if w.err == Message {
		w.err = o
	}
}

func shortID(addr uint16) uint64 { return 0x000000fffe000000 | uint64(addr) }

func longID(eui uint64) uint64 { return eui ^ 2<<56 }

// ParseFrame finds what is in a frame, which comes without its FCS.
func ParseFrame(b []byte) (Frame, Outcome) {
	f := Frame{Kind: Other, PAN: 0xffff}
	if len(b) == 0 {
		return f, Truncated
	}
	w := &walk{left: b[:min(len(b), maxFrame)], f: &f}
	w.mac()
	if w.err == Message {
		w.lowpan()
	}
	if w.err == Message && f.ID == 0 {
		return f, NoSource
	}
	return f, w.err
}

// mac parses the IEEE 802.15.4 header. Only data frames have a source to count (NoSource otherwise), reserved address
// modes are malformed, and a secured frame ends the walk, because its payload is encrypted.
func (w *walk) mac() {
	fcf := le.Uint16(w.take(2))
	if w.err != Message {
		return
	}
	version, dst, src := fcf>>12&3, fcf>>10&3, fcf>>14&3
	switch {
	case fcf&7 != 1:
		w.fail(NoSource)
		return
	case version == 3 || dst == modeReserved || src == modeReserved:
		w.fail(Malformed)
		return
	}
	if version < 2 || fcf&fcfNoSeq == 0 {
		w.f.Seq = w.take(1)[0]
		w.f.HasSeq = w.err == Message
	}
	dstPAN, srcPAN := pans(fcf, version, dst, src)
	if dstPAN {
		w.f.PAN = le.Uint16(w.take(2))
	}
	switch dst {
	case modeShort:
		w.f.Broadcast = le.Uint16(w.take(2)) == 0xffff
	case modeExtended:
		w.take(8)
	}
	if srcPAN {
		w.f.PAN = le.Uint16(w.take(2))
	}
	w.macSource(src)
	if w.err == Message && fcf&fcfSecurity != 0 {
		w.fail(Secured)
	}
	if version == 2 && fcf&fcfIE != 0 {
		w.elements()
	}
}

func (w *walk) macSource(mode uint16) {
	switch mode {
	case modeShort:
		addr := le.Uint16(w.take(2))
		w.f.Link, w.f.ID = uint64(addr), shortID(addr)
	case modeExtended:
		w.f.Link = le.Uint64(w.take(8))
		w.f.ID = longID(w.f.Link)
	}
}

// pans reports which PAN identifiers are there (IEEE 802.15.4-2015, table 7-2; before that version any address has one,
// but for the source's with compression).
func pans(fcf, version, dst, src uint16) (ofDst, ofSrc bool) {
	compressed := fcf&fcfCompress != 0
	if version < 2 {
		return dst != 0, src != 0 && !compressed
	}
	bothLong := dst == modeExtended && src == modeExtended
	switch {
	case dst == 0 && src == 0:
		return compressed, false
	case src == 0 || bothLong:
		return !compressed, false
	case dst == 0:
		return false, !compressed
	}
	return true, !compressed
}

const maxElements = 6

// elements steps over information elements: those of the header, then, if there are, those of the payload.
func (w *walk) elements() {
	for range maxElements {
		if len(w.left) == 0 || w.err != Message {
			return
		}
		ie := le.Uint16(w.take(2))
		if w.err == Message && ie&0x8000 != 0 {
			w.fail(Malformed)
		}
		w.take(int(ie & 0x7f))
		switch ie >> 7 & 0xff {
		case 0x7e:
			w.payloadElements()
			return
		case 0x7f:
			return
		}
	}
	w.fail(Malformed)
}

// payloadElements skips payload information elements up to the terminator (group 0xf) or the end of the frame. More
// than maxElements without a terminator are malformed, so that the loop has a bound as in the kernel part.
func (w *walk) payloadElements() {
	for range maxElements {
		if len(w.left) == 0 || w.err != Message {
			return
		}
		ie := le.Uint16(w.take(2))
		if w.err == Message && ie&0x8000 == 0 {
			w.fail(Malformed)
		}
		w.take(int(ie & 0x7ff))
		if ie>>11&0xf == 0xf {
			return
		}
	}
	w.fail(Malformed)
}

// lowpan goes through 6LoWPAN (RFC 4944, RFC 6282).
func (w *walk) lowpan() {
	if len(w.left) > 0 && w.left[0]&0xc0 == 0x80 {
		w.mesh()
	}
	if w.err == Message && len(w.left) > 1 && w.left[0] == 0x50 { // broadcast
		w.take(2)
	}
	if w.err != Message || len(w.left) == 0 {
		return
	}
	if w.left[0]&0xd8 == 0xc0 {
		later := w.left[0] >= 0xe0
		h := w.take(4)
		w.f.Size, w.f.Tag = be.Uint16(h)&0x7ff, be.Uint16(h[2:])
		if later {
			w.fail(Fragment)
		}
		if w.err != Message || len(w.left) == 0 {
			return
		}
	}
	switch {
	case w.left[0] == 0x41:
		w.take(1)
		w.ip6()
	case w.left[0]>>5 == 3:
		w.iphc()
	}
}

// mesh takes the originator, not the link-layer source, as the identity of the sender (RFC 4944, section 5.2). A hop
// limit of 0xf is followed by a byte that holds the larger value.
func (w *walk) mesh() {
	first := w.take(1)[0]
	if first&0xf == 0xf {
		w.take(1)
	}
	originator, final := 8, 8
	if first&0x20 != 0 {
		originator = 2
	}
	if first&0x10 != 0 {
		final = 2
	}
	h := w.take(originator + final)
	if w.err != Message {
		return
	}
	if originator == 2 {
		w.f.ID = shortID(be.Uint16(h))
	} else {
		w.f.ID = longID(be.Uint64(h))
	}
}

// source takes an identifier, unless it is that of no address.
func (w *walk) source(id uint64) {
	if w.err == Message && id != 0 {
		w.f.ID = id
	}
}

func (w *walk) iphc() {
	h := w.take(2)
	first, flags := h[0], h[1]
	w.take(int(flags >> 7)) // context identifiers
	w.take([]int{4, 3, 1, 0}[first>>3&3])
	var next uint8
	compressed := first&4 != 0
	if !compressed {
		next = w.take(1)[0]
	}
	if first&3 == 0 {
		w.take(1) // hop limit
	}
	w.iphcSource(flags)
	w.iphcDestination(flags)
	switch {
	case w.err != Message:
	case compressed:
		w.nhc()
	default:
		w.payload(next)
	}
}

// iphcSource takes the source address of an IPHC header (RFC 6282, section 3.1.1). An elided address leaves the
// identity of the link layer as it is.
func (w *walk) iphcSource(flags uint8) {
	lengths := [4]int{16, 8, 2, 0}
	if flags&0x40 != 0 {
		lengths[0] = 0
	}
	switch a := w.take(lengths[flags>>4&3]); len(a) {
	case 16:
		w.source(be.Uint64(a[8:]))
	case 8:
		w.source(be.Uint64(a))
	case 2:
		w.source(shortID(be.Uint16(a)))
	}
}

// iphcDestination skips the destination address of an IPHC header; the combinations that RFC 6282, section 3.1.1,
// reserves are malformed.
func (w *walk) iphcDestination(flags uint8) {
	multicast, context, mode := flags&8 != 0, flags&4 != 0, flags&3
	lengths := [4]int{16, 8, 2, 0}
	switch {
	case multicast && context && mode != 0, !multicast && context && mode == 0:
		w.fail(Malformed)
	case multicast && context:
		lengths[0] = 6
	case multicast:
		lengths = [4]int{16, 6, 4, 1}
	}
	w.take(lengths[mode])
}

const maxExtensions = 4

// nhc goes through compressed extension headers (RFC 6282, 4.2).
func (w *walk) nhc() {
	for range maxExtensions {
		if len(w.left) == 0 {
			w.fail(Truncated)
			return
		}
		nhc := w.left[0]
		if id := nhc >> 1 & 7; nhc>>4 != 0xe || id == 2 || id > 4 { // UDP, fragments, IPv6 in IPv6
			return
		}
		if len(w.left) < 3 {
			w.fail(Truncated)
			return
		}
		w.take(1)
		if nhc&1 == 0 {
			next := w.take(1)[0]
			w.take(int(w.take(1)[0]))
			w.payload(next)
			return
		}
		w.take(int(w.take(1)[0]))
		if w.err != Message {
			return
		}
	}
}

func (w *walk) ip6() {
	h := w.take(40)
	if w.err != Message {
		return
	}
	if h[0]>>4 != 6 {
		w.fail(Malformed)
		return
	}
	w.source(be.Uint64(h[16:]))
	w.payload(h[6])
}

// payload goes through extension headers to the RPL message.
func (w *walk) payload(next uint8) {
	for range maxExtensions {
		if next != 0 && next != 43 && next != 60 && next != 135 {
			break
		}
		h := w.take(8)
		next = h[0]
		w.take(int(h[1]) * 8)
	}
	if w.err != Message || next != 58 {
		return
	}
	w.icmp()
}

// icmp notes RPL control messages (ICMPv6 type 155, RFC 6550, section 6). A secure variant (bit 0x80) counts as the
// kind that it secures; DODAG version and rank are read of plain DIOs only.
func (w *walk) icmp() {
	if len(w.left) < 4 {
		w.fail(Truncated)
		return
	}
	if w.left[0] != 155 {
		return
	}
	code := w.left[1]
	w.f.RPL = true
	w.f.Kind = min(int(code&0x7f), Control)
	if code == DIO && len(w.left) >= 8 {
		w.f.HasDIO, w.f.DODAGVersion, w.f.Rank = true, w.left[5], be.Uint16(w.left[6:])
	}
}

// tag is what repeats are known by: struct cls_seen.
func (f *Frame) tag() uint32 {
	if !f.HasSeq {
		return 0
	}
	return uint32(f.Link*0x9e3779b97f4a7c15>>32)&^0xff | 0x100 | uint32(f.Seq)
}

// root is the square root, rounded down, of what is below 2^62.
func root(square uint64) uint64 {
	square = min(square, 1<<62-1)
	r := uint64(0)
	for bit := (bits.Len64(square) + 1) / 2; bit >= 0; bit-- {
		if try := r | 1<<bit; try < 1<<31 && try*try <= square {
			r = try
		}
	}
	return r
}
