// SPDX-License-Identifier: Apache-2.0

package bpftest

import (
	"errors"
	"os"
	"slices"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
	"github.com/google/go-cmp/cmp"
	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/dataplane"
	abi "github.com/kerb-edge/kerb/internal/kerbabi"
	"github.com/kerb-edge/kerb/internal/packet"
)

func needRoot(tb testing.TB) {
	if os.Getuid() != 0 {
		tb.Skip("loading programs needs root")
	}
}

// head is the chain head of one hook in the kernel.
type head struct {
	hook        Hook
	dump, plain *ebpf.Program
	parsed      *ebpf.Memory
	frags       bool
}

// loadHeads loads the heads of all chain objects that the kernel can load.
func loadHeads(tb testing.TB) []head {
	needRoot(tb)
	var heads []head
	for _, hook := range Hooks {
		heads = append(heads, loadHead(tb, hook, Compile(tb, "testdata/parse.bpf.c", hook)))
	}
	if haveXDPFragments(tb) {
		heads = append(heads, loadFragsHead(tb))
	}
	return heads
}

func loadHead(tb testing.TB, hook Hook, spec *ebpf.CollectionSpec) head {
	tb.Helper()
	return headOf(tb, hook, Load(tb, spec))
}

func headOf(tb testing.TB, hook Hook, coll *ebpf.Collection) head {
	tb.Helper()
	parsed, err := coll.Maps["parsed"].Memory()
	if err != nil {
		tb.Fatal(err)
	}
	return head{hook: hook, dump: coll.Programs["dump"], plain: coll.Programs["plain"], parsed: parsed}
}

// loadFragsHead loads the head for XDP frames in several buffers.
func loadFragsHead(tb testing.TB) head {
	tb.Helper()
	h := loadHead(tb, XDP, compileFrags(tb, "testdata/frags.bpf.c"))
	h.frags = true
	return h
}

// compileFrags is Compile for XDP frames in several buffers.
func compileFrags(tb testing.TB, source string) *ebpf.CollectionSpec {
	tb.Helper()
	spec := Compile(tb, source, XDP)
	for _, prog := range spec.Programs {
		prog.Flags |= unix.BPF_F_XDP_HAS_FRAGS
		dataplane.LinkKernelFunctions(prog.Instructions)
	}
	return spec
}

func haveXDPFragments(tb testing.TB) bool {
	tb.Helper()
	err := features.HaveProgramHelper(ebpf.XDP, asm.FnXdpLoadBytes)
	if err != nil && !errors.Is(err, ebpf.ErrNotSupported) {
		tb.Fatal(err)
	}
	return err == nil
}

// takes says whether the kernel takes a frame for a test run: XDP from 14
// bytes on; TC, depending on the version, more than Ethernet, and all of an IP
// header if there should be one (Linux 6.18).
func (h head) takes(frame []byte) bool {
	if h.hook == XDP || len(frame) < 14 {
		return len(frame) >= 14
	}
	switch be.Uint16(frame[12:]) {
	case 0x0800:
		return len(frame) >= 34
	case 0x86dd:
		return len(frame) >= 54
	}
	return len(frame) > 14
}

// parse runs the head; what does not depend on the frame is checked here and
// cleared.
func (h head) parse(tb testing.TB, frame []byte) abi.Packet {
	tb.Helper()
	if _, err := h.dump.Run(&ebpf.RunOptions{Data: frame, Repeat: 1}); err != nil {
		tb.Fatalf("test run with %d bytes: %v", len(frame), err)
	}
	got := h.last(tb)
	if got.Ifindex != 1 || got.Reason != 0 || got.ToIfindex != 0 || got.ToFlags != 0 {
		tb.Errorf("%s: ifindex, reason or redirection: %+v", h.hook, got)
	}
	got.Ifindex = 0
	return got
}

// last is what the last run found.
func (h head) last(tb testing.TB) (got abi.Packet) {
	tb.Helper()
	if _, err := h.parsed.ReadAt(unsafe.Slice((*byte)(unsafe.Pointer(&got)), unsafe.Sizeof(got)), 0); err != nil {
		tb.Fatal(err)
	}
	return got
}

