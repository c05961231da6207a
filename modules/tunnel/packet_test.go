// SPDX-License-Identifier: Apache-2.0

package tunnel

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/pkgs/pkgstest"
	"github.com/kerb-edge/kerb/sdk/sdktest"
)

const testKey = "000102030405060708090a0b0c0d0e0f"

// Nodes of the tests: .2 over IPv4, ::3 over IPv6. This node is .1 and ::1.
const testNodes = `"nodes": [
	{"address": "192.0.2.1", "subnets": ["10.1.0.0/24", "fd01::/64"]},
	{"address": "192.0.2.2", "subnets": ["10.2.0.0/24", "fd02::/64"]},
	{"address": "2001:db8::3", "subnets": ["10.3.0.0/16", "fd03::/64", "10.2.0.99"]}]`

var (
	keyed   = `{"keys": [{"id": 3, "key": "` + testKey + `"}, {"id": 4, "key": "ffeeddccbbaa99887766554433221100"}], "network": 7, ` + testNodes + `}`
	unkeyed = `{` + testNodes + `}`
)

func keyBytes(text string) *[16]byte {
	b, _ := hex.DecodeString(text)
	return (*[16]byte)(b)
}

var wires = map[string]wire{
	"keyed":    {port: Port, network: 7, keyID: 3, key: keyBytes(testKey)},
	"old MAC":  {port: Port, network: 7, keyID: 3, key: keyBytes(testKey), old: true},
	"unkeyed":  {port: Port},
	"oakestra": {mode: modeOakestra, port: PortOakestra},
}

var configs = map[string]string{"keyed": keyed, "unkeyed": unkeyed,
	"old MAC":  `{"keys": [{"id": 3, "mac": 1, "key": "` + testKey + `"}, {"id": 4, "key": "ffeeddccbbaa99887766554433221100"}], "network": 7, ` + testNodes + `}`,
	"oakestra": `{"mode": "oakestra", "nodes": [{"address": "192.0.2.2", "subnets": ["10.2.0.0/24", "fd02::/64"]}]}`}

// inners returns packets between a service of this node and those of two others.
func inners(local4, local6, remote4, remote6 string) map[string]packet {
	later := ip(local4, remote4, 17, make([]byte, 100))
	later[6], later[7] = 0, 20 // offset 160, which makes it a fragment without ports
	be.PutUint16(later[10:], 0)
	be.PutUint16(later[10:], checksum(later[:20]))
	ecn := ip(local4, remote4, 6, tcpBody(0x10, nil, 1000))
	ecn[1] = 0xb8 | 2
	be.PutUint16(ecn[10:], 0)
	be.PutUint16(ecn[10:], checksum(ecn[:20]))
	ext := ip(local6, remote6, 60, append([]byte{17, 0, 1, 4, 0, 0, 0, 0}, udpBody(33)...))
	first := ip(local4, remote4, 17, udpBody(640))
	first[6], first[7] = 0x20, 0
	be.PutUint16(first[10:], 0)
	be.PutUint16(first[10:], checksum(first[:20]))
	first6 := ip(local6, remote6, 44, append([]byte{17, 0, 0, 1, 1, 2, 3, 4}, udpBody(640)...))
	later6 := ip(local6, remote6, 44, append([]byte{17, 0, 2, 8, 1, 2, 3, 4}, make([]byte, 64)...))
	return map[string]packet{
		"first fragment": first, "first fragment of IPv6": first6, "later fragment of IPv6": later6,
		"tcp4": ip(local4, remote4, 6, tcpBody(0x18, []byte{1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2}, 500)),
		"tcp6": ip(local6, remote6, 6, tcpBody(0x10, nil, 0)),
		"udp4": ip(local4, remote4, 17, udpBody(1)), "udp6": ip(local6, remote6, 17, udpBody(999)),
		"icmp4": ip(local4, remote4, 1, icmpBody(8, 56)), "icmp6": ip(local6, remote6, 58, icmpBody(128, 56)),
		"sctp4": ip(local4, remote4, 132, make([]byte, 40)), "later fragment": later, "dscp and ecn": ecn,
		"extension header": ext,
	}
}

