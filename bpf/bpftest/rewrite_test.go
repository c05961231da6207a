// SPDX-License-Identifier: Apache-2.0

package bpftest

import (
	"bytes"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"

	abi "github.com/kerb-edge/kerb/internal/kerbabi"
	"github.com/kerb-edge/kerb/internal/packet"
	"github.com/kerb-edge/kerb/internal/seed"
)

// The operations of testdata/rewrite.bpf.c.
const (
	opSaddr4 = iota + 1
	opDaddr4
	opSaddr6
	opDaddr6
	opSport
	opDport
	opTTL
	opDecrementTTL
	opSwap
	opLoad
	opStore
	opRoom
	opPayload
	opHash
	opNow
	opLen
	opRemove
)

// request and response are the structures of the same names in C.
type request struct {
	Op     uint32
	Number int32
	Bytes  [40]byte
}

type response struct {
	RC                            int64
	Value, Value2                 uint64
	Bytes                         [16]byte
	L3, L4                        uint64
	Len                           uint32
	Family, Proto, Flags, Outcome uint8
}

type rewriter struct {
	hook Hook
	coll *ebpf.Collection
}

func loadRewriters(tb testing.TB) []rewriter {
	needRoot(tb)
	var all []rewriter
	for _, hook := range Hooks {
		all = append(all, rewriter{hook, Load(tb, Compile(tb, "testdata/rewrite.bpf.c", hook))})
	}
	return all
}

func (r rewriter) run(tb testing.TB, req request, frame []byte) (response, []byte) {
	tb.Helper()
	if err := r.coll.Maps["requests"].Put(uint32(0), &req); err != nil {
		tb.Fatal(err)
	}
	_, out := Run(tb, r.coll.Programs["rewrite"], frame)
	var res response
	if err := r.coll.Maps["responses"].Lookup(uint32(0), &res); err != nil {
		tb.Fatal(err)
	}
	return res, out
}

// flow describes a packet; build makes its bytes with all checksums computed
// from scratch. A rewritten packet must equal the one built from the rewritten
// description.
type flow struct {
	tags         []uint16
	six          bool
	proto        uint8
	src, dst     net.IP
	sport, dport uint16
	ttl          uint8
	options      int   // bytes of IPv4 options
	exts         []ext // IPv6 extension headers
	size         int   // bytes of payload
	noChecksum   bool  // UDP checksum 0
	piece        piece
	swapped      bool // MAC addresses
}

// piece is which part of the datagram is in the packet.
type piece int

const (
	whole piece = iota
	firstPiece
	laterPiece
)

func (f flow) build(tb testing.TB) []byte {
	ip := f.ip()
	segment := f.segment(tb, ip)
	field := uint16(0)
	switch f.piece { // the second piece starts at byte 40, which leaves any header used here whole
	case firstPiece:
		segment, field = segment[:40], 1
	case laterPiece:
		segment, field = segment[40:], 5<<3
	}
	parts := ether(layers.EthernetTypeIPv4, f.tags)
	if f.six {
		parts = ether(layers.EthernetTypeIPv6, f.tags)
	}
	eth := parts[0].(*layers.Ethernet)
	if f.swapped {
		eth.SrcMAC, eth.DstMAC = eth.DstMAC, eth.SrcMAC
	}
	switch ip := ip.(type) {
	case *layers.IPv4:
		ip.FragOffset = field >> 3
		ip.Flags = layers.IPv4Flag(field & 1)
	case *layers.IPv6:
		exts := f.exts
		if f.piece != whole {
			exts = append(slices.Clone(exts), ext{fragmentHeader, 8, field})
		}
		next, chain := chain6(exts, f.proto)
		ip.NextHeader = next
		segment = append(chain, segment...)
	}
	return serialize(tb, append(parts, ip, gopacket.Payload(segment))...)
}

func (f flow) ip() networkLayer {
	if f.six {
		ip := ipv6(layers.IPProtocol(f.proto))
		ip.SrcIP, ip.DstIP, ip.HopLimit = f.src, f.dst, f.ttl
		return ip
	}
	ip := ipv4(layers.IPProtocol(f.proto), f.options)
	ip.SrcIP, ip.DstIP, ip.TTL = f.src, f.dst, f.ttl
	return ip
}