// check compares the kernel with the model on both hooks.
func check(tb testing.TB, heads []head, frame []byte) abi.Packet {
	tb.Helper()
	want := packet.Dissect(frame)
	for _, h := range heads {
		if !h.takes(frame) {
			continue
		}
		if got := h.parse(tb, frame); got != want {
			tb.Errorf("%s, frame %x: model - kernel +\n%s", h.hook, frame, cmp.Diff(want, got))
		}
	}
	checkSafe(tb, frame, want)
	return want
}

// checkSafe is what modules rely on, whatever the outcome.
func checkSafe(tb testing.TB, frame []byte, p abi.Packet) {
	tb.Helper()
	size := uint64(len(frame))
	header := map[uint8]uint64{0: 0, 4: 20, 6: 40}[p.Family]
	for rule, holds := range map[string]bool{
		"offsets within the frame": p.L3 <= size && p.L3 <= p.L4 && p.L4+uint64(p.L4Len) <= size,
		"addresses readable":       p.L3+header <= size,
		"L4 only if it parsed":     p.Flags&abi.FlagL4 == 0 || p.Outcome == abi.ParseOK && p.L4Len >= 8,
		"no L4 in later fragments": p.Flags&abi.FlagFragLater == 0 || p.Flags&abi.FlagL4 == 0,
		"a family if it parsed":    p.Outcome != abi.ParseOK || p.Family != 0,
		"no family, no protocol":   p.Family != 0 || p.Proto == 0 && p.Flags == 0 && p.L4Len == 0,
		"offsets within the mask":  p.L4 <= abi.MaxHdrs,
	} {
		if !holds {
			tb.Errorf("%s: %x: %+v", rule, frame, p)
		}
	}
}

// sample is a frame and what has to be found in it.
type sample struct {
	name    string
	frame   []byte
	outcome abi.ParseOutcome
	family  uint8
	proto   uint8
	l3, l4  uint64
	l4len   uint32
	flags   uint8
	vlan    uint16
}

// with is a copy of a frame with bytes replaced from an offset on.
func with(frame []byte, at int, b ...byte) []byte {
	out := slices.Clone(frame)
	copy(out[at:], b)
	return out
}

func pad(frame []byte, n int) []byte { return append(slices.Clone(frame), make([]byte, n)...) }

func samples(tb testing.TB) []sample {
	return slices.Concat(samplesL2(tb), samples4(tb), samplesL4(tb), samples6(tb), samplesFragments6(tb))
}

const ok = abi.ParseOK

func samplesL2(tb testing.TB) []sample {
	arp := serialize(tb, ethernet(layers.EthernetTypeARP), &layers.ARP{AddrType: layers.LinkTypeEthernet,
		Protocol:      layers.EthernetTypeIPv4,
		HwAddressSize: 6, ProtAddressSize: 4, Operation: 1, SourceHwAddress: macA, SourceProtAddress: ip4A,
		DstHwAddress: macB, DstProtAddress: ip4B})
	lldp := serialize(tb, ethernet(layers.EthernetTypeLinkLayerDiscovery), payload(46))
	return []sample{
		{"ARP", arp, abi.ParseNotIP, 0, 0, 14, 14, 0, 0, 0},
		{"LLDP", lldp, abi.ParseNotIP, 0, 0, 14, 14, 0, 0, 0},
		{"802.3 length", with(lldp, 12, 0, 46), abi.ParseNotIP, 0, 0, 14, 14, 0, 0, 0},
		{"VLAN", udp4(tb, 0, 5, 7), ok, 4, protoUDP, 18, 38, 13, abi.FlagL4, 7},
		{"QinQ", tcp4(tb, 0, 0, 0, 100, 200), ok, 4, protoTCP, 22, 42, 20, abi.FlagL4, 100},
		{"three tags", udp4(tb, 0, 5, 1, 2, 3), abi.ParseVLANDepth, 0, 0, 22, 22, 0, 0, 1},
		{"VLAN, IPv6", frame6(tb, nil, protoUDP, udpSegment(tb, ipv6(protoUDP), 3), 4095), ok, 6, protoUDP, 18, 58, 11,
			abi.FlagL4, 4095},
		{"old QinQ tag", with(udp4(tb, 0, 5, 7), 12, 0x91, 0), ok, 4, protoUDP, 18, 38, 13, abi.FlagL4, 7},
		{"two old QinQ tags", with(tcp4(tb, 0, 0, 0, 100, 200), 12, 0x92, 0, 0, 100, 0x91, 0), ok, 4, protoTCP, 22, 42, 20,
			abi.FlagL4, 100},
		{"VLAN, ARP", with(pad(arp, 4), 12, 0x81, 0, 0xe0, 5, 8, 6), abi.ParseNotIP, 0, 0, 18, 18, 0, 0, 0xe005},
		{"VLAN cut", with(arp, 12, 0x81, 0)[:17], abi.ParseShortL2, 0, 0, 14, 14, 0, 0, 0},
		{"second VLAN cut", udp4(tb, 0, 0, 9, 8)[:20], abi.ParseShortL2, 0, 0, 18, 18, 0, 0, 9},
		{"Ethernet alone", with(arp, 12, 8, 0)[:15], abi.ParseShortL3, 0, 0, 14, 14, 0, 0, 0},
	}
}