func TestWrapsAsTheModelDoes(t *testing.T) {
	for name, w := range wires {
		t.Run(name, func(t *testing.T) {
			k := loadTunnel(t, configs[name])
			for _, to := range []string{"192.0.2.2", "2001:db8::3"} {
				w.to, w.from = netip.MustParseAddr(to), netip.MustParseAddr("192.0.2.1")
				remote4, remote6 := "10.2.0.7", "fd02::7"
				if w.to.Is6() {
					if name == "oakestra" {
						continue
					}
					w.from, remote4, remote6 = netip.MustParseAddr("2001:db8::1"), "10.3.200.1", "fd03::7"
				}
				for kind, inner := range inners("10.1.0.5", "fd01::5", remote4, remote6) {
					ret, got := k.run(k.wrap, frame(inner), 0)
					if ret != tcRedirect {
						t.Errorf("%s to %s: action %d", kind, to, ret)
						continue
					}
					sport := be.Uint16(got[14+20+20*(w.to.BitLen()/128):])
					if want := frame(w.wrap(inner, sport)); !bytes.Equal(got, want) || sport < 49152 {
						t.Errorf("%s to %s:\n got %x\nwant %x", kind, to, got, want)
					}
				}
			}
		})
	}
}

// An exact address takes precedence over prefixes, a longer prefix over a shorter one.
func TestLongestPrefix(t *testing.T) {
	k := loadTunnel(t, unkeyed)
	for dst, want := range map[string]string{"10.2.0.98": "192.0.2.2", "10.2.0.99": "2001:db8::3",
		"10.3.255.255": "2001:db8::3"} {
		_, got := k.run(k.wrap, frame(ip("10.1.0.5", dst, 17, udpBody(9))), 0)
		to := netip.AddrFrom4([4]byte(got[30:]))
		if got[12] == 0x86 {
			to = netip.AddrFrom16([16]byte(got[38:]))
		}
		if to.String() != want {
			t.Errorf("%s goes to %s, want %s", dst, to, want)
		}
	}
}

// Source ports differ between flows and are constant within one.
func TestSourcePortsSpreadFlows(t *testing.T) {
	k := loadTunnel(t, unkeyed)
	ports := map[uint16]bool{}
	for i := range 100 {
		body := udpBody(20)
		be.PutUint16(body, uint16(1000+i))
		inner := frame(ip("10.1.0.5", "10.2.0.7", 17, body))
		_, a := k.run(k.wrap, inner, 0)
		_, b := k.run(k.wrap, inner, 0)
		if be.Uint16(a[34:]) != be.Uint16(b[34:]) {
			t.Fatal("one flow has two source ports")
		}
		ports[be.Uint16(a[34:])] = true
	}
	if len(ports) < 90 {
		t.Errorf("100 flows have %d source ports", len(ports))
	}
}

func TestLeavesOthersAlone(t *testing.T) {
	k := loadTunnel(t, unkeyed)
	vlan := frame(ip("10.1.0.5", "10.2.0.7", 17, udpBody(9)))
	vlan = append(append(append([]byte{}, vlan[:12]...), 0x81, 0, 0, 5), vlan[12:]...)
	arp := make([]byte, 60)
	arp[12], arp[13] = 8, 6
	w := wires["unkeyed"]
	w.from, w.to = netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	for name, f := range map[string][]byte{
		"unknown address":  frame(ip("10.1.0.5", "203.0.113.1", 17, udpBody(9))),
		"own subnet":       frame(ip("10.1.0.5", "10.1.0.1", 17, udpBody(9))),
		"own service":      frame(ip("fd01::6", "fd01::5", 17, udpBody(9))),
		"VLAN":             vlan,
		"ARP":              arp,
		"an outer packet":  frame(w.wrap(ip("10.1.0.5", "10.2.0.7", 17, udpBody(9)), 50000)),
		"multicast":        frame(ip("10.1.0.5", "224.0.0.1", 17, udpBody(9))),
		"neighbour search": frame(ip("fe80::5", "ff02::1:ff00:7", 58, icmpBody(135, 16))),
	} {
		if ret, got := k.run(k.wrap, f, 0); ret != tcNext || !bytes.Equal(got, f) {
			t.Errorf("%s: action %d, changed: %v", name, ret, !bytes.Equal(got, f))
		}
	}
	bad := frame(ip("10.1.0.5", "10.2.0.7", 17, udpBody(9)))
	be.PutUint16(bad[38:], 5) // UDP length
	if ret, why := k.reason(k.wrap, bad); ret != tcShot || why != "kerb_2" {
		t.Errorf("malformed packet to a node: action %d %s", ret, why)
	}
}

