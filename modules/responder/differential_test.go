// SPDX-License-Identifier: Apache-2.0

package responder

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/seed"
)

const fuzzConfig = `{"listeners": [
	{"app": "echo", "name": "echo", "port": 7000, "sourceRate": 0, "maxReply": 700},
	{"app": "speedlimit", "name": "kernel", "port": 8080, "sourceRate": 0, "mode": "kernel"},
	{"app": "speedlimit", "name": "mixed", "port": 8081, "sourceRate": 0, "mode": "mixed", "addresses": ["192.0.2.77", "2001:db8::77"]}]}`

var fuzzNetworks = []string{"192.0.2.1/24", "198.51.100.9/31", "2001:db8::1/64", "fe80::1/64"}

func fuzzModel(hook chain.Hook) *model {
	m := &model{hook: hook, partial: true, listeners: []modelListener{
		{name: "echo", app: "echo", port: 7000, maxReply: 700},
		{name: "kernel", app: "speedlimit", port: 8080, maxReply: 1232, kernel: true, cars: new(int64)},
		{name: "mixed", app: "speedlimit", port: 8081, maxReply: 1232, cars: new(int64), limit: 120,
			addresses: []netip.Addr{netip.MustParseAddr("192.0.2.77"), netip.MustParseAddr("2001:db8::77")}},
	}}
	for _, n := range fuzzNetworks {
		m.networks = append(m.networks, netip.MustParsePrefix(n))
	}
	return m
}

// generator generates requests, most of them almost valid.
type generator struct {
	*rand.Rand
	shortest int // frame: a test run on TC requires the IP header of the EtherType
}

var shortest = map[chain.Hook]int{chain.XDP: 14, chain.TC: 54}

func pick[T any](g generator, from ...T) T { return from[g.IntN(len(from))] }

// often returns mostly the first value.
func often[T any](g generator, usual T, others ...T) T {
	if g.IntN(8) > 0 {
		return usual
	}
	return pick(g, others...)
}

func (g generator) bytes(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(g.Uint32())
	}
	return b
}

func (g generator) packet() packet {
	p := packet{
		src: often(g, "192.0.2.50", "192.0.2.255", "192.0.2.0", "0.1.2.3", "127.0.0.1", "224.0.0.5", "255.255.255.255",
			"192.0.2.1", "240.0.0.1",
			"198.51.100.8", "203.0.113.200"),
		dst:   often(g, pick(g, "192.0.2.1", "192.0.2.77", "198.51.100.9"), "192.0.2.2", "192.0.2.255", "224.0.0.1"),
		sport: often(g, uint16(1024+g.IntN(60000)), 0, 7, 19, 7000, 8080, 8081, 65535),
		dport: often(g, pick(g, uint16(7000), 8080, 8081), 53, 0, 65535, 7001),
	}
	if g.IntN(2) == 0 {
		p.src = often(g, "2001:db8::50", "::", "::1", "::ffff:192.0.2.50", "ff02::1", "2001:db8::1", "fe80::50",
			"2001:db8:1::9")
		p.dst = often(g, pick(g, "2001:db8::1", "2001:db8::77", "fe80::1"), "2001:db8::2", "ff02::2")
		for g.IntN(4) == 0 && len(p.extensions) < 7 {
			p.extensions = append(p.extensions, g.extension())
		}
	} else {
		if g.IntN(4) == 0 {
			p.options = g.options()
		}
		if g.IntN(16) == 0 {
			p.edit = fragment(g.Uint32())
		}
	}
	if p.payload = g.message(); p.dport == 7000 {
		p.payload = g.bytes(often(g, g.IntN(64), 0, 1, 700, 701, 1000, 1400))
	}
	p.checksum = often(g, full, none, partial, bad)
	for g.IntN(6) == 0 && len(p.vlan) < 3 {
		p.vlan = append(p.vlan, uint16(g.Uint32()))
	}
	if g.IntN(5) == 0 {
		p.tail = g.bytes(g.IntN(40))
	}
	if g.IntN(10) == 0 {
		p.extra = g.bytes(g.IntN(20))
	}
	return p
}

// fragment sets flags and offset of an IPv4 header: a first fragment, a later one, or bits.
func fragment(bits uint32) func(f []byte, l3, l4 int) {
	field := [...]uint16{0x2000, 0x2001, 0x0001, uint16(bits >> 2)}[bits%4]
	return func(f []byte, l3, _ int) {
		be.PutUint16(f[l3+6:], field)
		fixIP4(f, l3)
	}
}

