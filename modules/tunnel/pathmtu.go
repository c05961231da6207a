// SPDX-License-Identifier: Apache-2.0

package tunnel

import (
	"context"
	"encoding/binary"
	"log/slog"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/sdk"
)

// Routers report outer packets that are too big for their next link by ICMP. What they say lowers a node's MTU for a
// while.

const (
	pathMTULeast  = 1280             // a link that IPv6 services work over; smaller reports count as this
	pathMTUExpire = 10 * time.Minute // RFC 1191, 6.3, and net.ipv4.route.mtu_expires
	// ICMP errors that are evaluated before a pause, which bounds the work that a flood causes
	errorsAtOnce = 64
	errorsPause  = 50 * time.Millisecond
)

// pathMTU is what was learned of the way to a node.
type pathMTU struct {
	mtu   int // of outer packets
	until time.Time
}

// followPath learns until ctx ends.
func (t *tunnel) followPath(ctx context.Context) {
	ring, err := t.live.Maps.Get(mapErrors)
	if err != nil {
		return
	}
	n := 0
	for record, err := range sdk.PromptEvents(ctx, ring) {
		if err != nil {
			slog.Warn("tunnel: path MTU discovery has stopped", "module", t.live.Module, "error", err)
			return
		}
		if t.learn(record) {
			t.refresh()
		}
		if n++; n%errorsAtOnce == 0 {
			sdk.Pause(ctx, errorsPause)
		}
	}
}

