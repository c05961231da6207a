// SPDX-License-Identifier: Apache-2.0

package responder

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/kerb-edge/kerb/internal/chain"
	abi "github.com/kerb-edge/kerb/internal/kerbabi"
	frames "github.com/kerb-edge/kerb/internal/packet"
	"github.com/kerb-edge/kerb/modules/responder/apps/linear"
	"github.com/kerb-edge/kerb/modules/responder/apps/speedlimit"
)

// model is the data plane in plain Go for an interface with these addresses, written from docs/responder.md, without
// rate limits.
type model struct {
	hook      chain.Hook
	listeners []modelListener
	networks  []netip.Prefix // addresses of the interface
	partial   bool

	counts map[string]map[string]uint64 // by listener and outcome
}

type modelListener struct {
	name, app string
	port      uint16
	addresses []netip.Addr
	maxReply  int
	kernel    bool // speedlimit computes by itself
	cars      *int64
	limit     uint32 // speedlimit: mixed
	linear    *linear.Config
}

func (m *model) count(name, outcome string) {
	if m.counts == nil {
		m.counts = map[string]map[string]uint64{}
	}
	if m.counts[name] == nil {
		m.counts[name] = map[string]uint64{}
	}
	m.counts[name][outcome]++
}

func (m *model) run(frame []byte) (verdict, []byte) {
	name, outcome, reply := m.judge(frame)
	if outcome != "" {
		m.count(name, outcome)
	}
	switch outcome {
	case "answered":
		return answered, reply
	case "consumed":
		return dropped, nil
	}
	return passed, frame
}

func (m *model) judge(frame []byte) (name, outcome string, reply []byte) {
	p := frames.Dissect(frame)
	switch {
	case p.Outcome != abi.ParseOK && p.Outcome != abi.ParseNotIP:
		return "", "malformed", nil
	case p.Proto != 17:
		return "", "", nil
	case p.Flags&abi.FlagFragLater != 0:
		return "", "later_fragment", nil
	}
	udp := frame[p.L4:]
	if !slices.ContainsFunc(m.listeners, func(l modelListener) bool { return l.port == be.Uint16(udp[2:]) }) {
		return "", "", nil
	}
	src, dst := addresses(frame, &p)
	l := m.find(dst, be.Uint16(udp[2:]))
	if l == nil {
		return "", "other_address", nil
	}
	if outcome := m.check(frame, &p, src, dst, l); outcome != "" {
		return l.name, outcome, nil
	}
	request := udp[8:be.Uint16(udp[4:])]
	answer, outcome := l.answer(request)
	if outcome != "" {
		return l.name, outcome, nil
	}
	if len(answer) > l.maxReply {
		return l.name, "reply_size", nil
	}
	return l.name, "answered", m.reply(frame, &p, src, dst, answer)
}

func addresses(frame []byte, p *abi.Packet) (src, dst netip.Addr) {
	h := frame[p.L3:]
	if p.Family == 4 {
		return netip.AddrFrom4([4]byte(h[12:16])), netip.AddrFrom4([4]byte(h[16:20]))
	}
	return netip.AddrFrom16([16]byte(h[8:24])), netip.AddrFrom16([16]byte(h[24:40]))
}

func (m *model) find(dst netip.Addr, port uint16) *modelListener {
	own := slices.ContainsFunc(m.networks, func(n netip.Prefix) bool { return n.Addr() == dst })
	var found *modelListener
	for i := range m.listeners {
		l := &m.listeners[i]
		if l.port == port && slices.Contains(l.addresses, dst) {
			return l
		}
		if l.port == port && len(l.addresses) == 0 && own {
			found = l
		}
	}
	return found
}

func (m *model) check(frame []byte, p *abi.Packet, src, dst netip.Addr, l *modelListener) string {
	udp, h := frame[p.L4:], frame[p.L3:]
	length := int(be.Uint16(udp[4:]))
	least, most := 0, 1472
	switch l.app {
	case "speedlimit":
		least, most = 8, 8
	case "linear":
		least = leastRequest(l.linear)
	}
	switch {
	case p.Flags&abi.FlagFragFirst != 0:
		return "fragment"
	case frame[0]&1 != 0 || frame[6]&1 != 0:
		return "link_address"
	case m.forbidden(src) || src == dst:
		return "source_address"
	case m.notSource(be.Uint16(udp)):
		return "source_port"
	case length-8 < least || length-8 > most:
		return "size"
	case !m.harmless(frame, p):
		return "options"
	case p.Family == 4 && sum(h[:p.L4-p.L3]) != 0xffff:
		return "header_checksum"
	}
	check := be.Uint16(udp[6:])
	ph := pseudo(src.AsSlice(), dst.AsSlice(), length)
	switch {
	case check == 0 && p.Family == 6:
		return "checksum"
	case check == 0, sum(ph, udp[:length]) == 0xffff:
		return ""
	case m.hook == chain.XDP && m.partial && check == sum(ph): // test runs on TC have no partial checksums
		return ""
	}
	return "checksum"
}