func (g generator) message() []byte {
	order := pick[binary.AppendByteOrder](g, binary.LittleEndian, binary.BigEndian)
	b := speed(order, often(g, pick(g, uint32(4), 4, 5), 3, 0, 6, 0x04000004), g.Uint32())
	return often(g, b, b[:g.IntN(8)], append(b, g.bytes(1+g.IntN(3))...))
}

func (g generator) options() []byte {
	b := pick(g, []byte{1, 1, 1, 0}, []byte{7, 3, 4, 1}, []byte{148, 4, 0, 0}, []byte{68, 4, 5, 0}, []byte{131, 3, 4, 0},
		[]byte{7, 40, 0, 0},
		[]byte{7, 0, 0, 0}, []byte{130, 4, 0, 0}, g.bytes(4*(1+g.IntN(10))))
	for range g.IntN(3) {
		b = append(b, 1, 1, 1, 1)
	}
	return b[:min(len(b), 40)]
}

func (g generator) extension() ext {
	kind := pick[byte](g, 0, 60, 60, 43, 44, 51, 135)
	body := pick(g, []byte{0, 1, 4, 0, 0, 0, 0}, []byte{0, 5, 2, 0, 0, 1, 0}, []byte{0, 0, 0, 0, 0, 0, 0},
		[]byte{0, 0xc2, 4, 0, 0, 0, 0}, []byte{0, 1, 200, 0, 0, 0, 0},
		[]byte{1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, append([]byte{0}, g.bytes(6)...))
	if kind == 60 && g.IntN(3) == 0 { // the UDP header may start after byte 500
		body = make([]byte, 8*(1+g.IntN(57))-1)
		body[0] = byte(len(body) / 8)
	}
	return ext{kind, body}
}

// mutate modifies a frame in a few places.
func (g generator) mutate(f []byte) []byte {
	for range g.IntN(4) {
		switch at := g.IntN(len(f)); g.IntN(5) {
		case 0:
			f[at] ^= 1 << g.IntN(8)
		case 1:
			f[at] = pick[byte](g, 0, 1, 0x7f, 0x80, 0xff, byte(g.Uint32()))
		case 2:
			f = f[:max(min(g.shortest, len(f)), at)]
		case 3:
			f = append(f, g.bytes(g.IntN(30))...)
		case 4: // fields near the transport header
			if at = 14 + g.IntN(60); at < len(f) {
				f[at] = byte(g.Uint32())
			}
		}
	}
	return f
}

// rounds returns the number of rounds of a differential test: KERB_MUTATIONS, or a small default.
func rounds(t testing.TB) int {
	n := 100000
	if os.Getenv("KERB_MATRIX") != "" {
		n = 5000
	}
	if text := os.Getenv("KERB_MUTATIONS"); text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

// Data plane and model agree on every request, well-formed or not: on the verdict, on each byte of the reply, and on
// all counters.
func TestAgreesWithTheModel(t *testing.T) {
	onHooks(t, fuzzConfig, func(t *testing.T, k *kernel) {
		g, m := generator{seed.Rand(t), shortest[k.hook]}, fuzzModel(k.hook)
		k.at(fuzzNetworks...)
		opts := newRun()
		for i := range rounds(t) {
			frame := g.packet().frame()
			if g.IntN(3) == 0 {
				frame = g.mutate(frame)
			}
			want, reply := m.run(frame)
			got, out := opts.run(k, frame)
			if got != want || want != dropped && !bytes.Equal(out, reply) {
				t.Fatalf("request %d: %s, model %s\nframe %x\n  got %x\nmodel %x", i, got, want, frame, out, reply)
			}
		}
		for _, name := range []string{"", "echo", "kernel", "mixed"} {
			if diff := cmp.Diff(m.counts[name], k.packets(name)); diff != "" {
				t.Errorf("packets of %q: model - kernel +\n%s", name, diff)
			}
		}
		// The generator reaches every outcome except those that the tests of limits, challenges and real traffic cover.
		if rounds(t) >= 100000 {
			for i, outcome := range outcomes {
				n := m.counts[""][outcome] + m.counts["echo"][outcome] + m.counts["kernel"][outcome]
				if n == 0 && !slices.Contains([]string{"not_linear", "source_limit", "total_limit", "no_room", "lost", "unproven",
					"challenged"}, outcome) {
					t.Errorf("outcome %d, %s, never came up", i, outcome)
				}
			}
		}
		for _, l := range m.listeners[1:] {
			if got := k.cars(l.name); got != *l.cars {
				t.Errorf("%s counts %d cars, model %d", l.name, got, *l.cars)
			}
		}
	})
}