func samples4(tb testing.TB) []sample {
	plain, small := udp4(tb, 0, 20), udp4(tb, 0, 3)
	out := []sample{
		{"IPv4", plain, ok, 4, protoUDP, 14, 34, 28, abi.FlagL4, 0},
		{"odd size", small, ok, 4, protoUDP, 14, 34, 11, abi.FlagL4, 0},
		{"empty UDP", udp4(tb, 0, 0), ok, 4, protoUDP, 14, 34, 8, abi.FlagL4, 0},
		{"padded to 60", pad(small, 15), ok, 4, protoUDP, 14, 34, 11, abi.FlagL4, 0},
		{"total length below header", with(plain, 16, 0, 19), abi.ParseBadLength, 0, 0, 14, 14, 0, 0, 0},
		{"total length beyond frame", with(plain, 16, 0, 49), abi.ParseBadLength, 0, 0, 14, 14, 0, 0, 0},
		{"total length 0", with(plain, 16, 0, 0), abi.ParseBadLength, 0, 0, 14, 14, 0, 0, 0},
		{"total length is the header", with(plain, 16, 0, 20), abi.ParseShortL4, 4, protoUDP, 14, 34, 0, 0, 0},
		{"ihl 4", with(plain, 14, 0x44), abi.ParseBadIHL, 0, 0, 14, 14, 0, 0, 0},
		{"ihl 0", with(plain, 14, 0x40), abi.ParseBadIHL, 0, 0, 14, 14, 0, 0, 0},
		{"ihl beyond length", with(small, 14, 0x4f), abi.ParseShortL3, 0, 0, 14, 14, 0, 0, 0},
		{"version 6", with(plain, 14, 0x65), abi.ParseBadVersion, 0, 0, 14, 14, 0, 0, 0},
		{"first fragment", with(plain, 20, 0x20, 0), ok, 4, protoUDP, 14, 34, 28, abi.FlagL4 | abi.FlagFragFirst, 0},
		{"first fragment of more", with(with(plain, 38, 5, 0xdc), 20, 0x20, 0), ok, 4, protoUDP, 14, 34, 28, abi.FlagL4 |
			abi.FlagFragFirst, 0},
		{"middle fragment", with(plain, 20, 0x20, 5), ok, 4, protoUDP, 14, 34, 28, abi.FlagFragLater, 0},
		{"last fragment", with(plain, 20, 0, 5), ok, 4, protoUDP, 14, 34, 28, abi.FlagFragLater, 0},
		{"last fragment, offset high", with(plain, 20, 0x1f, 0), ok, 4, protoUDP, 14, 34, 28, abi.FlagFragLater, 0},
		{"don't fragment", with(plain, 20, 0x40, 0), ok, 4, protoUDP, 14, 34, 28, abi.FlagL4, 0},
		{"tiny last fragment", with(plain, 16, 0, 21, 0, 0, 0, 9), ok, 4, protoUDP, 14, 34, 1, abi.FlagFragLater, 0},
		{"tiny first fragment", with(tcp4(tb, 0, 0, 4), 16, 0, 28, 0, 0, 0x20, 0), abi.ParseShortL4, 4, protoTCP, 14, 34, 8,
			abi.FlagFragFirst, 0},
		{"ports of a tiny fragment", with(tcp4(tb, 0, 0, 0), 20, 0, 1), ok, 4, protoTCP, 14, 34, 20, abi.FlagFragLater, 0},
		{"SCTP", with(plain, 23, protoSCTP), ok, 4, protoSCTP, 14, 34, 28, 0, 0},
		{"ESP", with(plain, 23, protoESP), ok, 4, protoESP, 14, 34, 28, 0, 0},
		{"AH is not followed in IPv4", with(plain, 23, authentication), ok, 4, authentication, 14, 34, 28, 0, 0},
		{"ICMPv6 in IPv4", with(plain, 23, protoICMPv6), ok, 4, protoICMPv6, 14, 34, 28, 0, 0},
	}
	for n := 4; n <= 40; n += 4 {
		f := udp4(tb, n, n)
		out = append(out, sample{"options", f, ok, 4, protoUDP, 14, uint64(34 + n), uint32(8 + n), abi.FlagL4 |
			abi.FlagOptions, 0})
	}
	return out
}

