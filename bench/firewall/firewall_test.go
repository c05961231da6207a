// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"errors"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kerb-edge/kerb/bench"
	"github.com/kerb-edge/kerb/internal/lab/classbench"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
)

var client = netip.MustParseAddr("10.99.1.1")

func TestRulesAreReproducibleAndDisjoint(t *testing.T) {
	for _, kind := range []string{"exact", "prefix", "range", "mixed"} {
		for _, n := range []int{1, 100, 10_000} {
			rules, err := Rules(kind, n, client)
			if err != nil || len(rules) != n {
				t.Fatalf("%s/%d: %d rules, %v", kind, n, len(rules), err)
			}
			again, _ := Rules(kind, n, client)
			if !slices.Equal(rules, again) {
				t.Errorf("%s/%d: different the second time", kind, n)
			}
			checkRules(t, kind, rules)
		}
	}
}

func checkRules(t *testing.T, kind string, rules []Rule) {
	t.Helper()
	for _, r := range rules {
		one := r.DstPort.Low == r.DstPort.High
		if kind == "exact" && !(r.Src.IsSingleIP() && one) || kind == "prefix" && !one || kind == "range" && one {
			t.Fatalf("%s: %+v", kind, r)
		}
	}
	last := rules[len(rules)-1]
	p := packet{client, netip.MustParseAddr("10.0.0.1"), classbench.TCP, 40000, Port}
	if !p.matches(&last) || !last.Allow {
		t.Errorf("%s: the last rule does not open the port: %+v", kind, last)
	}
	sorted := slices.SortedFunc(slices.Values(rules), func(a, b Rule) int {
		return a.Src.Addr().Compare(b.Src.Addr())
	})
	for i := 1; i < len(sorted); i++ {
		if sorted[i-1].Src.Overlaps(sorted[i].Src) {
			t.Fatalf("%s: %+v overlaps %+v", kind, sorted[i-1], sorted[i])
		}
	}
}

func TestRulesRefuse(t *testing.T) {
	for _, tc := range []struct {
		kind string
		n    int
	}{{"other", 1}, {"exact", 0}, {"exact", blocks + 1}} {
		if _, err := Rules(tc.kind, tc.n, client); err == nil {
			t.Errorf("%d rules of %q", tc.n, tc.kind)
		}
	}
}

func TestSetIsOfIntervalsOnlyWhereNeeded(t *testing.T) {
	for kind, want := range map[string]bool{"exact": false, "prefix": true, "range": true} {
		rules, _ := Rules(kind, 10, client)
		if got := strings.Contains(netdevRuleset("x", rules), "flags interval"); got != want {
			t.Errorf("%s: intervals %v, want %v", kind, got, want)
		}
	}
}

// The first layer with a match contains the deciding rule, and rules of a layer do not overlap.
func TestLayersKeepTheOrder(t *testing.T) {
	for _, kind := range []string{"acl", "ipc", "fw"} {
		rules, err := Rules("classbench-"+kind, 1000, client)
		if err != nil {
			t.Fatal(err)
		}
		all := layers(rules)
		r := rand.New(rand.NewPCG(1, 2))
		for i := range rules {
			p := inside(r, &rules[i])
			want := decider(rules)(&p)
			for _, layer := range all {
				got := decider(layer)(&p)
				if got == nil {
					continue
				}
				if *got != *want {
					t.Fatalf("%s: %+v is decided by %+v, want %+v", kind, p, got, want)
				}
				break
			}
		}
		for _, layer := range all {
			for i := range layer {
				for j := range i {
					if overlap(&layer[i], &layer[j]) {
						t.Fatalf("%s: %+v and %+v overlap", kind, layer[i], layer[j])
					}
				}
			}
		}
	}
}

// Both forms of the reference pass the client's packets only, and the generators reach the service through them.
func TestNFTablesFiltersTheService(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip(err)
	}
	for name, ruleset := range map[string]func(string, []Rule) string{"netdev": netdevRuleset, "bridge": bridgeRuleset} {
		open := func(lab *netlab.Lab, service *netlab.Host, rules []Rule) (Firewall, error) {
			n := &nftables{lab, func(rules []Rule) string { return ruleset(service.Outer(), rules) }, name}
			return n, n.Replace(rules)
		}
		g, err := prepare(config{"test", open}, "range/100")
		if errors.Is(err, bench.ErrNotBuilt) {
			t.Skip(err)
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		_, errForward := g.forward(1)
		rate, errStream := g.throughput(time.Second)
		trips, errPing := g.pingPong(10 * time.Millisecond)
		if err := errors.Join(errForward, errStream, errPing, g.Close()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if rate <= 0 || len(trips) == 0 {
			t.Errorf("%s: %v Gbit/s, %d round trips", name, rate, len(trips))
		}
	}
}

// Maps and chains of nftables give the same result for overlapping rules as the first match.
func TestNFTablesKeepsTheOrder(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip(err)
	}
	for _, load := range []string{"classbench-acl/1000", "classbench-fw/300", "uniform/100", "miss/100", "set/1000"} {
		g, err := prepare(config{"test", openNFTables}, load)
		if errors.Is(err, bench.ErrNotBuilt) {
			t.Skip(err)
		}
		if err != nil {
			t.Fatalf("%s: %v", load, err)
		}
		_, err = g.replace()
		_, errForward := g.forward(1)
		elements, errElements := measureElements(g)
		if err := errors.Join(err, errForward, errElements, g.Close()); err != nil {
			t.Errorf("%s: %v", load, err)
		}
		if (len(elements) == 2) != (load == "set/1000") {
			t.Errorf("%s: %v", load, elements)
		}
	}
}

// A firewall that is not in effect is detected.
func TestVerifySeesAMissingFirewall(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	type sham struct{ none }
	_, err := prepare(config{"test", func(*netlab.Lab, *netlab.Host, []Rule) (Firewall, error) { return sham{}, nil }},
		"exact/1")
	if errors.Is(err, bench.ErrNotBuilt) {
		t.Skip(err)
	}
	if !errors.Is(err, errNotInEffect) {
		t.Errorf("verify: %v", err)
	}
}
