// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kerb-edge/kerb/bench"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
)

var client = netip.MustParseAddr("10.99.1.1")

func TestRulesAreReproducibleAndDisjoint(t *testing.T) {
	for _, kind := range []string{"exact", "prefix", "range"} {
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
		if kind == "exact" && !(r.Source.IsSingleIP() && r.PortLow == r.PortHigh) ||
			kind == "prefix" && r.PortLow != r.PortHigh || kind == "range" && r.PortLow >= r.PortHigh {
			t.Fatalf("%s: %+v", kind, r)
		}
	}
	last := rules[len(rules)-1]
	if !last.Source.Contains(client) || last.PortLow > Port || last.PortHigh < Port || last.Protocol != "tcp" {
		t.Errorf("%s: the last rule does not open the port: %+v", kind, last)
	}
	sorted := slices.SortedFunc(slices.Values(rules), func(a, b Rule) int {
		return a.Source.Addr().Compare(b.Source.Addr())
	})
	for i := 1; i < len(sorted); i++ {
		if sorted[i-1].Source.Overlaps(sorted[i].Source) {
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

// Both forms of the reference let the client through and nothing else, and the
// generators reach the service through them.
func TestNFTablesFiltersTheService(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip(err)
	}
	for name, ruleset := range map[string]func(string, []Rule) string{"netdev": netdevRuleset, "bridge": bridgeRuleset} {
		open := func(lab *netlab.Lab, service *netlab.Host, rules []Rule) (Firewall, error) {
			n := &nftables{lab}
			return n, n.load(ruleset(service.Outer(), rules))
		}
		g, err := prepare(config{"test", open}, "range", 100)
		if errors.Is(err, bench.ErrNotBuilt) {
			t.Skip(err)
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		_, errForward := g.forward(1)
		rate, errStream := g.throughput(time.Second)
		trips, errPing := g.pingPong(10 * time.Millisecond)
		if err := errors.Join(errForward, errStream, errPing, g.close()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if rate <= 0 || len(trips) == 0 {
			t.Errorf("%s: %v Gbit/s, %d round trips", name, rate, len(trips))
		}
	}
}

// An open wall is seen to be open.
func TestVerifySeesAMissingFirewall(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	type sham struct{ none }
	_, err := prepare(config{"test", func(*netlab.Lab, *netlab.Host, []Rule) (Firewall, error) { return sham{}, nil }},
		"exact", 1)
	if errors.Is(err, bench.ErrNotBuilt) {
		t.Skip(err)
	}
	if !errors.Is(err, errWall) {
		t.Errorf("verify: %v", err)
	}
}