func samplesL4(tb testing.TB) []sample {
	t, u := tcp4(tb, 0, 12, 6), udp4(tb, 0, 10)
	icmp4 := frame4(tb, ether4(), ipv4(protoICMP, 0), &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(8, 0),
		Id: 1, Seq: 2})
	ip := ipv6(protoICMPv6)
	echo := &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(128, 0)}
	echo.SetNetworkLayerForChecksum(ip)
	icmp6 := frame6(tb, nil, protoICMPv6, serialize(tb, echo, payload(8)))
	return []sample{
		{"TCP options", t, ok, 4, protoTCP, 14, 34, 38, abi.FlagL4, 0},
		{"TCP options fill the segment", with(t, 46, 0x90), ok, 4, protoTCP, 14, 34, 38, abi.FlagL4, 0},
		{"TCP options beyond the segment", with(t, 46, 0xa0), abi.ParseShortL4, 4, protoTCP, 14, 34, 38, 0, 0},
		{"TCP options in padding", with(pad(t, 20), 46, 0xf0), abi.ParseShortL4, 4, protoTCP, 14, 34, 38, 0, 0},
		{"doff 4", with(t, 46, 0x40), abi.ParseBadL4, 4, protoTCP, 14, 34, 38, 0, 0},
		{"doff 0", with(t, 46, 0x0f), abi.ParseBadL4, 4, protoTCP, 14, 34, 38, 0, 0},
		{"TCP header in padding", with(tcp4(tb, 0, 0, 0), 16, 0, 39), abi.ParseShortL4, 4, protoTCP, 14, 34, 19, 0, 0},
		{"UDP length 7", with(u, 38, 0, 7), abi.ParseBadL4, 4, protoUDP, 14, 34, 18, 0, 0},
		{"UDP length 8 of 18", with(u, 38, 0, 8), ok, 4, protoUDP, 14, 34, 18, abi.FlagL4, 0},
		{"UDP length 19 of 18", with(u, 38, 0, 19), abi.ParseBadL4, 4, protoUDP, 14, 34, 18, 0, 0},
		{"UDP length into padding", with(pad(u, 8), 38, 0, 20), abi.ParseBadL4, 4, protoUDP, 14, 34, 18, 0, 0},
		{"UDP length 0 in IPv4", with(u, 38, 0, 0), abi.ParseBadL4, 4, protoUDP, 14, 34, 18, 0, 0},
		{"UDP length 0 in IPv6", frame6(tb, nil, protoUDP, make([]byte, 9)), ok, 6, protoUDP, 14, 54, 9, abi.FlagL4, 0},
		{"ICMP", icmp4, ok, 4, protoICMP, 14, 34, 8, abi.FlagL4, 0},
		{"ICMP of 7 bytes", with(icmp4, 16, 0, 27), abi.ParseShortL4, 4, protoICMP, 14, 34, 7, 0, 0},
		{"ICMPv6", icmp6, ok, 6, protoICMPv6, 14, 54, uint32(len(icmp6) - 54), abi.FlagL4, 0},
		{"ICMP in IPv6", with(icmp6, 20, protoICMP), ok, 6, protoICMP, 14, 54, uint32(len(icmp6) - 54), 0, 0},
	}
}