// arrival returns an encapsulated packet from another node to the service.
func (w wire) arrival(k *kernel, inner packet) []byte {
	return frame(w.wrap(inner, 50000))
}

func fromTo(w wire, from string) wire {
	w.from, w.to = netip.MustParseAddr(from), netip.MustParseAddr("192.0.2.1")
	if w.from.Is6() {
		w.to = netip.MustParseAddr("2001:db8::1")
	}
	return w
}

func TestUnwrapsWhatTheModelWraps(t *testing.T) {
	for name, w := range wires {
		t.Run(name, func(t *testing.T) {
			k := loadTunnel(t, configs[name])
			for _, from := range []string{"192.0.2.2", "2001:db8::3"} {
				w := fromTo(w, from)
				remote4, remote6 := "10.2.0.7", "fd02::7"
				if w.from.Is6() {
					if name == "oakestra" {
						continue
					}
					remote4, remote6 = "10.3.200.1", "fd03::7"
				}
				for kind, inner := range inners(remote4, remote6, "10.1.0.5", "fd01::5") {
					ret, got := k.run(k.unwrap(), w.arrival(k, inner), 0)
					want := frame(inner)
					copy(want, []byte{2, 0, 0, 0, 0, 5, 2, 0, 0, 0, 0, 1})
					got = got[:min(len(got), len(want))] // older kernels pad the shortest ones
					if ret != tcRedirect || !bytes.Equal(got, want) {
						t.Errorf("%s from %s: action %d\n got %x\nwant %x", kind, from, ret, got, want)
					}
				}
			}
		})
	}
}

// Both keys are accepted, independent of the one for sending.
func TestKeyRotation(t *testing.T) {
	k := loadTunnel(t, keyed)
	inner := ip("10.2.0.7", "10.1.0.5", 17, udpBody(9))
	w := fromTo(wires["keyed"], "192.0.2.2")
	w.keyID, w.key = 4, keyBytes("ffeeddccbbaa99887766554433221100")
	if ret, why := k.reason(k.unwrap(), w.arrival(k, inner)); ret != tcRedirect {
		t.Errorf("second key: action %d %s", ret, why)
	}
	w.keyID = 3
	if _, why := k.reason(k.unwrap(), w.arrival(k, inner)); why != "bad_mac" {
		t.Errorf("second key as the first: %q", why)
	}
	w.keyID = 5
	if _, why := k.reason(k.unwrap(), w.arrival(k, inner)); why != "unknown_key" {
		t.Errorf("unknown key: %q", why)
	}
}