func (f flow) segment(tb testing.TB, ip gopacket.NetworkLayer) []byte {
	var head gopacket.SerializableLayer
	switch f.proto {
	case protoTCP:
		t := tcp(ip, 4)
		t.SrcPort, t.DstPort = layers.TCPPort(f.sport), layers.TCPPort(f.dport)
		head = t
	case protoUDP:
		u := udp(ip)
		u.SrcPort, u.DstPort = layers.UDPPort(f.sport), layers.UDPPort(f.dport)
		head = u
	case protoICMPv6:
		i := &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(128, 0)}
		i.SetNetworkLayerForChecksum(ip)
		return serialize(tb, i, payload(f.size+4))
	case protoICMP:
		head = &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(8, 0)}
	default:
		return payload(f.size + 8)
	}
	out := serialize(tb, head, payload(f.size))
	if f.proto == protoUDP && f.noChecksum {
		out[6], out[7] = 0, 0
	}
	return out
}

func base4(proto uint8) flow {
	return flow{proto: proto, src: ip4A, dst: ip4B, sport: 4000, dport: 53, ttl: 64, size: 100}
}

func base6(proto uint8) flow {
	return flow{six: true, proto: proto, src: ip6A, dst: ip6B, sport: 4000, dport: 53, ttl: 64, size: 100}
}

func randomFlow(rng *rand.Rand) flow {
	f := base4([]uint8{protoTCP, protoUDP, protoICMP, protoSCTP}[rng.IntN(4)])
	if rng.IntN(2) == 0 {
		f = base6([]uint8{protoTCP, protoUDP, protoICMPv6, protoESP}[rng.IntN(4)])
		for range rng.IntN(3) {
			f.exts = append(f.exts, []ext{{0, 8, 0}, {60, 16, 0}, {51, 12, 0}, {135, 24, 0}}[rng.IntN(4)])
		}
	} else {
		f.options = 4 * rng.IntN(11)
		f.noChecksum = rng.IntN(4) == 0
	}
	for range rng.IntN(3) {
		f.tags = append(f.tags, uint16(1+rng.IntN(4000)))
	}
	f.src, f.dst = randomIP(rng, f.six), randomIP(rng, f.six)
	f.sport, f.dport = randomPort(rng), randomPort(rng)
	f.ttl = byte(rng.IntN(256))
	f.size = 40 + rng.IntN(100)
	f.piece = piece(max(0, rng.IntN(5)-2))
	if f.six && rng.IntN(4) == 0 {
		room := abi.MaxHdrs - 54 - 4*len(f.tags) - 8 // of a Fragment header
		f.exts = []ext{{60, 8 * (1 + rng.IntN(room/8)), 0}}
	}
	return f
}

// randomIP likes words of all zeros and all ones: that is where ones'
// complement sums go wrong.
func randomIP(rng *rand.Rand, six bool) net.IP {
	ip := make(net.IP, 4)
	if six {
		ip = make(net.IP, 16)
	}
	for i := 0; i < len(ip); i += 2 {
		be.PutUint16(ip[i:], randomPort(rng))
	}
	return ip
}

func randomPort(rng *rand.Rand) uint16 {
	return []uint16{0, 0xffff, uint16(rng.Uint32()), uint16(rng.Uint32())}[rng.IntN(4)]
}

// hasPorts says whether the packet holds ports that can be changed.
func (f flow) hasPorts() bool {
	return f.piece != laterPiece && (f.proto == protoTCP || f.proto == protoUDP)
}

// change is one operation and what it makes of a flow; rc is what it returns.
type change struct {
	req  request
	want flow
	rc   int64
}

func (f flow) setAddress(op uint32, ip net.IP) change {
	c := change{request{Op: op}, f, 0}
	copy(c.req.Bytes[:], ip)
	if op == opSaddr4 || op == opSaddr6 {
		c.want.src = ip
	} else {
		c.want.dst = ip
	}
	if f.six != (op >= opSaddr6) {
		c.want, c.rc = f, -int64(unix.EINVAL)
	}
	return c
}

// swap16 is a port in the byte order of the packet, as this machine reads it.
func swap16(n uint16) int32 { return int32(bits.ReverseBytes16(n)) }

func (f flow) setPort(op uint32, port uint16) change {
	c := change{request{Op: op, Number: swap16(port)}, f, 0}
	switch {
	case !f.hasPorts():
		c.rc = -int64(unix.EINVAL)
	case op == opSport:
		c.want.sport = port
	default:
		c.want.dport = port
	}
	return c
}