func samples6(tb testing.TB) []sample {
	segment := udpSegment(tb, ipv6(protoUDP), 5) // 13 bytes
	plain := frame6(tb, nil, protoUDP, segment)
	six := []ext{{0, 8, 0}, {60, 16, 0}, {43, 24, 0}, {51, 24, 0}, {60, 8, 0}, {135, 16, 0}}
	seven := append(slices.Clone(six), ext{60, 8, 0})
	l4ext := uint8(abi.FlagL4 | abi.FlagExt)
	out := []sample{
		{"IPv6", plain, ok, 6, protoUDP, 14, 54, 13, abi.FlagL4, 0},
		{"padded", pad(plain, 9), ok, 6, protoUDP, 14, 54, 13, abi.FlagL4, 0},
		{"payload beyond frame", with(plain, 18, 0, 14), abi.ParseBadLength, 0, 0, 14, 14, 0, 0, 0},
		{"payload 0", with(plain, 18, 0, 0), abi.ParseShortL4, 6, protoUDP, 14, 54, 0, 0, 0},
		{"version 4", with(plain, 14, 0x40), abi.ParseBadVersion, 0, 0, 14, 14, 0, 0, 0},
		{"no next header", with(plain, 20, protoNone), ok, 6, protoNone, 14, 54, 13, 0, 0},
		{"no next header, empty", frame6(tb, nil, protoNone, nil), ok, 6, protoNone, 14, 54, 0, 0, 0},
		{"ESP", with(plain, 20, protoESP), ok, 6, protoESP, 14, 54, 13, 0, 0},
		{"extension then none", frame6(tb, []ext{{60, 8, 0}}, protoNone, nil), ok, 6, protoNone, 14, 62, 0, abi.FlagExt, 0},
		{"ESP after extension", frame6(tb, []ext{{0, 8, 0}}, protoESP, segment), ok, 6, protoESP, 14, 62, 13, abi.FlagExt, 0},
		{"AH of 12 bytes", frame6(tb, []ext{{51, 12, 0}}, protoUDP, segment), ok, 6, protoUDP, 14, 66, 13, l4ext, 0},
		{"six headers", frame6(tb, six, protoUDP, segment), ok, 6, protoUDP, 14, 54 + 96, 13, l4ext, 0},
		{"seven headers", frame6(tb, seven, protoUDP, segment), abi.ParseExtDepth, 6, 60, 14, 54 + 96, 21, abi.FlagExt, 0},
		{"extension beyond payload", with(frame6(tb, []ext{{60, 8, 0}}, protoUDP, segment), 55, 2), abi.ParseBadLength, 6, 60,
			14, 54, 21, 0, 0},
		{"extension of 4 bytes", frame6(tb, nil, 43, make([]byte, 4)), abi.ParseShortL3, 6, 43, 14, 54, 4, 0, 0},
		{"second extension cut", frame6(tb, []ext{{0, 8, 0}}, 60, make([]byte, 7)), abi.ParseShortL3, 6, 60, 14, 62,
			7, abi.FlagExt, 0},
		{"headers up to 511", frame6(tb, []ext{{60, 456, 0}}, protoUDP, segment), ok, 6, protoUDP, 14, 510, 13, l4ext, 0},
		{"headers beyond 511", frame6(tb, []ext{{60, 464, 0}}, protoUDP, segment), abi.ParseExtDepth, 6, 60,
			14, 54, 477, 0, 0},
		{"largest extension", frame6(tb, []ext{{60, 2048, 0}}, protoUDP, segment), abi.ParseExtDepth, 6, 60,
			14, 54, 2061, 0, 0},
		{"TCP with options up to 570", frame6(tb, []ext{{60, 456, 0}}, protoTCP, tcpSegment(tb, ipv6(protoTCP), 40, 2)), ok,
			6, protoTCP, 14, 510, 62, l4ext, 0},
		{"TCP after extension", frame6(tb, []ext{{0, 8, 0}}, protoTCP, tcpSegment(tb, ipv6(protoTCP), 8, 2)), ok, 6, protoTCP,
			14, 62, 30, l4ext, 0},
	}
	for _, kind := range extensionHeaders {
		flags := l4ext
		if kind == fragmentHeader {
			flags = abi.FlagL4
		}
		f := frame6(tb, []ext{{kind, 8, 0}}, protoUDP, segment)
		out = append(out, sample{"one extension", f, ok, 6, protoUDP, 14, 62, 13, flags, 0})
	}
	return out
}