func TestHostile(t *testing.T) {
	k := loadTunnel(t, keyed)
	plain := loadTunnel(t, unkeyed)
	w := fromTo(wires["keyed"], "192.0.2.2")
	u := fromTo(wires["unkeyed"], "192.0.2.2")
	inner := ip("10.2.0.7", "10.1.0.5", 17, udpBody(100))
	good := w.arrival(k, inner)
	const ip4, udp, head, body = 14, 34, 42, 54
	change := func(from []byte, do func(f []byte)) []byte {
		f := bytes.Clone(from)
		do(f)
		return f
	}
	stranger, spoofer := w, w
	stranger.from, spoofer.from = netip.MustParseAddr("192.0.2.66"), netip.MustParseAddr("2001:db8::3")
	spoofer.to = netip.MustParseAddr("2001:db8::1")
	own := u
	own.from = netip.MustParseAddr("192.0.2.1")
	elsewhere := w
	elsewhere.to = netip.MustParseAddr("192.0.2.9")
	cut := func(n int) []byte { // with outer lengths that fit
		return change(good[:n], func(f []byte) {
			be.PutUint16(f[ip4+2:], uint16(n-ip4))
			be.PutUint16(f[udp+4:], uint16(n-udp))
			be.PutUint16(f[ip4+10:], 0)
			be.PutUint16(f[ip4+10:], checksum(f[ip4:udp]))
		})
	}
	nested := w.wrap(inner, 50000)
	for _, c := range []struct {
		name  string
		k     *kernel
		frame []byte
		why   string // "" continues untouched
	}{
		{"good", k, good, "-"},
		{"good without key", plain, u.arrival(plain, inner), "-"},
		{"replayed: there is no protection", k, good, "-"},
		{"MAC, one bit", k, change(good, func(f []byte) { f[body-1] ^= 1 }), "bad_mac"},
		{"key id", k, change(good, func(f []byte) { f[head+1] = 9 }), "unknown_key"},
		{"key id 0", k, change(good, func(f []byte) { f[head+1] = 0 }), "unknown_key"},
		{"no MAC", k, fromTo(wire{port: Port, network: 7}, "192.0.2.2").arrival(k, inner), "no_mac"},
		{"unexpected MAC", plain, change(good, func(f []byte) { f[head+3] = 0 }), "unknown_key"},
		{"version", k, change(good, func(f []byte) { f[head] = 0x21 }), "bad_header"},
		{"unknown flag", k, change(good, func(f []byte) { f[head] = 0x17 }), "bad_header"},
		{"older MAC than the key's", k, fromTo(wires["old MAC"], "192.0.2.2").arrival(k, inner), "unknown_key"},
		{"older flag", k, change(good, func(f []byte) { f[head] = 0x11 }), "unknown_key"},
		{"network", k, change(good, func(f []byte) { f[head+3] = 8 }), "other_network"},
		{"inner port", k, change(good, func(f []byte) { f[body+21] ^= 1 }), "bad_mac"},
		{"inner protocol", k, change(good, func(f []byte) { f[body+9] = 132; refresh(f[body:]) }), "bad_mac"},
		{"inner source of the same node", k, change(good, func(f []byte) { f[body+15] = 8; refresh(f[body:]) }), "bad_mac"},
		{"inner destination", k, change(good, func(f []byte) { f[body+19] = 6; refresh(f[body:]) }), "bad_mac"},
		{"stranger", k, frame(stranger.wrap(inner, 50000)), "unknown_source"},
		{"another node's address", k, frame(spoofer.wrap(inner, 50000)), "unknown_source"},
		{"inner source of no node", k, w.arrival(k, ip("203.0.113.7", "10.1.0.5", 17, udpBody(9))), "unknown_source"},
		{"inner source of this node", plain, frame(own.wrap(ip("10.1.0.6", "10.1.0.5", 17, udpBody(9)), 50000)),
			"unknown_source"},
		{"for another node", k, w.arrival(k, ip("10.2.0.7", "10.3.0.5", 17, udpBody(9))), "not_local"},
		{"for no instance", k, w.arrival(k, ip("10.2.0.7", "10.1.0.77", 17, udpBody(9))), "not_local"},
		{"multicast", k, w.arrival(k, ip("10.2.0.7", "224.0.0.1", 17, udpBody(9))), "not_local"},
		{"nested", k, w.arrival(k, nested), "unknown_source"},
		{"no header", k, cut(head), "bad_header"},
		{"half a header", k, cut(head + 2), "bad_header"},
		{"half a MAC", k, cut(head + 8), "bad_header"},
		{"no inner packet", k, cut(body), "bad_header"},
		{"half an inner header", k, cut(body + 19), "bad_header"},
		{"inner header alone", k, cut(body + 20), "bad_inner"},
		{"inner packet cut off", k, cut(len(good) - 1), "bad_inner"},
		{"inner packet longer than UDP says", k, change(good, func(f []byte) {
			be.PutUint16(f[udp+4:], uint16(len(f)-udp-10))
		}), "bad_inner"},
		{"inner version 5", k, change(good, func(f []byte) { f[body] = 0x55 }), "bad_inner"},
		{"inner version 6", k, change(good, func(f []byte) { f[body] = 0x65 }), "unknown_source"},
		{"inner header length 4", k, change(good, func(f []byte) { f[body] = 0x41 }), "bad_inner"},
		{"inner header length 60", k, change(cut(body+30), func(f []byte) {
			f[body] = 0x4f
			f[body+2], f[body+3] = 0, 30
		}), "bad_inner"},
		{"inner length 0", k, change(good, func(f []byte) { f[body+2], f[body+3] = 0, 0 }), "bad_inner"},
		{"inner UDP too long", k, change(good, func(f []byte) { be.PutUint16(f[body+24:], 2000) }), "bad_inner"},
		{"first outer fragment", k, change(good, func(f []byte) { f[ip4+6] = 0x20 }), "kerb_3"},
		{"congestion for one that cannot say so", k, func() []byte {
			v := w
			v.tos, v.setTOS = 3, true
			return v.arrival(k, inner)
		}(), "bad_ecn"},
		{"later outer fragment", k, change(good, func(f []byte) { f[ip4+6], f[ip4+7] = 0, 1 }), ""},
		{"another port", k, change(good, func(f []byte) { f[udp+3]++ }), ""},
		{"not our address", k, frame(elsewhere.wrap(inner, 50000)), ""},
		{"UDP longer than IP", k, change(good, func(f []byte) { be.PutUint16(f[udp+4:], 5000) }), ""},
		{"UDP length 7", k, change(good, func(f []byte) { be.PutUint16(f[udp+4:], 7) }), ""},
		{"TCP", k, frame(ip("192.0.2.2", "192.0.2.1", 6, tcpBody(2, nil, 0))), ""},
	} {
		ret, why := c.k.reason(c.k.unwrap(), c.frame)
		want := map[string]int32{"": tcNext, "-": tcRedirect}[c.why]
		if c.why != "" && c.why != "-" {
			want = tcShot
		}
		if ret != want || want == tcShot && why != c.why {
			t.Errorf("%s: action %d %q, want %d %q", c.name, ret, why, want, c.why)
		}
	}
}