func (f flow) setTTL(ttl uint8) change {
	c := change{request{Op: opTTL, Number: int32(ttl)}, f, 0}
	c.want.ttl = ttl
	return c
}

func (f flow) decrementTTL() change {
	c := change{request{Op: opDecrementTTL}, f, 0}
	if c.want.ttl--; f.ttl <= 1 {
		c.want, c.rc = f, -int64(unix.ETIME)
	}
	return c
}

func (f flow) swap() change {
	c := change{request{Op: opSwap}, f, 0}
	c.want.swapped = true
	c.want.src, c.want.dst = f.dst, f.src
	if c.want.sport, c.want.dport = f.dport, f.sport; !f.hasPorts() {
		c.want.sport, c.want.dport, c.rc = f.sport, f.dport, -int64(unix.EINVAL)
	}
	return c
}

// changes are all operations on a flow.
func (f flow) changes(rng *rand.Rand) []change {
	return []change{
		f.setAddress(opSaddr4, randomIP(rng, false)), f.setAddress(opDaddr4, randomIP(rng, false)),
		f.setAddress(opSaddr6, randomIP(rng, true)), f.setAddress(opDaddr6, randomIP(rng, true)),
		f.setPort(opSport, randomPort(rng)), f.setPort(opDport, randomPort(rng)),
		f.setTTL(byte(rng.IntN(256))), f.decrementTTL(), f.swap(),
	}
}

func (r rewriter) check(tb testing.TB, from flow, c change) {
	tb.Helper()
	frame := from.build(tb)
	res, got := r.run(tb, c.req, frame)
	if res.RC != c.rc {
		tb.Errorf("%s %+v on %+v: returned %d, want %d", r.hook, c.req, from, res.RC, c.rc)
	}
	if want := c.want.build(tb); !bytes.Equal(got, want) {
		tb.Errorf("%s operation %d on %+v:\nfrom %x\nwant %x\ngot  %x", r.hook, c.req.Op, from, frame, want, got)
	}
}

// Every operation on every kind of packet, in a fixed order.
func TestRewrite(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var flows []flow
	for _, f := range []flow{base4(protoTCP), base4(protoUDP), base4(protoICMP), base4(protoSCTP), base6(protoTCP),
		base6(protoUDP), base6(protoICMPv6)} {
		odd, tagged, first, later, none, longer, deepest := f, f, f, f, f, f, f
		odd.size = 101
		tagged.tags = []uint16{5, 6}
		first.piece, later.piece = firstPiece, laterPiece
		none.noChecksum = true
		longer.options, longer.exts = 24, []ext{{0, 8, 0}, {43, 24, 0}}
		deepest.options, deepest.exts = 40, []ext{{60, 456, 0}} // the transport header starts at byte 510
		flows = append(flows, f, odd, tagged, first, later, none, longer, deepest)
	}
	for _, r := range loadRewriters(t) {
		for _, f := range flows {
			for _, c := range f.changes(rng) {
				r.check(t, f, c)
			}
		}
	}
}

func TestRewriteDifferential(t *testing.T) {
	rewriters := loadRewriters(t)
	rng := seed.Rand(t)
	most := 200_000
	if testing.Short() {
		most = 20_000
	}
	count := 0
	for count < most && !t.Failed() {
		f := randomFlow(rng)
		for _, c := range f.changes(rng) {
			for _, r := range rewriters {
				r.check(t, f, c)
				count++
			}
		}
	}
	t.Logf("%d rewrites", count)
}

// A computed UDP checksum of 0 is sent as 0xffff, for 0 means that there is
// none. The port that leads there is searched.
func TestChecksumNeverBecomesZero(t *testing.T) {
	for _, f := range []flow{base4(protoUDP), base6(protoUDP)} {
		at := len(f.build(t)) - f.size - 2
		want := f
		for be.Uint16(want.build(t)[at:]) != 0xffff {
			want.sport++
		}
		for _, r := range loadRewriters(t) {
			r.check(t, f, f.setPort(opSport, want.sport))
		}
	}
}