func (m *model) forbidden(a netip.Addr) bool {
	if a.Is4() {
		if b := a.As4(); b[0] == 0 || b[0] == 127 || b[0] >= 224 {
			return true
		}
	} else if b := a.As16(); b[0] == 0xff || netip.MustParsePrefix("::/64").Contains(a) {
		return true
	}
	for _, n := range m.networks {
		if n.Addr() == a {
			return true
		}
		if a.Is4() && n.Addr().Is4() && n.Bits() <= 30 {
			low := n.Masked().Addr().As4()
			size := uint32(1) << (32 - n.Bits())
			high := be.Uint32(low[:]) + size - 1
			if b := a.As4(); b == low || be.Uint32(b[:]) == high {
				return true
			}
		}
	}
	return false
}

func (m *model) notSource(port uint16) bool {
	return slices.Contains([]uint16{0, 7, 13, 17, 19, 37}, port) ||
		slices.ContainsFunc(m.listeners, func(l modelListener) bool { return l.port == port })
}

// harmless reports whether options and extension headers can be omitted in the reply.
func (m *model) harmless(frame []byte, p *abi.Packet) bool {
	if p.Family == 4 && p.L4-p.L3 == 20 || p.Family == 6 && p.L4-p.L3 == 40 {
		return true
	}
	if m.hook == chain.TC && p.L3 != 14 {
		return false
	}
	if p.Family == 4 {
		return optionsHarmless(frame[p.L3+20 : p.L4])
	}
	next := frame[p.L3+6]
	steps := 0
	for rest := frame[p.L3+40 : p.L4]; len(rest) > 0; {
		size := int(rest[1])*8 + 8
		steps++
		switch next {
		case 0, 60:
			for o := rest[2:size]; len(o) > 0; {
				steps++
				if o[0]&0xc0 != 0 {
					return false
				}
				n := 1
				if o[0] != 0 {
					if len(o) < 2 {
						return false
					}
					n = 2 + int(o[1])
				}
				if n > len(o) {
					return false
				}
				o = o[n:]
			}
		case 43:
			if rest[3] != 0 {
				return false
			}
		case 44:
			size = 8
		default:
			return false
		}
		next, rest = rest[0], rest[size:]
	}
	return steps < 48
}

func optionsHarmless(o []byte) bool {
	for len(o) > 0 {
		switch o[0] {
		case 0:
			return true
		case 1:
			o = o[1:]
			continue
		case 7, 68, 148:
		default:
			return false
		}
		if len(o) < 2 || o[1] < 2 || int(o[1]) > len(o) {
			return false
		}
		o = o[o[1]:]
	}
	return true
}

// answer returns the application's reply, or the outcome without one.
func (l *modelListener) answer(request []byte) ([]byte, string) {
	if l.app == "echo" {
		return slices.Clone(request), ""
	}
	if l.app == "linear" {
		return linearReply(l.linear, request), ""
	}
	for _, order := range []binary.AppendByteOrder{binary.LittleEndian, binary.BigEndian} {
		switch op := order.AppendUint32(nil, 0); {
		case slices.Equal(request[:4], order.AppendUint32(op[:0], 4)):
			*l.cars++
			limit := l.limit
			if l.kernel {
				limit = uint32(speedlimit.Limit(*l.cars) + 0.5)
			}
			return speed(order, 3, limit), ""
		case slices.Equal(request[:4], order.AppendUint32(op[:0], 5)):
			*l.cars = max(0, *l.cars-1)
			return nil, "consumed"
		}
	}
	return nil, "other_op"
}

// reply returns the reply frame.
func (m *model) reply(frame []byte, p *abi.Packet, src, dst netip.Addr, answer []byte) []byte {
	f := slices.Concat(frame[6:12], frame[:6], frame[12:p.L3])
	udp := be.AppendUint16(slices.Clone(frame[p.L4+2:p.L4+4]), be.Uint16(frame[p.L4:]))
	udp = append(be.AppendUint16(udp, uint16(8+len(answer))), 0, 0)
	udp = append(udp, answer...)
	if asked := be.Uint16(frame[p.L4+6:]); m.hook == chain.XDP || asked != 0 {
		check := ^sum(pseudo(dst.AsSlice(), src.AsSlice(), len(udp)), udp)
		if check == 0 {
			check = 0xffff
		}
		be.PutUint16(udp[6:], check)
	}
	if p.Family == 4 {
		h := slices.Concat([]byte{0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0}, dst.AsSlice(), src.AsSlice())
		be.PutUint16(h[2:], uint16(20+len(udp)))
		be.PutUint16(h[10:], ^sum(h))
		f = append(f, h...)
	} else {
		h := []byte{0x60, 0, 0, 0, 0, 0, 17, 64}
		be.PutUint16(h[4:], uint16(len(udp)))
		f = slices.Concat(f, h, dst.AsSlice(), src.AsSlice())
	}
	f = append(f, udp...)
	// Bytes after the datagram are cut off, but not below the minimum size of a frame.
	needed := int(p.L4) + 8 + len(answer)
	if keep := min(len(frame), 60); needed < len(frame) && needed < keep {
		f = append(f, frame[needed:keep]...)
	}
	return f
}
