// SPDX-License-Identifier: Apache-2.0

package oaktest

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// ipPacket is one that NetManager translates: TCP and UDP of both IP versions, without extension headers. It does not
// know fragments: it takes the beginning of each for a TCP or UDP header.
type ipPacket struct {
	raw          []byte
	src, dst     netip.Addr
	at, l4       int // of the source address, and of the transport header
	sport, dport uint16
	udp          bool
}

func parsePacket(raw []byte) (p ipPacket, ok bool) {
	p.raw = raw
	var proto byte
	switch {
	case len(raw) >= 20 && raw[0]>>4 == 4:
		p.at, p.l4, proto = 12, int(raw[0]&15)*4, raw[9]
		p.src, p.dst = netip.AddrFrom4([4]byte(raw[12:])), netip.AddrFrom4([4]byte(raw[16:]))
	case len(raw) >= 40 && raw[0]>>4 == 6:
		p.at, p.l4, proto = 8, 40, raw[6]
		p.src, p.dst = netip.AddrFrom16([16]byte(raw[8:])), netip.AddrFrom16([16]byte(raw[24:]))
	default:
		return p, false
	}
	least := 8
	if p.udp = proto == unix.IPPROTO_UDP; !p.udp {
		least = 20
	}
	if !p.udp && proto != unix.IPPROTO_TCP || len(raw) < p.l4+least {
		return p, false
	}
	p.sport, p.dport = binary.BigEndian.Uint16(raw[p.l4:]), binary.BigEndian.Uint16(raw[p.l4+2:])
	return p, true
}

// between returns the packet with other addresses. Its checksums, and the length of UDP, are worked out for what is
// there: a further fragment has four bytes overwritten.
func (p ipPacket) between(src, dst netip.Addr) []byte {
	raw := append([]byte(nil), p.raw...)
	body := raw[p.l4:]
	copy(raw[p.at:], src.AsSlice())
	copy(raw[p.at+src.BitLen()/8:], dst.AsSlice())
	proto, check := uint32(unix.IPPROTO_TCP), body[16:18]
	if p.udp {
		proto, check = unix.IPPROTO_UDP, body[6:8]
		binary.BigEndian.PutUint16(body[4:], uint16(len(body)))
	}
	clear(check)
	pseudo := checksum(proto+uint32(len(body)), raw[p.at:p.at+src.BitLen()/4])
	sum := ^checksum(uint32(pseudo), body)
	if sum == 0 && p.udp {
		sum = 0xffff
	}
	binary.BigEndian.PutUint16(check, sum)
	if src.Is4() {
		clear(raw[10:12])
		binary.BigEndian.PutUint16(raw[10:], ^checksum(0, raw[:p.l4]))
	}
	return raw
}

// checksum is the ones' complement sum of RFC 1071.
func checksum(sum uint32, data []byte) uint16 {
	for ; len(data) > 1; data = data[2:] {
		sum += uint32(data[0])<<8 | uint32(data[1])
	}
	if len(data) == 1 {
		sum += uint32(data[0]) << 8
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return uint16(sum)
}

// proxyCache is what NetManager knows of connections. It forgets none, and does not distinguish TCP from UDP.
type proxyCache struct {
	mu  sync.Mutex
	all map[cacheKey]conversion
}

// cacheKey is all by which an answer is recognised: two connections of one service with the same ports are mixed up.
type cacheKey struct {
	service      netip.Addr // namespace address on this worker
	sport, dport uint16     // of what it sends
}

type conversion struct{ asked, peer, instance netip.Addr }

func newProxyCache() *proxyCache { return &proxyCache{all: map[cacheKey]conversion{}} }

// tables is what the packet side needs of the tables.
type tables interface {
	// find returns the instances behind a virtual address. It may have to query, while all other packets wait.
	find(virtual netip.Addr) []entry
	// own returns the instance address of a service by its namespace address.
	own(namespace netip.Addr) (netip.Addr, bool)
}

// outgoing translates a packet of a service, and returns the entry that it is for.
func (c *proxyCache) outgoing(p ipPacket, t tables, pick func(n int) int) (raw []byte, to entry, ok bool) {
	if !virtualRanges[0].Contains(p.dst) && !virtualRanges[1].Contains(p.dst) {
		return nil, to, false
	}
	all := t.find(p.dst)
	instance, known := t.own(p.src)
	if len(all) == 0 || !known {
		return nil, to, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	key := cacheKey{p.src, p.sport, p.dport}
	conv, exists := c.all[key]
	i := slices.IndexFunc(all, func(e entry) bool { return e.namespace(p.dst) == conv.peer })
	if !exists || conv.asked != p.dst || conv.instance != instance || i < 0 {
		i = pick(len(all))
		c.all[key] = conversion{p.dst, all[i].namespace(p.dst), instance}
	}
	return p.between(instance, all[i].namespace(p.dst)), all[i], true
}

// incoming translates an answer. Everything else is delivered as it is, with the checksums that it has.
func (c *proxyCache) incoming(p ipPacket) []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	if conv, exists := c.all[cacheKey{p.dst, p.dport, p.sport}]; exists {
		return p.between(conv.asked, p.dst)
	}
	return p.raw
}

// virtualRanges are those of tuncfg.json, with an IPv6 range in which the root's addresses are.
var virtualRanges = [2]netip.Prefix{netip.MustParsePrefix("10.30.0.0/16"), netip.MustParsePrefix("fdff::/16")}
