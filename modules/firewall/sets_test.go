// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/sdk"
)

// addSets makes some fields of the rule refer to sets.
func (g *generator) addSets(rule map[string]any) {
	if g.IntN(4) > 0 {
		return
	}
	for _, field := range []string{"src", "dst"} {
		if g.IntN(2) == 0 {
			rule[field] = pick(g, map[string]any{"set": "addresses"}, map[string]any{"set": "prefixes"},
				map[string]any{"set": "absent"}, map[string]any{"services": "app=web"})
		}
	}
	if p := rule["protocol"]; (p == "tcp" || p == "udp") && g.IntN(2) == 0 {
		rule[pick(g, "srcPort", "dstPort")] = map[string]any{"set": "ports"}
	}
}

// randomSets has sets in the kernel, and the same in Go.
type randomSets struct {
	g        *generator
	sets     *dataplane.Sets
	used     bool
	contents map[setRef]map[netip.Prefix]bool
}

var (
	setOfAddresses = setRef{Set: "addresses"}
	setOfPrefixes  = setRef{Set: "prefixes"}
	setOfPorts     = setRef{Set: "ports"}
	setOfServices  = setRef{Services: "app=web"}
)

func newSets(t testing.TB, m sdk.Maps) *dataplane.Sets {
	t.Helper()
	s, err := dataplane.NewSets(m)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func newRandomSets(t *testing.T, g *generator, k *kernel, m *Model) *randomSets {
	t.Helper()
	s := &randomSets{g: g, used: len(k.Settings().Sets) > 0, contents: map[setRef]map[netip.Prefix]bool{}}
	m.sets = func(ref setRef, a netip.Addr) bool {
		for p := range s.contents[ref] {
			if p.Contains(a) {
				return true
			}
		}
		return false
	}
	if s.used {
		s.sets = newSets(t, k.maps)
		for _, ref := range []setRef{setOfAddresses, setOfPrefixes, setOfPorts, setOfServices} {
			s.replace(t, ref)
		}
	}
	return s
}

func (s *randomSets) element(ref setRef) netip.Prefix {
	switch ref {
	case setOfPorts:
		return netip.PrefixFrom(sdk.PortAddr(s.g.port()), 32)
	case setOfPrefixes:
		return netip.MustParsePrefix(s.g.prefix(s.g.IntN(2) == 0))
	}
	a := s.g.address(s.g.IntN(2) == 0)
	return netip.PrefixFrom(a, a.BitLen())
}

func (s *randomSets) replace(t *testing.T, ref setRef) {
	t.Helper()
	var old *dataplane.Elements
	if before := s.contents[ref]; before != nil && s.g.IntN(2) == 0 {
		old = &dataplane.Elements{List: slices.Collect(maps.Keys(before))}
	}
	s.contents[ref] = map[netip.Prefix]bool{}
	for range s.g.IntN(12) {
		s.contents[ref][s.element(ref)] = true
	}
	to := dataplane.Elements{Prefixes: ref == setOfPrefixes, List: slices.Collect(maps.Keys(s.contents[ref]))}
	if err := s.sets.Replace(ref.id(), 1, to, old); err != nil {
		t.Fatal(err)
	}
}

// change changes a set, so that all connections are checked again.
func (s *randomSets) change(t *testing.T, m *Model) {
	t.Helper()
	if !s.used {
		return
	}
	m.outdate()
	ref := pick(s.g, setOfAddresses, setOfPrefixes, setOfPorts, setOfServices)
	if s.g.IntN(3) == 0 {
		s.replace(t, ref)
		return
	}
	add, remove := []netip.Prefix{s.element(ref)}, []netip.Prefix(nil)
	for p := range s.contents[ref] {
		if p != add[0] {
			remove = []netip.Prefix{p}
		}
	}
	s.contents[ref][add[0]] = true
	for _, p := range remove {
		delete(s.contents[ref], p)
	}
	if err := s.sets.Change(ref.id(), 2, add, remove); err != nil {
		t.Fatal(err)
	}
}

func TestSetRules(t *testing.T) {
	many := make([]string, maxSetRules+1)
	for i := range many {
		many[i] = `{"action": "deny", "src": {"set": "s"}}`
	}
	for name, c := range map[string]struct{ rules, field, want string }{
		"both":         {`{"action": "deny", "src": {"set": "s", "services": "a=b"}}`, "rules[0].src", "exactly one"},
		"neither":      {`{"action": "deny", "dst": {}}`, "rules[0].dst", "exactly one"},
		"a number":     {`{"action": "deny", "dst": 7}`, "rules[0].dst", "neither an address"},
		"port service": {`{"action": "deny", "protocol": "tcp", "dstPort": {"services": "a"}}`, "rules[0].dstPort", "use src or dst"},
		"no ports":     {`{"action": "deny", "dstPort": {"set": "p"}}`, "rules[0].dstPort", "use tcp or udp"},
		"too many":     {strings.Join(many, ","), "rules[64]", "more than 64 rules with sets"},
	} {
		var wrong *sdk.ConfigError
		_, err := compile([]byte(`{"rules": [` + c.rules + `]}`))
		if !errors.As(err, &wrong) || wrong.Field != c.field || !strings.Contains(wrong.Reason, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	fw := compileConfig(t, `{"rules": [{"action": "deny", "src": {"set": "bad"}}, {"action": "allow", "protocol": "tcp",
		"dst": {"services": "app=web"}, "dstPort": {"set": "web"}}]}`)
	got := fmt.Sprint(fw.Settings().Sets)
	if want := "[{rules[0].src bad  [addresses prefixes]} {rules[1].dst  app=web [addresses prefixes]} " +
		"{rules[1].dstPort web  [ports]}]"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if fw.Settings().Constants["state"] != uint8(2) {
		t.Error("connections are not checked again when a set changes")
	}
}

// Single elements change in a blocklist of 100,000 addresses and in one of prefixes, in both families, which ends
// connections.
func TestLargeSets(t *testing.T) {
	notEmulated(t)
	const n = 100000
	k := loadFirewall(t, `{"defaultPolicy": {"ingress": "allow"}, "rules": [{"action": "deny", "src": {"set": "addresses"}},
		{"action": "deny", "src": {"set": "prefixes"}}]}`)
	sets := newSets(t, k.maps)
	var addresses, prefixes []netip.Prefix
	for i := range n {
		a4 := netip.AddrFrom4([4]byte{198, byte(i >> 16), byte(i >> 8), byte(i)})
		a6 := netip.AddrFrom16([16]byte{0: 0x20, 1: 1, 4: byte(i >> 16), 5: byte(i >> 8), 6: byte(i)})
		addresses = append(addresses, netip.PrefixFrom(a4, 32))
		if i%2 == 0 {
			a := netip.AddrFrom4([4]byte{100, byte(i >> 15), byte(i >> 7), byte(i << 1)})
			prefixes = append(prefixes, netip.PrefixFrom(a, 28+i/2%5).Masked())
		} else {
			prefixes = append(prefixes, netip.PrefixFrom(a6, 56))
		}
	}
	if err := sets.Replace(setOfAddresses.id(), 1, dataplane.Elements{List: addresses}, nil); err != nil {
		t.Fatal(err)
	}
	if err := sets.Replace(setOfPrefixes.id(), 1, dataplane.Elements{Prefixes: true, List: prefixes}, nil); err != nil {
		t.Fatal(err)
	}
	passes := func(src string, want bool) {
		t.Helper()
		dst := svc4
		if strings.Contains(src, ":") {
			dst = svc6
		}
		if got := k.pass(frame{Packet: udp(src, 5353, dst, 7)}.bytes(), true); got != want {
			t.Errorf("from %s: passes %t", src, got)
		}
	}
	passes("198.0.0.0", false)
	passes("198.1.134.159", false)
	passes("198.1.134.160", true) // a tracked connection from here on
	passes("100.0.1.7", false)
	passes("2001:0:186:9f01::9", false)
	passes("2001:0:186:9e01::9", true)
	add := []netip.Prefix{netip.MustParsePrefix("198.1.134.160/32")}
	if err := sets.Change(setOfAddresses.id(), 2, add, addresses[:1]); err != nil {
		t.Fatal(err)
	}
	passes("198.1.134.160", false)
	passes("198.0.0.0", true)
	if !sets.Has(setOfAddresses.id(), 2) || sets.Has(setOfAddresses.id(), 1) {
		t.Error("the revision was not noted")
	}
	if err := sets.Retain(map[uint64]bool{setOfPrefixes.id(): true}); err != nil {
		t.Fatal(err)
	}
	passes("198.1.134.160", true)
	passes("100.0.1.7", false)
}

// Each map set explains packets with the sets in its own maps, also if a later one of the same config is open.
func TestExplainSetsOfMapSet(t *testing.T) {
	fw := compileConfig(t, map[string]any{"rules": []any{map[string]any{"name": "bad", "action": "deny",
		"src": map[string]any{"set": "addresses"}}}})
	src := netip.MustParseAddr("198.51.100.7")
	first, second := loadCompiled(t, fw, nil), loadCompiled(t, fw, nil)
	to := dataplane.Elements{List: []netip.Prefix{netip.PrefixFrom(src, 32)}}
	if err := newSets(t, first.maps).Replace(setOfAddresses.id(), 1, to, nil); err != nil {
		t.Fatal(err)
	}
	g := first.open(sdk.Live{Maps: first.maps})
	second.open(sdk.Live{Maps: second.maps})
	got, err := g.Explain(&ExplainRequest{Direction: "ingress", Src: src, Dst: netip.MustParseAddr("10.0.0.1"),
		Protocol: json.RawMessage(`"udp"`)})
	if err != nil || got.Name != "bad" {
		t.Errorf("%+v, %v", got, err)
	}
}

// The kernel may reuse the memory of a set for another one while a packet reads it.
func TestSetInMemoryOfAnother(t *testing.T) {
	k := loadFirewall(t, `{"defaultPolicy": {"ingress": "allow"}, "state": {"enabled": false},
		"rules": [{"action": "deny", "src": {"set": "addresses"}}]}`)
	src := netip.MustParseAddr("198.51.100.7")
	to := dataplane.Elements{List: []netip.Prefix{netip.PrefixFrom(src, 32)}}
	if err := newSets(t, k.maps).Replace(setOfAddresses.id(), 1, to, nil); err != nil {
		t.Fatal(err)
	}
	var set sdk.Set
	if err := k.maps[sdk.SetsMap].Lookup(setOfAddresses.id(), &set); err != nil {
		t.Fatal(err)
	}
	for _, id := range []uint64{setOfAddresses.id(), setOfPrefixes.id()} {
		set.ID = id
		if err := k.maps[sdk.SetsMap].Put(setOfAddresses.id(), set); err != nil {
			t.Fatal(err)
		}
		want := id != setOfAddresses.id()
		if got := k.pass(frame{Packet: udp(src.String(), 5353, svc4, 7)}.bytes(), true); got != want {
			t.Errorf("set with id %x: passes %t", id, got)
		}
	}
}

// Addresses that map to one cache line of the table, most of which overflow, and the state after their removal.
func TestFullBucketOfSet(t *testing.T) {
	k := loadFirewall(t, `{"defaultPolicy": {"ingress": "allow"}, "state": {"enabled": false},
		"rules": [{"action": "deny", "src": {"set": "addresses"}}]}`)
	sets := newSets(t, k.maps)
	change := func(add, remove []netip.Prefix) {
		t.Helper()
		if err := sets.Change(setOfAddresses.id(), 1, add, remove); err != nil {
			t.Fatal(err)
		}
	}
	if err := sets.Replace(setOfAddresses.id(), 1, dataplane.Elements{}, nil); err != nil {
		t.Fatal(err)
	}
	all := inOneBucket(t, k.maps, setOfAddresses, 3*sdk.SetBucketSize)
	in := map[netip.Prefix]bool{}
	check := func(when string) {
		t.Helper()
		for _, p := range all {
			pass := k.pass(frame{Packet: udp(p.Addr().String(), 5353, svc4, 7)}.bytes(), true)
			contains, err := k.maps.SetContains(setOfAddresses.id(), p.Addr())
			if pass == in[p] || contains != in[p] || err != nil {
				t.Errorf("%s: %s is in the set: %t; passes %t, found %t, %v", when, p, in[p], pass, contains, err)
			}
		}
	}
	g := rand.New(rand.NewPCG(1, 2))
	for range 12 {
		var add, remove []netip.Prefix
		for _, p := range all {
			switch g.IntN(6) {
			case 0, 1:
				add, in[p] = append(add, p), true
			case 2, 3:
				remove, in[p] = append(remove, p), false
			}
		}
		change(add, remove)
		check("after a change")
		if g.IntN(4) == 0 {
			sets = newSets(t, k.maps) // as at the start of an agent
			check("after a start")
		}
	}
	change(nil, all)
	clear(in)
	check("at the end")
	newSets(t, k.maps)
	bucket, _, _ := setNow(t, k.maps, setOfAddresses).Bucket(all[0].Addr())
	var b sdk.SetBucket
	if err := k.maps[sdk.SetTableMap].Lookup(bucket, &b); err != nil || b != (sdk.SetBucket{}) {
		t.Errorf("an empty bucket is %x, %v", b, err)
	}
}

func setNow(t *testing.T, maps sdk.Maps, ref setRef) (s sdk.Set) {
	t.Helper()
	if err := maps[sdk.SetsMap].Lookup(ref.id(), &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// inOneBucket returns n addresses of one bucket.
func inOneBucket(t *testing.T, maps sdk.Maps, ref setRef, n int) (all []netip.Prefix) {
	t.Helper()
	set, first := setNow(t, maps, ref), netip.MustParseAddr("100.64.0.0")
	wanted, _, _ := set.Bucket(first)
	for a := first; len(all) < n; a = a.Next() {
		if bucket, _, _ := set.Bucket(a); bucket == wanted {
			all = append(all, netip.PrefixFrom(a, 32))
		}
	}
	return all
}