func TestRewriteWhatIsNotIP(t *testing.T) {
	arp := samplesL2(t)[0].frame
	for _, r := range loadRewriters(t) {
		for _, op := range []uint32{opSaddr4, opDaddr6, opSport, opTTL, opDecrementTTL} {
			res, got := r.run(t, request{Op: op}, arp)
			if res.RC != -int64(unix.EINVAL) || !bytes.Equal(got, arp) {
				t.Errorf("%s operation %d: returned %d, frame %x", r.hook, op, res.RC, got)
			}
		}
	}
}

func TestLoadAndStoreBytes(t *testing.T) {
	f := base4(protoUDP)
	f.size = 1400
	frame := f.build(t)
	for _, r := range loadRewriters(t) {
		for _, at := range []int{0, 1, 34, 511, 512, 1001, len(frame) - 16} {
			res, _ := r.run(t, request{Op: opLoad, Number: int32(at)}, frame)
			if res.RC != 0 || !bytes.Equal(res.Bytes[:], frame[at:at+16]) {
				t.Errorf("%s: load at %d: %d, %x", r.hook, at, res.RC, res.Bytes)
			}
			req := request{Op: opStore, Number: int32(at)}
			copy(req.Bytes[:], "0123456789abcdef")
			res, got := r.run(t, req, frame)
			if res.RC != 0 || !bytes.Equal(got, with(frame, at, []byte("0123456789abcdef")...)) {
				t.Errorf("%s: store at %d: %d, %x", r.hook, at, res.RC, got)
			}
		}
		for _, at := range []int{len(frame) - 15, len(frame), 0x4000, 0x10000, -1} {
			for _, op := range []uint32{opLoad, opStore} {
				res, got := r.run(t, request{Op: op, Number: int32(at)}, frame)
				if res.RC >= 0 || !bytes.Equal(got, frame) {
					t.Errorf("%s: operation %d at %d: %d", r.hook, op, at, res.RC)
				}
			}
		}
	}
}

// A frame in several buffers: bytes are reached in each, and across the seams.
func TestLoadAndStoreBytesInFragments(t *testing.T) {
	needXDPFragments(t)
	spec := Compile(t, "testdata/rewrite.bpf.c", XDP)
	spec.Programs["rewrite"].Flags |= unix.BPF_F_XDP_HAS_FRAGS
	r := rewriter{XDP, Load(t, spec)}
	frame := pad(base4(protoUDP).build(t), 12000)
	copy(frame[200:], payload(len(frame)-200))
	for at := 0; at <= len(frame)-16; at += 61 {
		res, _ := r.run(t, request{Op: opLoad, Number: int32(at)}, frame)
		if res.RC != 0 || !bytes.Equal(res.Bytes[:], frame[at:at+16]) {
			t.Fatalf("load at %d: %d, %x", at, res.RC, res.Bytes)
		}
		req := request{Op: opStore, Number: int32(at)}
		copy(req.Bytes[:], "0123456789abcdef")
		res, got := r.run(t, req, frame)
		if res.RC != 0 || !bytes.Equal(got, with(frame, at, req.Bytes[:16]...)) {
			t.Fatalf("store at %d: %d", at, res.RC)
		}
	}
}

// An outer IPv4 header is put in front, and the context must report it; taken
// out again, the frame is what it was.
func TestAdjustRoom(t *testing.T) {
	for _, r := range loadRewriters(t) {
		for _, tags := range [][]uint16{nil, {7}, {7, 8}} {
			if r.hook == TC && tags != nil {
				continue // TC refuses, see below
			}
			f := base4(protoUDP)
			f.tags = tags
			r.tunnel(t, f.build(t), 14+4*len(tags))
		}
	}
}

func (r rewriter) tunnel(t *testing.T, frame []byte, l3 int) {
	t.Helper()
	outer := serialize(t, ipv4(4, 0), gopacket.Payload(frame[l3:]))
	req := request{Op: opRoom, Number: 20}
	copy(req.Bytes[:], outer)
	res, got := r.run(t, req, frame)
	want := slices.Concat(frame[:l3], outer)
	if res.RC != 0 || !bytes.Equal(got, want) {
		t.Fatalf("%s: %d\nwant %x\ngot  %x", r.hook, res.RC, want, got)
	}
	if res.Proto != 4 || res.L3 != uint64(l3) || res.L4 != uint64(l3+20) || int(res.Len) != len(want) || res.Outcome != 0 {
		t.Errorf("%s: context after growing: %+v", r.hook, res)
	}
	res, got = r.run(t, request{Op: opRoom, Number: -20}, got)
	if res.RC != 0 || !bytes.Equal(got, frame) {
		t.Fatalf("%s: shrinking: %d\nwant %x\ngot  %x", r.hook, res.RC, frame, got)
	}
	if res.Proto != protoUDP || res.L3 != uint64(l3) || res.Flags&abi.FlagL4 == 0 || int(res.Len) != len(frame) {
		t.Errorf("%s: context after shrinking: %+v", r.hook, res)
	}
}

