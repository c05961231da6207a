// SPDX-License-Identifier: Apache-2.0

package intercept

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/seed"
	"github.com/kerb-edge/kerb/sdk"
	"github.com/kerb-edge/kerb/sdk/sdktest"
)

// Addresses for the router: hosts with known hardware addresses, others of the same network, and one without a route.
var (
	near4, near6   = netip.MustParseAddr("10.99.7.7"), netip.MustParseAddr("fd99::77")
	quiet4, quiet6 = netip.MustParseAddr("10.99.7.8"), netip.MustParseAddr("fd99::88")
	far4, far6     = netip.MustParseAddr("198.51.100.7"), netip.MustParseAddr("2001:db8::7")
	nearMAC        = []byte{2, 0, 0, 0, 7, 7}
)

// router is a node that forwards, with a bridge, and another interface without hosts.
type router struct {
	*netlab.Lab
	bridge netlink.Link
	other  int // index of the other interface
}

func newRouter(t *testing.T) *router {
	t.Helper()
	sdktest.NeedRoot(t)
	lab, err := netlab.NewIn("icpf")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { lab.Close() })
	if err := lab.AddUnderlay(); err != nil {
		t.Fatal(err)
	}
	if _, err := lab.Host("near", netlab.HostOptions{}); err != nil {
		t.Fatal(err)
	}
	r := &router{Lab: lab}
	err = lab.Node().Do(func() error {
		other, err := netlink.LinkByName(netlab.Underlay)
		if err != nil {
			return err
		}
		if r.bridge, err = netlink.LinkByName(lab.Bridge()); err != nil {
			return err
		}
		r.other = other.Attrs().Index
		for _, addr := range []netip.Addr{near4, near6} {
			if err := netlink.NeighSet(&netlink.Neigh{LinkIndex: r.bridge.Attrs().Index, State: netlink.NUD_PERMANENT,
				IP: addr.AsSlice(), HardwareAddr: nearMAC}); err != nil {
				return fmt.Errorf("neighbour %s: %w", addr, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// run passes a frame to the program as the node would.
func (r *router) run(k *kernel, frame []byte) (v verdict, out []byte) {
	k.t.Helper()
	if err := r.Node().Do(func() error { v, out = k.runOut(frame); return nil }); err != nil {
		k.t.Fatal(err)
	}
	return v, out
}

// exits sets the interfaces of the node to which the module is attached.
func (k *kernel) exits(interfaces map[string]int) {
	k.t.Helper()
	g := &running{Intercept: k.Intercept, half: int(k.half()), live: sdk.Live{Maps: k.maps,
		Attachments: func() (all []sdk.Attachment) {
			for name, index := range interfaces {
				all = append(all, sdk.Attachment{Interface: name, Ifindex: uint32(index)})
			}
			return append(all, sdk.Attachment{Service: "web", Interface: "svc0", Ifindex: 1})
		}}}
	if err := g.refreshExits(); err != nil {
		k.t.Fatal(err)
	}
}

// forwards returns a config of one class with a match and a target.
func forwards(match, target string) string {
	return `{"classes": [{"name": "on", "match": {` + match + `}, "action": "forward", "forward": {` + target + `}}]}`
}

const udpOnly = `"protocol": "udp"`

// sentOn is the verdict on a packet that leaves through an interface.
var sentOn = map[chain.Hook]verdict{chain.XDP: redirected, chain.TC: answered}

// sum16 returns the ones' complement sum of 16-bit words (RFC 1071). All parts but the last have even length.
func sum16(parts ...[]byte) uint16 {
	sum := uint32(0)
	for i, b := range bytes.Join(parts, nil) {
		sum += uint32(b) << (8 * (1 - i%2))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return uint16(sum)
}

// plain parses a plain frame: pseudo-header, transport protocol, and the transport header's start and end.
func plain(raw []byte) (pseudo []byte, proto byte, l4, end int) {
	if raw[12] == 0x08 {
		proto, l4, pseudo = raw[23], 34, raw[26:34]
		end = 14 + int(binary.BigEndian.Uint16(raw[16:]))
	} else {
		proto, l4, pseudo = raw[20], 54, raw[22:54]
		end = l4 + int(binary.BigEndian.Uint16(raw[18:]))
	}
	pseudo = append(bytes.Clone(pseudo), 0, proto)
	return binary.BigEndian.AppendUint16(pseudo, uint16(end-l4)), proto, l4, end
}

// checkOffsets are the offsets of transport checksums.
var checkOffsets = map[byte]int{udp: 6, tcp: 16, icmpv6: 2, icmp: 2}

// residuals returns the sums over the bytes that each checksum of a plain frame covers, including itself, by offset:
// 0xffff if it is correct.
func residuals(raw []byte) map[int]uint16 {
	out := map[int]uint16{}
	pseudo, proto, l4, end := plain(raw)
	if l4 == 34 {
		out[24] = sum16(raw[14:34])
	}
	if proto == icmp {
		pseudo = nil
	}
	if at := checkOffsets[proto]; at > 0 {
		out[l4+at] = sum16(pseudo, raw[l4:end])
	}
	return out
}

// setChecksums sets the checksums of a plain frame.
func setChecksums(raw []byte) {
	for at := range residuals(raw) {
		binary.BigEndian.PutUint16(raw[at:], 0)
		sum := ^residuals(raw)[at]
		if sum == 0 {
			sum = 0xffff
		}
		binary.BigEndian.PutUint16(raw[at:], sum)
	}
}

// isPlain reports whether a frame has only fixed headers.
func (f frame) isPlain() bool {
	return f.vlans == 0 && f.options == 0 && len(f.ext) == 0 && f.fragOff == 0 && !f.more
}

// whole returns the frame with checksums and a hop limit.
func (f frame) whole(ttl byte) []byte {
	raw := f.bytes()
	if !f.isPlain() {
		return raw
	}
	raw[f.hopsAt()] = ttl
	setChecksums(raw)
	return raw
}

func (f frame) hopsAt() int {
	if f.src.Is4() {
		return 14 + 8
	}
	return 14 + 7
}

// isPartial reports whether the transport checksum of a plain frame is the sum of the pseudo-header alone.
func isPartial(raw []byte) bool {
	pseudo, proto, l4, _ := plain(raw)
	at := checkOffsets[proto]
	return at > 0 && proto != icmp && binary.BigEndian.Uint16(raw[l4+at:]) == sum16(pseudo)
}

// way is the target of the model's class.
type way struct {
	hook  chain.Hook
	to    netip.AddrPort
	named bool // the class names the bridge as interface
	lost  bool // the class names another interface
}

func (w way) String() string {
	var parts []string
	if w.to.IsValid() {
		s := w.to.String()
		if w.to.Port() == 0 {
			s = w.to.Addr().String()
		}
		parts = append(parts, fmt.Sprintf(`"to": %q`, s))
	}
	if w.named || w.lost {
		parts = append(parts, `"interface": "out"`)
	}
	return strings.Join(parts, ", ")
}

// model returns the verdict on a packet, the reason if it is not forwarded, and the resulting frame.
func (w way) model(f frame, raw []byte) (verdict, string, []byte) {
	if w.to.IsValid() && (f.proto != udp || f.src.Is4() != w.to.Addr().Is4()) {
		return passed, "no class", raw
	}
	at := f.dst
	if w.to.IsValid() {
		at = w.to.Addr()
	}
	hasNeighbour := at == near4 || at == near6
	hasRoute := hasNeighbour || at == quiet4 || at == quiet6
	switch {
	case raw[0]&1 != 0, !f.isPlain(), w.hook == chain.XDP && isPartial(raw), !isRoutable(f.src), !isRoutable(f.dst):
		return passed, "unsupported", raw
	case at == f.dst && w.to.IsValid() && (w.to.Port() == 0 || w.to.Port() == f.dport):
		return passed, "arrived", raw
	case w.lost && hasRoute && at.Is6() && len(raw)-14 > 1500: // the kernel checks the size before the interface
		return passed, "tooBig", raw
	case w.lost, !hasRoute:
		return passed, "noRoute", raw
	case len(raw)-14 > 1500:
		return passed, "tooBig", raw
	case raw[f.hopsAt()] <= 1:
		return dropped, "expired", nil
	case w.hook == chain.XDP && !w.to.IsValid() && !hasNeighbour:
		return passed, "noNeighbour", raw
	}
	out := bytes.Clone(raw)
	if w.to.IsValid() {
		copy(out[map[bool]int{true: 30, false: 38}[at.Is4()]:], at.AsSlice())
		if w.to.Port() != 0 {
			binary.BigEndian.PutUint16(out[14+f.ipLen()+2:], w.to.Port())
		}
	}
	if w.hook == chain.XDP && !(w.named && hasNeighbour) {
		return passed, "", out // the stack decrements the hop limit
	}
	out[f.hopsAt()]--
	return sentOn[w.hook], "", out
}

// expect passes a frame to a class's program, and compares verdict and frame with the model's. Correct checksums must
// stay correct, and wrong ones wrong.
func (r *router) expect(k *kernel, w way, f frame, raw []byte) string {
	k.t.Helper()
	want, why, out := w.model(f, raw)
	before := k.report("on")
	v, got := r.run(k, raw)
	after := k.report("on")
	n, reasons := after.Forwarded-before.Forwarded, map[string]uint64{}
	for reason, count := range after.Unforwarded {
		if d := count - before.Unforwarded[reason]; d > 0 {
			reasons[reason] = d
		}
	}
	counted := n == 1 && len(reasons) == 0
	if why != "" {
		counted = n == 0 && len(reasons) == 1 && reasons[why] == 1 || why == "no class" && n == 0 && len(reasons) == 0
	}
	if v != want || !counted {
		return fmt.Sprintf("%s, forwarded %d, not %v; want %s %s", v, n, reasons, want, why)
	}
	if want == dropped || bytes.Equal(raw, got[:len(raw)]) && bytes.Equal(raw, out) {
		return ""
	}
	if v == redirected {
		copy(out, nearMAC)
		copy(out[6:], r.bridge.Attrs().HardwareAddr)
	}
	return r.compare(raw, got[:len(raw)], out)
}

func (r *router) compare(raw, got, want []byte) string {
	was, is := residuals(raw), residuals(got)
	for at, sum := range was {
		check := binary.BigEndian.Uint16(got[at:])
		none := binary.BigEndian.Uint16(raw[at:]) == 0 && at != 24 // UDP without a checksum stays without one
		if is[at] != sum && !none || none && check != 0 || !none && check == 0 && at != 24 {
			return fmt.Sprintf("checksum at %d is %04x, over all %04x, before %04x: %x", at, check, is[at], sum, got)
		}
		copy(want[at:], got[at:at+2])
	}
	if !bytes.Equal(got, want) {
		return fmt.Sprintf("leaves as\n%x, want\n%x", got, want)
	}
	return ""
}

func udpTo(dst netip.Addr, dport uint16, payload string) frame {
	src := netip.MustParseAddr("203.0.113.5")
	if dst.Is6() {
		src = netip.MustParseAddr("2001:db8:5::5")
	}
	return frame{src: src, dst: dst, proto: udp, sport: 40000, dport: dport, payload: []byte(payload)}
}

// Packets leave to the target with a decremented hop limit, or pass unchanged for the counted reason.
func TestForward(t *testing.T) {
	r := newRouter(t)
	for _, hook := range []chain.Hook{chain.XDP, chain.TC} {
		for name, w := range map[string]way{
			"host":                   {to: netip.AddrPortFrom(near4, 7001)},
			"host, same port":        {to: netip.AddrPortFrom(near4, 0)},
			"host, IPv6":             {to: netip.AddrPortFrom(near6, 7001)},
			"unknown neighbour":      {to: netip.AddrPortFrom(quiet4, 7001)},
			"unknown, IPv6":          {to: netip.AddrPortFrom(quiet6, 0)},
			"no route":               {to: netip.AddrPortFrom(far4, 7001)},
			"no route, IPv6":         {to: netip.AddrPortFrom(far6, 7001)},
			"host, by interface":     {to: netip.AddrPortFrom(near4, 7001), named: true},
			"IPv6, by interface":     {to: netip.AddrPortFrom(near6, 7001), named: true},
			"unknown, by interface":  {to: netip.AddrPortFrom(quiet6, 7001), named: true},
			"interface":              {named: true},
			"another interface":      {lost: true},
			"host, other interface":  {to: netip.AddrPortFrom(near4, 7001), lost: true},
			"host, other interface6": {to: netip.AddrPortFrom(near6, 7001), lost: true},
		} {
			w.hook = hook
			t.Run(string(hook)+" "+name, func(t *testing.T) { r.tryAll(t, w) })
		}
	}
}

func (r *router) load(t *testing.T, w way) *kernel {
	t.Helper()
	match := ""
	if w.to.IsValid() {
		match = udpOnly
	}
	k := load(t, w.hook, chain.Ingress, forwards(match, w.String()))
	k.exits(map[string]int{"out": map[bool]int{false: r.bridge.Attrs().Index, true: r.other}[w.lost]})
	return k
}

// tryAll runs packets of each kind, and then random ones.
func (r *router) tryAll(t *testing.T, w way) {
	k := r.load(t, w)
	for _, dst := range []netip.Addr{near4, near6, quiet4, quiet6, far4} {
		for _, size := range []int{0, 1, 33, 1452, 1472, 1473, 1600} {
			for _, ttl := range []byte{0, 1, 2, 64, 255} {
				f := udpTo(dst, 5005, strings.Repeat("x", size))
				if failed := r.expect(k, w, f, f.whole(ttl)); failed != "" {
					t.Fatalf("to %s, %d bytes, ttl %d: %s", dst, size, ttl, failed)
				}
			}
		}
		f := udpTo(dst, 7001, "to the target's port")
		if failed := r.expect(k, w, f, f.whole(64)); failed != "" {
			t.Fatalf("to %s: %s", dst, failed)
		}
	}
	first := seed.Of(t)
	for i := range uint64(1500) {
		g := rand.New(rand.NewPCG(first+i, 7))
		f, raw := randomForward(g)
		if failed := r.expect(k, w, f, raw); failed != "" {
			t.Fatalf("%+v %x: %s; repeat with %s=%d", f, raw, failed, seed.Variable, first+i)
		}
	}
}

// randomForward returns a frame to or from addresses of all kinds, with correct, wrong, partial or no checksums.
func randomForward(g *rand.Rand) (frame, []byte) {
	f := randomFrame(g)
	some := func(four bool) netip.Addr {
		if four {
			return pick(g, near4, near4, quiet4, far4, netip.MustParseAddr(pick(g, "127.0.0.1", "224.0.0.5", "0.1.2.3",
				"255.255.255.255", "223.255.255.255", "1.0.0.0")))
		}
		return pick(g, near6, near6, quiet6, far6, netip.MustParseAddr(pick(g, "::1", "fe80::1", "ff02::1", "::",
			"febf::1", "fec0::1", "::1:0:0:0:1", "::ffff:10.99.7.7")))
	}
	f.src, f.dst = some(f.src.Is4()), some(f.src.Is4())
	if g.IntN(8) == 0 {
		f.payload = bytes.Repeat([]byte{1}, 1400+g.IntN(200))
	}
	raw := f.whole(pick[byte](g, 0, 1, 2, 64, 255))
	if g.IntN(10) == 0 {
		raw[0] |= 1
	}
	if !f.isPlain() {
		return f, raw
	}
	pseudo, proto, l4, _ := plain(raw)
	if at := l4 + checkOffsets[proto]; at > l4 {
		switch g.IntN(6) {
		case 0:
			raw[at], raw[at+1] = byte(g.Uint32())|1, byte(g.Uint32())
		case 1:
			binary.BigEndian.PutUint16(raw[at:], sum16(pseudo))
		case 2:
			if proto == udp {
				raw[at], raw[at+1] = 0, 0
			}
		}
	}
	if f.src.Is4() && g.IntN(10) == 0 {
		raw[24] ^= 0x55
	}
	return f, raw
}

// Frames truncated at any length are not forwarded, and cause no error.
func TestForwardCutOff(t *testing.T) {
	r := newRouter(t)
	for _, hook := range []chain.Hook{chain.XDP, chain.TC} {
		w := way{hook: hook, named: true, to: netip.AddrPortFrom(near4, 7001)}
		four := r.load(t, w)
		w.to = netip.AddrPortFrom(near6, 7001)
		six := r.load(t, w)
		for k, dst := range map[*kernel]netip.Addr{four: near4, six: near6} {
			f := udpTo(dst, 5005, "cut off")
			whole := f.whole(64)
			first := 15
			if hook == chain.TC { // test runs take nothing shorter
				first = f.linkLen() + f.ipLen()
			}
			for n := first; n < len(whole); n++ {
				if v, out := r.run(k, whole[:n]); v != passed || !bytes.Equal(out[:n], whole[:n]) {
					t.Errorf("%s, %d bytes: %s %x", hook, n, v, out)
				}
			}
			if v, _ := r.run(k, whole); v != sentOn[hook] {
				t.Errorf("%s: all of it: %s", hook, v)
			}
			if n := k.report("on").Forwarded; n != 1 {
				t.Errorf("%s: %d forwarded", hook, n)
			}
		}
	}
}

// If the node's sysctl disables forwarding, nothing is forwarded, nor by classes whose interface is not attached.
func TestForwardOnlyWhereAllowed(t *testing.T) {
	r := newRouter(t)
	f := udpTo(near4, 5005, "x")
	for _, hook := range []chain.Hook{chain.XDP, chain.TC} {
		w := way{hook: hook, to: netip.AddrPortFrom(near4, 7001), named: true}
		k := r.load(t, w)
		try := func(name string, index int, forwarding string, want verdict, ready string) {
			t.Helper()
			k.exits(map[string]int{name: index})
			if err := r.Node().Do(func() error {
				return os.WriteFile("/proc/sys/net/ipv4/conf/all/forwarding", []byte(forwarding), 0o644)
			}); err != nil {
				t.Fatal(err)
			}
			if v, _ := r.run(k, f.whole(64)); v != want {
				t.Errorf("%s: %s, forwarding %s: %s, want %s", hook, name, forwarding, v, want)
			}
			c, err := (&running{Intercept: k.Intercept}).Conditions()
			if err != nil || len(c) != 1 || c[0].Status != ready {
				t.Errorf("%s: %+v, %v", name, c, err)
			}
		}
		index := r.bridge.Attrs().Index
		try("out", index, "1", sentOn[hook], "True")
		try("out", index, "0", passed, "True")
		try("gone", index, "1", passed, "False")
		try("svc0", index, "1", passed, "False")
		try("out", index, "1", sentOn[hook], "True")
		if got := k.report("on"); got.Unforwarded["noRoute"] != 3 || got.Forwarded != 2 {
			t.Errorf("%s: %+v", hook, got)
		}
	}
}

// skbContext is struct __sk_buff, from which test runs read the segment size.
type skbContext struct {
	_    [44]uint32
	Size uint32 // gso_size
	_    [3]uint32
}

// For a packet that the kernel has merged from segments (GRO), each segment must fit into the MTU, not the whole
// packet.
func TestForwardSegments(t *testing.T) {
	r := newRouter(t)
	for _, w := range []way{{to: netip.AddrPortFrom(near4, 7001)}, {to: netip.AddrPortFrom(near6, 7001)}, {named: true}} {
		w.hook = chain.TC
		k := r.load(t, w)
		try := func(f frame, size, fits int) {
			t.Helper()
			want := map[bool]verdict{true: answered, false: passed}[size <= fits]
			before := k.report("on").Unforwarded["tooBig"]
			opts := ebpf.RunOptions{Data: f.whole(64), Context: skbContext{Size: uint32(size)}, Repeat: 1}
			var v verdict
			if err := r.Node().Do(func() error {
				ret, err := k.prog.Run(&opts)
				v = verdicts[k.hook][int32(ret)]
				return err
			}); err != nil {
				t.Fatal(err)
			}
			tooBig := k.report("on").Unforwarded["tooBig"] - before
			if v != want || (tooBig == 1) != (want == passed) {
				t.Errorf("%s, protocol %d to %s, segments of %d: %s, want %s, %d too big", w, f.proto, f.dst, size, v, want, tooBig)
			}
		}
		for _, dst := range []netip.Addr{near4, near6} {
			headers := map[bool]int{true: 20, false: 40}[dst.Is4()]
			f := udpTo(dst, 5005, strings.Repeat("x", 3000))
			if to := w.to.Addr(); to.IsValid() && to.Is4() != dst.Is4() {
				continue
			} else if to.IsValid() {
				f.dst = map[bool]netip.Addr{true: quiet4, false: quiet6}[to.Is4()] // not the packet's destination
			}
			for _, size := range []int{1, 1400, 1500 - headers - 8, 1500 - headers - 7, 1600, 65535} {
				try(f, size, 1500-headers-8)
			}
			if f.proto = tcp; w.named {
				for _, size := range []int{1000, 1500 - headers - 20, 1500 - headers - 19} {
					try(f, size, 1500-headers-20)
				}
			}
		}
	}
}