// refresh sets the IPv4 header's checksum.
func refresh(p []byte) {
	be.PutUint16(p[10:], 0)
	be.PutUint16(p[10:], checksum(p[:20]))
}

// Packets with modified bytes do not pass if the MAC covers these bytes. Others that pass arrive as sent.
func TestRandomDamage(t *testing.T) {
	k := loadTunnel(t, keyed)
	random := rand.New(rand.NewPCG(1, 2))
	for _, from := range []string{"192.0.2.2", "2001:db8::3"} {
		w := fromTo(wires["keyed"], from)
		remote4, remote6 := "10.2.0.7", "fd02::7"
		if w.from.Is6() {
			remote4, remote6 = "10.3.200.1", "fd03::7"
		}
		outer := 14 + 20*(1+w.from.BitLen()/128) + 8
		for kind, inner := range inners(remote4, remote6, "10.1.0.5", "fd01::5") {
			good := w.arrival(k, inner)
			for range 300 {
				f := bytes.Clone(good)
				at := outer + random.IntN(min(12+60, len(f)-outer))
				f[at] ^= byte(1 + random.IntN(255))
				ret, got := k.run(k.unwrap(), f, 0)
				if ret == tcNext {
					t.Fatalf("%s: byte %d sends a tunnel packet up the stack", kind, at)
				}
				if ret != tcRedirect {
					continue
				}
				p := packet(f[outer+12:])
				if !bytes.Equal(p.covered(f[outer:outer+4], 2), inner.covered(good[outer:outer+4], 2)) || at < outer+12 {
					t.Fatalf("%s: byte %d is covered by the MAC, and passes", kind, at)
				}
				if got = got[:min(len(got), 14+len(p))]; !bytes.Equal(got[14:], p) { // older kernels pad the shortest ones
					t.Fatalf("%s: byte %d: another packet arrives", kind, at)
				}
			}
		}
	}
}