func TestAdjustRoomLimits(t *testing.T) {
	f := base4(protoUDP)
	for _, r := range loadRewriters(t) {
		for _, delta := range []int32{257, -257, 1 << 30, -1 << 31, -int32(len(f.build(t)))} {
			if res, _ := r.run(t, request{Op: opRoom, Number: delta}, f.build(t)); res.RC >= 0 {
				t.Errorf("%s: room for %d: %d", r.hook, delta, res.RC)
			}
		}
		for _, delta := range []int32{1, 8, 40, 57, 128} {
			frame := f.build(t)
			res, got := r.run(t, request{Op: opRoom, Number: delta}, frame)
			if res.RC != 0 || !bytes.Equal(got[:14], frame[:14]) || !bytes.Equal(got[14+delta:], frame[14:]) {
				t.Errorf("%s: room for %d: %d, %x", r.hook, delta, res.RC, got)
			}
		}
		tagged := f
		tagged.tags = []uint16{7}
		if res, _ := r.run(t, request{Op: opRoom, Number: 20}, tagged.build(t)); r.hook == TC && res.RC >= 0 {
			t.Errorf("TC put room in front of a VLAN tag")
		}
	}
}

func TestSetLen(t *testing.T) {
	for _, r := range loadRewriters(t) {
		for _, build := range []flow{base4(protoUDP), base6(protoTCP)} {
			frame := build.build(t)
			for _, size := range []int{len(frame) - 90, len(frame) - 1, len(frame), len(frame) + 1, len(frame) + 64} {
				res, got := r.run(t, request{Op: opLen, Number: int32(size)}, frame)
				common := min(size, len(frame))
				if res.RC != 0 || len(got) != size || int(res.Len) != size || !bytes.Equal(got[:common], frame[:common]) {
					t.Errorf("%s: to %d bytes: %d, length %d, %x", r.hook, size, res.RC, res.Len, got)
				}
				if r.hook == XDP && !bytes.Equal(got[common:], make([]byte, size-common)) {
					t.Errorf("to %d bytes: %x was added", size, got[common:])
				}
			}
			for _, size := range []int32{-1, 0, 8, 1 << 20, -1 << 31} {
				if res, got := r.run(t, request{Op: opLen, Number: size}, frame); res.RC >= 0 || !bytes.Equal(got, frame) ||
					int(res.Len) != len(frame) {
					t.Errorf("%s: to %d bytes: %d, %x", r.hook, size, res.RC, got)
				}
			}
		}
	}
}

// What is between the IP header and the transport header is gone, and nothing else.
func TestRemoveOptions(t *testing.T) {
	options, extensions := base4(protoUDP), base6(protoUDP)
	options.options = 40
	extensions.exts = []ext{{0, 8, 0}, {60, 64, 0}, {60, 16, 0}}
	for _, r := range loadRewriters(t) {
		for _, tags := range [][]uint16{nil, {7}, {7, 8}} {
			if r.hook == TC && tags != nil {
				continue // TC refuses, as with room
			}
			for _, f := range []flow{options, extensions, base4(protoUDP), base6(protoTCP)} {
				f.tags = tags
				frame := f.build(t)
				at := packet.Dissect(frame)
				head := int(at.L3) + map[uint8]int{4: 20, 6: 40}[at.Family]
				want := slices.Concat(frame[:head], frame[at.L4:])
				res, got := r.run(t, request{Op: opRemove}, frame)
				if res.RC != 0 || !bytes.Equal(got, want) || int(res.Len) != len(want) || int(res.L4) != head ||
					res.Flags != abi.FlagL4 {
					t.Errorf("%s: %d, %+v\nwant %x\ngot  %x", r.hook, res.RC, res, want, got)
				}
			}
		}
	}
}

