// SPDX-License-Identifier: Apache-2.0

// Package classbench generates rule sets for tests and benchmarks of packet filters, in the style of ClassBench
// (Taylor and Turner, 2007): acl has specific destinations and few wildcards, ipc mixes all forms, fw has wildcard
// sources or destinations and port ranges on both sides. The distributions follow the published seeds; sets are
// reproducible.
package classbench

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"net/netip"
	"slices"
)

// Kinds are the rule sets that Rules generates. The rules of nested overlap each other in all dimensions, which no real
// rule set does.
var Kinds = []string{"acl", "ipc", "fw", "nested"}

// Rule matches a packet. The first rule that matches decides.
type Rule struct {
	Allow            bool
	Src, Dst         netip.Prefix // invalid: any
	Protocol         int          // TCP, UDP or Any
	SrcPort, DstPort Ports        // of TCP and UDP
}

// Ports is an inclusive range.
type Ports struct{ Low, High uint16 }

// Values of Rule.Protocol; other protocols are their IANA number.
const (
	Any = -1
	TCP = 6
	UDP = 17
)

// AnyPort matches all ports.
var AnyPort = Ports{0, 65535}

// Rules returns n rules of a kind for IPv4 or IPv6, none of them twice.
func Rules(kind string, n int, v4 bool) ([]Rule, error) {
	shape, ok := shapes[kind]
	if !ok {
		return nil, fmt.Errorf("unknown rule set %q: the kinds are %v", kind, Kinds)
	}
	g := newGenerator(kind, n, v4)
	rules, seen := make([]Rule, 0, n), map[Rule]bool{}
	for len(rules) < n {
		r := shape(g)
		if r.Protocol != TCP && r.Protocol != UDP {
			r.SrcPort, r.DstPort = AnyPort, AnyPort
		}
		if !seen[r] {
			seen[r] = true
			rules = append(rules, r)
		}
	}
	if kind != "nested" {
		slices.SortStableFunc(rules, func(a, b Rule) int { return cmp.Compare(b.specificity(), a.specificity()) })
	}
	for i := range rules {
		rules[i].Allow = i%3 != 0
	}
	return rules, nil
}

// specificity orders rules as ClassBench does, so that no rule follows one that covers it.
func (r *Rule) specificity() int {
	protocol := 0
	if r.Protocol != Any {
		protocol = 8
	}
	return max(0, r.Src.Bits()) + max(0, r.Dst.Bits()) + protocol + r.SrcPort.specificity() + r.DstPort.specificity()
}

func (p Ports) specificity() int { return 16 - bits.Len16(p.High-p.Low) }

// shapes create one rule, without its action.
var shapes = map[string]func(*generator) Rule{
	"acl": func(g *generator) Rule {
		return Rule{Src: g.prefix(5, 16, 24, 28, 32), Dst: g.prefix(0, 24, 28, 32, 32), Protocol: g.protocol(4),
			SrcPort: AnyPort, DstPort: g.ports(60, 15, 10)}
	},
	"ipc": func(g *generator) Rule {
		return Rule{Src: g.prefix(20, 8, 16, 24, 32), Dst: g.prefix(15, 16, 24, 32, 32), Protocol: g.protocol(15),
			SrcPort: g.ports(20, 5, 10), DstPort: g.ports(35, 10, 15)}
	},
	"fw": func(g *generator) Rule {
		r := Rule{Src: g.prefix(10, 8, 16, 24, 32), Dst: g.prefix(10, 8, 16, 24, 32), Protocol: g.protocol(10),
			SrcPort: g.ports(10, 15, 25), DstPort: g.ports(40, 15, 20)}
		switch g.IntN(3) {
		case 0:
			r.Src = netip.Prefix{}
		case 1:
			r.Dst = netip.Prefix{}
		}
		return r
	},
	"nested": func(g *generator) Rule {
		return Rule{Src: g.zeros(), Dst: g.zeros(), Protocol: TCP, SrcPort: Ports{0, uint16(g.Uint32())},
			DstPort: Ports{0, uint16(g.Uint32())}}
	},
}

// generator draws the fields of rules from pools whose size depends on the number of rules, so that rules share values.
type generator struct {
	*rand.Rand
	v4       bool
	networks []uint32 // first bits of addresses, near each other so that prefixes nest
	services []uint16
}

func newGenerator(kind string, n int, v4 bool) *generator {
	var seed uint64
	for _, c := range kind {
		seed = seed*31 + uint64(c)
	}
	g := &generator{Rand: rand.New(rand.NewPCG(seed, uint64(n))), v4: v4}
	for range max(8, n/8) {
		g.networks = append(g.networks, g.network())
	}
	g.services = []uint16{80, 443, 22, 25, 53, 110, 123, 389, 1433, 1521, 3306, 8080}
	for range 40 {
		g.services = append(g.services, uint16(1+g.IntN(20000)))
	}
	return g
}

// network returns an address of which rules use prefixes: mostly near an existing one.
func (g *generator) network() uint32 {
	word := 1<<28 + g.Uint32N(13<<28)
	if len(g.networks) == 0 || g.IntN(4) == 0 {
		return word
	}
	fresh := uint32(1)<<pick(g, 24, 20, 16, 12, 8) - 1
	return g.networks[g.IntN(len(g.networks))]&^fresh | word&fresh
}

func pick[T any](g *generator, from ...T) T { return from[g.IntN(len(from))] }

// prefix returns a prefix with one of the lengths (of IPv4; IPv6 has 32 bits more), or any prefix in percentAny percent
// of rules.
func (g *generator) prefix(percentAny int, lengths ...int) netip.Prefix {
	if g.IntN(100) < percentAny {
		return netip.Prefix{}
	}
	length := max(1, min(32, pick(g, lengths...)+g.IntN(5)-2))
	return g.masked(g.networks[g.IntN(len(g.networks))]^g.Uint32N(16), length)
}

// zeros returns a prefix of 0.0.0.0 or 2001:db8::.
func (g *generator) zeros() netip.Prefix { return g.masked(0, g.IntN(33)) }

func (g *generator) masked(word uint32, length int) netip.Prefix {
	if g.v4 {
		addr := netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, word)))
		return netip.PrefixFrom(addr, length).Masked()
	}
	a := [16]byte{0: 0x20, 1: 0x01, 2: 0x0d, 3: 0xb8}
	binary.BigEndian.PutUint32(a[4:], word)
	return netip.PrefixFrom(netip.AddrFrom16(a), 32+length).Masked()
}

func (g *generator) protocol(percentAny int) int {
	switch x := g.IntN(100); {
	case x < percentAny:
		return Any
	case x < percentAny+30:
		return UDP
	}
	return TCP
}

// ports returns one port, the low or the high ports, or any range, each in the given percentage of rules; all ports in
// the others.
func (g *generator) ports(percentOne, percentHalf, percentRange int) Ports {
	switch x := g.IntN(100); {
	case x < percentOne:
		port := g.services[g.IntN(len(g.services))]
		return Ports{port, port}
	case x < percentOne+percentHalf:
		return pick(g, Ports{0, 1023}, Ports{1024, 65535}, Ports{1024, 65535}, Ports{49152, 65535})
	case x < percentOne+percentHalf+percentRange:
		low := g.IntN(65000)
		return Ports{uint16(low), uint16(min(65535, low+1+g.IntN(pick(g, 10, 100, 1000, 20000))))}
	}
	return AnyPort
}