func samplesFragments6(tb testing.TB) []sample {
	segment := udpSegment(tb, ipv6(protoUDP), 8) // 16 bytes
	fragment := func(field uint16, inner ...ext) []byte {
		return frame6(tb, append([]ext{{fragmentHeader, 8, field}}, inner...), protoUDP, segment)
	}
	const first, later = abi.FlagFragFirst, abi.FlagFragLater
	return []sample{
		{"atomic", fragment(0), ok, 6, protoUDP, 14, 62, 16, abi.FlagL4, 0},
		{"atomic, reserved bits set", fragment(6), ok, 6, protoUDP, 14, 62, 16, abi.FlagL4, 0},
		{"first", fragment(1), ok, 6, protoUDP, 14, 62, 16, abi.FlagL4 | first, 0},
		{"middle", fragment(8 | 1), ok, 6, protoUDP, 14, 62, 16, later, 0},
		{"last", fragment(0xfff8), ok, 6, protoUDP, 14, 62, 16, later, 0},
		{"first, routing header inside", fragment(1, ext{43, 8, 0}), ok, 6, protoUDP, 14, 70, 16, abi.FlagL4 | abi.FlagExt |
			first, 0},
		{"later, names a routing header", fragment(8, ext{43, 8, 0}), ok, 6, 43, 14, 62, 24, later, 0},
		{"first cut in UDP", with(fragment(1), 18, 0, 15), abi.ParseShortL4, 6, protoUDP, 14, 62, 7, first, 0},
		{"first cut in an extension", with(fragment(1, ext{60, 8, 0}), 18, 0, 12), abi.ParseShortL3, 6, 60, 14,
			62, 4, first, 0},
		{"fragment of a fragment", fragment(1, ext{fragmentHeader, 8, 8}), ok, 6, protoUDP, 14, 70, 16, first | later, 0},
		{"routing, then last", frame6(tb, []ext{{43, 8, 0}, {fragmentHeader, 8, 16}}, protoUDP, segment), ok, 6, protoUDP, 14,
			70, 16, later | abi.FlagExt, 0},
		{"fragment header cut", frame6(tb, nil, fragmentHeader, make([]byte, 7)), abi.ParseShortL3, 6, fragmentHeader,
			14, 54, 7, 0, 0},
	}
}

func (s sample) check(t *testing.T, got abi.Packet) {
	t.Helper()
	want := got
	want.Outcome, want.Family, want.Proto, want.VLAN = s.outcome, s.family, s.proto, s.vlan
	want.L3, want.L4, want.L4Len, want.Flags = s.l3, s.l4, s.l4len, s.flags
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s: %x: want - got +\n%s", s.name, s.frame, diff)
	}
}

func TestSamples(t *testing.T) {
	heads := loadHeads(t)
	for _, s := range samples(t) {
		s.check(t, check(t, heads, s.frame))
	}
}

// Every sample, cut at every length: nothing that is missing may be seen.
func TestTruncated(t *testing.T) {
	heads := loadHeads(t)
	for _, s := range samples(t) {
		for n := min(len(s.frame), 300); n >= 14; n-- {
			check(t, heads, s.frame[:n])
		}
	}
}