func TestPayload(t *testing.T) {
	esp, sctp := base6(protoESP), base4(protoSCTP)
	esp.exts = []ext{{0, 8, 0}}
	later := base4(protoUDP)
	later.piece = laterPiece
	short := with(base4(protoUDP).build(t), 38, 0, 30) // a UDP length below the datagram's
	for _, r := range loadRewriters(t) {
		for _, c := range []struct {
			frame     []byte
			at, bytes uint64
		}{
			{base4(protoUDP).build(t), 42, 100},
			{base4(protoTCP).build(t), 58, 100},
			{base6(protoTCP).build(t), 78, 100},
			{base4(protoICMP).build(t), 42, 100},
			{esp.build(t), 62, 108},
			{sctp.build(t), 34, 108},
			{later.build(t), 34, 68},
			{short, 42, 22},
			{pad(base4(protoUDP).build(t), 10), 42, 100},
		} {
			res, _ := r.run(t, request{Op: opPayload}, c.frame)
			if res.Value != c.at || res.Value2 != c.bytes {
				t.Errorf("%s: payload of %d bytes at %d, want %d at %d: %x", r.hook, res.Value2, res.Value, c.bytes, c.at, c.frame)
			}
		}
	}
}

// jhash2 is Bob Jenkins' lookup3 on words, as Linux has it in linux/jhash.h.
func jhash2(words []uint32, seed uint32) uint32 {
	a := 0xdeadbeef + uint32(len(words))<<2 + seed
	b, c := a, a
	rol := func(x uint32, n int) uint32 { return bits.RotateLeft32(x, n) }
	for len(words) > 3 {
		a, b, c = a+words[0], b+words[1], c+words[2]
		words = words[3:]
		a, c = (a-c)^rol(c, 4), c+b
		b, a = (b-a)^rol(a, 6), a+c
		c, b = (c-b)^rol(b, 8), b+a
		a, c = (a-c)^rol(c, 16), c+b
		b, a = (b-a)^rol(a, 19), a+c
		c, b = (c-b)^rol(b, 4), b+a
	}
	for i, w := range words {
		*[]*uint32{&a, &b, &c}[i] += w
	}
	c = (c ^ b) - rol(b, 14)
	a = (a ^ c) - rol(c, 11)
	b = (b ^ a) - rol(a, 25)
	c = (c ^ b) - rol(b, 16)
	a = (a ^ c) - rol(c, 4)
	b = (b ^ a) - rol(a, 14)
	return (c ^ b) - rol(b, 24)
}

// tuple is what kerb_hash hashes of a flow.
func (f flow) tuple() []uint32 {
	var out []uint32
	raw := slices.Concat(f.src, f.dst, make([]byte, 4))
	if f.hasPorts() && f.piece == whole {
		be.PutUint16(raw[len(raw)-4:], f.sport)
		be.PutUint16(raw[len(raw)-2:], f.dport)
	}
	for ; len(raw) > 0; raw = raw[4:] {
		out = append(out, ne.Uint32(raw))
	}
	return append(out, uint32(f.proto))
}

func TestHash(t *testing.T) {
	rewriters := loadRewriters(t)
	rng := rand.New(rand.NewPCG(3, 4))
	for range 300 {
		f, seed := randomFlow(rng), rng.Int32()
		for _, r := range rewriters {
			res, _ := r.run(t, request{Op: opHash, Number: seed}, f.build(t))
			if want := jhash2(f.tuple(), uint32(seed)); uint32(res.Value) != want {
				t.Fatalf("%s: %#x, want %#x: %+v", r.hook, res.Value, want, f)
			}
		}
	}
}

// The coarse clock is behind the fine one by at most a tick; a second allows
// for any.
func TestNow(t *testing.T) {
	for _, r := range loadRewriters(t) {
		res, _ := r.run(t, request{Op: opNow}, base4(protoUDP).build(t))
		if res.RC != 0 || res.Value == 0 || res.Value > res.Value2 || res.Value2-res.Value > uint64(time.Second) {
			t.Errorf("%s: coarse %d, fine %d", r.hook, res.Value, res.Value2)
		}
	}
}

func (f flow) String() string {
	return fmt.Sprintf("{%v:%d > %v:%d proto %d tags %v options %d exts %v size %d piece %d noChecksum %t}",
		f.src, f.sport, f.dst, f.dport, f.proto, f.tags, f.options, f.exts, f.size, f.piece, f.noChecksum)
}