func TestTooBig(t *testing.T) {
	k := loadTunnel(t, keyed)
	for _, c := range []struct {
		name  string
		inner packet
		gso   uint32
		mtu   int
	}{
		{"udp4", ip("10.1.0.5", "10.2.0.7", 17, udpBody(1461-28)), 0, 1460},
		{"udp6", ip("fd01::5", "fd02::7", 17, udpBody(1461-48)), 0, 1460},
		{"udp4 over IPv6", ip("10.1.0.5", "10.3.0.7", 17, udpBody(1441-28)), 0, 1440},
		{"tcp6 over IPv6", ip("fd01::5", "fd03::7", 6, tcpBody(0x10, nil, 1441-60)), 0, 1440},
		{"segments", ip("10.1.0.5", "10.2.0.7", 6, tcpBody(0x10, make([]byte, 12), 3000)), 1460 - 51, 1460},
	} {
		ret, got := k.run(k.wrap, frame(c.inner), c.gso)
		if ret != tcRedirect {
			t.Errorf("%s: action %d", c.name, ret)
			continue
		}
		checkTooBig(t, c.name, got, c.inner, c.mtu)
	}
	for name, inner := range map[string]packet{
		"udp4": ip("10.1.0.5", "10.2.0.7", 17, udpBody(1460-28)), "udp6": ip("fd01::5", "fd03::7", 17, udpBody(1440-48)),
	} {
		if _, got := k.run(k.wrap, frame(inner), 0); len(got) != 1500+14 {
			t.Errorf("%s that just fits: %d bytes", name, len(got))
		}
	}
	report, err := k.report()
	if err != nil || report.Nodes[1].TooBig+report.Nodes[2].TooBig != 5 || report.Nodes[1].MTU != 1460 ||
		report.Nodes[2].MTU != 1440 {
		t.Errorf("%+v, %v", report, err)
	}
	later := inners("10.1.0.5", "fd01::5", "10.2.0.7", "fd02::7")["later fragment"]
	big := append(bytes.Clone(later), make([]byte, 1400)...)
	be.PutUint16(big[2:], uint16(len(big)))
	be.PutUint16(big[6:], 0x4000|20) // with DF; otherwise it would be fragmented
	if ret, why := k.reason(k.wrap, frame(big)); ret != tcShot || why != "kerb_9" {
		t.Errorf("later fragment: action %d %s", ret, why)
	}
}

func checkTooBig(t *testing.T, name string, got []byte, inner packet, mtu int) {
	t.Helper()
	p := packet(got[14:])
	src, dst := p.addrs()
	from, to := inner.addrs()
	if src != to || dst != from || !bytes.Equal(got[:12], []byte{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1}) {
		t.Errorf("%s: answered to %s from %s, %x", name, dst, src, got[:12])
	}
	if transportSum(p) != 0 {
		t.Errorf("%s: ICMP checksum is off by %x", name, transportSum(p))
	}
	head, kind := 40, []byte{2, 0}
	if p.version() == 4 {
		head, kind = 20, []byte{3, 4}
		if checksum(p[:20]) != 0 || p[9] != 1 {
			t.Errorf("%s: IPv4 header %x", name, p[:20])
		}
	}
	if !bytes.Equal(p[head:head+2], kind) || int(be.Uint32(p[head+4:])) != mtu ||
		!bytes.Equal(p[head+8:], inner[:len(p)-head-8]) || len(p)-head-8 < 28 {
		t.Errorf("%s: %x", name, p[head:])
	}
}

// The MSS of a SYN is clamped at any position of the option, in both directions; the checksum stays correct.
func TestClampsMSS(t *testing.T) {
	k := loadTunnel(t, keyed)
	for i, options := range [][]byte{
		{2, 4, 0x23, 0x28}, {1, 2, 4, 0x23, 0x28}, {1, 1, 2, 4, 0x23, 0x28},
		{8, 10, 0, 0, 0, 0, 0, 0, 0, 0, 2, 4, 0x23, 0x28, 1, 3, 3, 7},
		{2, 4, 0x02, 0x18}, {}, {2, 3, 0x23, 0x28}, {1, 2, 4, 0x23}, {0, 2, 4, 0x23, 0x28}, {8, 0, 2, 4, 0x23, 0x28},
		{3, 1, 2, 4, 0x23, 0x28}, {254, 255},
	} {
		for _, flags := range []byte{2, 0x12, 0x10} {
			for _, to := range []string{"10.2.0.7", "fd03::7"} {
				src, most := "10.1.0.5", 1460-40
				w := fromTo(wires["keyed"], "192.0.2.2")
				if to == "fd03::7" {
					src, most = "fd01::5", 1440-60
					w = fromTo(wires["keyed"], "2001:db8::3")
				}
				p := ip(src, to, 6, tcpBody(flags, bytes.Clone(options), 0))
				_, got := k.run(k.wrap, frame(p), 0)
				name := fmt.Sprintf("options %d, flags %x, to %s", i, flags, to)
				checkMSS(t, name, got[len(got)-len(p):], p, most, flags&2 != 0 && i < 4)
				p = ip(to, src, 6, tcpBody(flags, bytes.Clone(options), 0))
				_, got = k.run(k.unwrap(), w.arrival(k, p), 0)
				checkMSS(t, name+", back", got[14:], p, most, flags&2 != 0 && i < 4)
			}
		}
	}
}