// parseCut runs the XDP head on a frame of which so many bytes are linear (Linux 6.18, which also pulls headers in).
func (h head) parseCut(tb testing.TB, frame []byte, linear int) abi.Packet {
	tb.Helper()
	opts := ebpf.RunOptions{Data: frame, Repeat: 1, Context: xdpMD{DataEnd: uint32(linear), IngressIfindex: 1}}
	if _, err := h.dump.Run(&opts); err != nil {
		tb.Fatalf("test run with %d of %d bytes linear: %v", linear, len(frame), err)
	}
	got := h.last(tb)
	got.Ifindex = 0
	return got
}

// Frames whose headers lie behind the linear part of XDP, as mlx5 delivers them with a large MTU.
func TestXDPHeadersBeyondLinearPart(t *testing.T) {
	needXDPFragments(t)
	if !dataplane.CanPullXDP() {
		t.Skip("XDP cannot pull headers in before Linux 6.18")
	}
	h := loadFragsHead(t)
	for _, s := range samples(t) {
		for _, frame := range [][]byte{s.frame, pad(s.frame, 5000-len(s.frame))} {
			want := packet.Dissect(frame)
			for _, linear := range []int{0, 14, 15, 18, 20, 33, 34, 38, 42, 53, 54, 61, 62, 70, 100, 200} {
				got := h.parseCut(t, frame, min(linear, len(frame)))
				got.DataEnd = want.DataEnd
				if got != want {
					t.Errorf("%s of %d bytes, %d of them linear: model - kernel +\n%s", s.name, len(frame), linear,
						cmp.Diff(want, got))
				}
			}
		}
	}
}

// XDP frames in several buffers: the length is that of all of them.
func TestXDPFragments(t *testing.T) {
	needXDPFragments(t)
	h := loadFragsHead(t)
	for _, size := range []int{10, 5000, 12000} {
		for _, frame := range [][]byte{udp4(t, 8, size), tcp4(t, 0, 4, size, 7), pad(udp4(t, 0, 100), size)} {
			got, want := h.parse(t, frame), packet.Dissect(frame)
			if got.DataEnd > want.DataEnd || size > 4096 && got.DataEnd == want.DataEnd {
				t.Errorf("%d bytes linear of %d", got.DataEnd, len(frame))
			}
			want.DataEnd = got.DataEnd
			if got != want {
				t.Errorf("%d bytes: model - kernel +\n%s", size, cmp.Diff(want, got))
			}
		}
	}
}

// A UDP length of 0 is that of a datagram which the field cannot hold, of IPv4 as well: segmentation offload in BIG
// TCP's sizes.
func TestBigUDP(t *testing.T) {
	needXDPFragments(t)
	h := loadFragsHead(t)
	frame := pad(with(with(udp4(t, 0, 100), 16, 0, 0), 38, 0, 0), 70000-142)
	got, want := h.parse(t, frame), packet.Dissect(frame)
	want.DataEnd = got.DataEnd
	if got != want || got.Flags != abi.FlagL4 || got.L4Len != 70000-34 {
		t.Errorf("model - kernel +\n%s", cmp.Diff(want, got))
	}
}

func needXDPFragments(t *testing.T) {
	t.Helper()
	needRoot(t)
	if !haveXDPFragments(t) {
		t.Skip("XDP frames have one buffer before Linux 5.18")
	}
}

// The model alone, where the kernel takes no test run.
func TestModelBelowEthernet(t *testing.T) {
	for n := range 14 {
		if got := packet.Dissect(make([]byte, n)); got.Outcome != abi.ParseShortL2 || got.L3 != 0 {
			t.Errorf("%d bytes: %+v", n, got)
		}
	}
}

func FuzzParse(f *testing.F) {
	heads := loadHeads(f)
	for _, s := range samples(f) {
		f.Add(s.frame)
	}
	f.Fuzz(func(t *testing.T, frame []byte) {
		if len(frame) < 14 || len(frame) > 3000 {
			t.Skip("not a frame for a test run")
		}
		check(t, heads, frame)
	})
}