// learn evaluates an ICMP error, and reports whether the MTU of a node has changed.
func (t *tunnel) learn(record []byte) bool {
	e, ok := parseError(record)
	if !ok {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	to := e.quoted.to
	n, known := t.ways[to]
	if !known || n.Local.addr() != e.quoted.from || e.quoted.length <= e.mtu || e.quoted.length > int(n.MTU) ||
		!t.config.isOurs(n, e.quoted) {
		return false
	}
	mtu := max(e.mtu, pathMTULeast)
	if mtu >= int(n.MTU) {
		return false
	}
	slog.Info("tunnel: path MTU learned", "node", to, "mtu", mtu)
	t.paths[to] = pathMTU{mtu, time.Now().Add(pathMTUExpire)}
	return true
}

// pathTo is the MTU that was learned of the way to a node; 0 if none was, or it has expired.
func (t *tunnel) pathTo(addr netip.Addr) int {
	p, known := t.paths[addr]
	if known && time.Now().After(p.until) {
		delete(t.paths, addr)
		return 0
	}
	return p.mtu
}

// tooBig is an ICMP error: "fragmentation needed" or "packet too big".
type tooBig struct {
	mtu    int
	quoted quoted
}

// quoted is the outer packet that an ICMP error is about.
type quoted struct {
	from, to netip.Addr
	length   int    // of the IP packet
	udp      []byte // from the UDP header on, as far as it is quoted
}

// parseError reads struct tun_icmp.
func parseError(record []byte) (e tooBig, ok bool) {
	if len(record) < 8 {
		return
	}
	n, family := binary.NativeEndian.Uint32(record), binary.NativeEndian.Uint32(record[4:])
	data := record[8:]
	if int(n) > len(data) || n < 8 {
		return
	}
	data = data[:n]
	quote := data[8:]
	if family == 4 {
		e.mtu = int(binary.BigEndian.Uint16(data[6:]))
		if len(quote) < 20 || quote[0] != 0x45 || quote[9] != unix.IPPROTO_UDP ||
			binary.BigEndian.Uint16(quote[6:]) != 0x4000 {
			return
		}
		e.quoted = quoted{netip.AddrFrom4([4]byte(quote[12:])), netip.AddrFrom4([4]byte(quote[16:])),
			int(binary.BigEndian.Uint16(quote[2:])), quote[20:]}
		return e, e.mtu > 0
	}
	e.mtu = int(min(binary.BigEndian.Uint32(data[4:]), 1<<16))
	if len(quote) < 40 || quote[0]>>4 != 6 || quote[6] != unix.IPPROTO_UDP {
		return
	}
	e.quoted = quoted{netip.AddrFrom16([16]byte(quote[8:])), netip.AddrFrom16([16]byte(quote[24:])),
		40 + int(binary.BigEndian.Uint16(quote[4:])), quote[40:]}
	return e, e.mtu > 0
}

// isOurs reports whether this node has sent the packet to n. With keys its MAC must be right, which only the two nodes
// and who reads the path can know.
func (c *config) isOurs(n node, q quoted) bool {
	const udpLen = 8
	u := q.udp
	head := 20
	if q.to.Is6() {
		head = 40
	}
	if len(u) < udpLen || binary.BigEndian.Uint16(u) < portFirst || binary.BigEndian.Uint16(u[2:]) != c.portOf(n) ||
		int(binary.BigEndian.Uint16(u[4:])) != q.length-head || u[6] != 0 || u[7] != 0 {
		return false
	}
	if !c.keyed() || c.Mode != modeKerb {
		return true
	}
	u = u[udpLen:]
	const headerLen, macLen = 4, 8
	if len(u) < headerLen+macLen {
		return false
	}
	keys := c.pairKeys(n)
	for i, id := range keys.ID {
		if id == 0 || id != u[1] {
			continue
		}
		covered, ok := macInput(u[:headerLen], u[headerLen+macLen:], keys.Bound>>i&1 == 1)
		return ok && sipHash(keys.Send[i], covered) == binary.LittleEndian.Uint64(u[headerLen:])
	}
	return false
}

// macInput is what the MAC covers of a packet that may be cut off after its headers; false if too much is missing.
func macInput(header, inner []byte, bound bool) ([]byte, bool) {
	in, ok := readInner(inner)
	if !ok {
		return nil, false
	}
	fragment := in.length != 0
	if fragment && !bound {
		in.ports = [4]byte{}
	}
	out := append(append([]byte{}, header...), in.ports[:]...)
	src, dst := in.src.As16(), in.dst.As16()
	out = append(append(append(out, src[:]...), dst[:]...), in.proto, 0)
	if !bound {
		return append(out, 0, 0), true
	}
	out = append(append(out, in.offset[:]...), in.id[:]...)
	return binary.BigEndian.AppendUint32(out, in.length), true
}

// inner is what struct tun_flow has of an inner packet.
type inner struct {
	src, dst netip.Addr
	proto    byte
	ports    [4]byte
	offset   [2]byte
	id       [4]byte
	length   uint32 // of fragments
}

func readInner(p []byte) (in inner, ok bool) {
	if len(p) >= 20 && p[0]>>4 == 4 {
		in.src, in.dst, in.proto = netip.AddrFrom4([4]byte(p[12:])), netip.AddrFrom4([4]byte(p[16:])), p[9]
		offset := binary.BigEndian.Uint16(p[6:]) & 0x3fff
		if offset != 0 {
			binary.BigEndian.PutUint16(in.offset[:], offset)
			copy(in.id[:], p[4:6]) // the field, widened in memory order
			in.length = uint32(binary.BigEndian.Uint16(p[2:]))
		}
		return in, in.readPorts(p, int(p[0]&15)*4, p[9], offset&0x1fff != 0)
	}
	if len(p) < 40 || p[0]>>4 != 6 {
		return in, false
	}
	in.src, in.dst, in.proto = netip.AddrFrom16([16]byte(p[8:])), netip.AddrFrom16([16]byte(p[24:])), p[6]
	at, next, later := 40, p[6], false
	for !later {
		size := 0
		switch next {
		case unix.IPPROTO_HOPOPTS, unix.IPPROTO_ROUTING, unix.IPPROTO_DSTOPTS, unix.IPPROTO_MH, unix.IPPROTO_FRAGMENT,
			unix.IPPROTO_AH:
			if len(p) < at+8 {
				return in, false
			}
			size = 8 + 8*int(p[at+1])
		default:
			return in, in.readPorts(p, at, next, false)
		}
		switch offset := binary.BigEndian.Uint16(p[at+2:]); {
		case next == unix.IPPROTO_AH:
			size = 8 + 4*int(p[at+1])
		case next == unix.IPPROTO_FRAGMENT:
			size = 8
			if offset&0xfff9 != 0 {
				in.offset, in.id = [2]byte(p[at+2:]), [4]byte(p[at+4:])
				in.length = 40 + uint32(binary.BigEndian.Uint16(p[4:]))
				later = offset&0xfff8 != 0
			}
		}
		next, at = p[at], at+size
	}
	return in, true
}

// readPorts reports whether the ports are there if the packet has any.
func (in *inner) readPorts(p []byte, at int, proto byte, later bool) bool {
	if later || proto != unix.IPPROTO_TCP && proto != unix.IPPROTO_UDP {
		return true
	}
	if len(p) < at+4 {
		return false
	}
	in.ports = [4]byte(p[at:])
	return true
}