func checkMSS(t *testing.T, name string, got, p packet, most int, clamped bool) {
	t.Helper()
	want := bytes.Clone(p)
	if clamped {
		at := bytes.Index(want, []byte{2, 4, 0x23, 0x28})
		be.PutUint16(want[at+2:], uint16(most))
	}
	head := 40
	if p.version() == 4 {
		head = 20
	}
	if clamped {
		copy(want[head+16:], got[head+16:head+18]) // checked separately
	}
	if !bytes.Equal(got, want) || transportSum(got) != 0 {
		t.Errorf("%s: checksum off by %x\n got %x\nwant %x", name, transportSum(got), got, want)
	}
}

// RFC 6040, figure 4: the resulting ECN bits.
func TestCongestion(t *testing.T) {
	k := loadTunnel(t, keyed)
	const drop = 9
	for outer, row := range [4][4]byte{{0, 1, 2, 3}, {0, 1, 1, 3}, {0, 1, 2, 3}, {drop, 3, 3, 3}} {
		for inner, want := range row {
			for _, p := range []packet{ip("10.2.0.7", "10.1.0.5", 17, udpBody(9)), ip("fd02::7", "fd01::5", 17, udpBody(9))} {
				if p.version() == 4 {
					p[1] = 0xb8 | byte(inner)
					refresh(p)
				} else {
					p[0], p[1] = 0x6b, 0x80|byte(inner)<<4
				}
				w := fromTo(wires["keyed"], "192.0.2.2")
				w.tos, w.setTOS = byte(outer), true
				ret, got := k.run(k.unwrap(), w.arrival(k, p), 0)
				if want == drop {
					if ret != tcShot {
						t.Errorf("outer %d, inner %d passes", outer, inner)
					}
					continue
				}
				q := packet(got[14:])
				if q.tos() != 0xb8|want || q.version() == 4 && checksum(q[:20]) != 0 {
					t.Errorf("IPv%d, outer %d, inner %d: TOS %x, want %x", q.version(), outer, inner, q.tos(), 0xb8|want)
				}
			}
		}
	}
}

// The verifier's work bounds how many modules fit into one program with the tunnel (1,000,000 in all). Linux 6.18 needs
// 47,000 instructions, 6.1 needs 65,000.
const maxVerified = 60000

func TestVerifies(t *testing.T) {
	sdktest.NeedRoot(t)
	for name, config := range map[string]string{"keyed": keyed, "unkeyed": unkeyed, "oakestra": configs["oakestra"],
		"device": `{"mode": "device", ` + testNodes + `}`} {
		for _, dir := range []chain.Direction{chain.Egress, chain.Ingress} {
			t.Run(name+" "+string(dir), func(t *testing.T) {
				l, err := dataplane.Load(chain.OnTCIngress, dir, module(t, compileConfig(t, config)))
				sdktest.Explain(t, err)
				defer l.Close()
				sdktest.CheckVerified(t, l.Program, maxVerified)
			})
		}
	}
}

// Modules after the tunnel can read the packet, also if the tunnel failed to add a link header.
func TestPacketBehindVerifies(t *testing.T) {
	sdktest.NeedRoot(t)
	for _, dir := range []chain.Direction{chain.Egress, chain.Ingress} {
		l, err := dataplane.Load(chain.OnTCIngress, dir, module(t, compileConfig(t, keyed)), pkgstest.Reader(dir))
		sdktest.Explain(t, err)
		l.Close()
	}
}
