// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/pkttest"
	"github.com/kerb-edge/kerb/sdk"
)

// limited returns a config with a rate-limited rule.
func limited(action, limit string) string {
	return fmt.Sprintf(`{"rules": [{"name": "web", "action": %q, "direction": "ingress", "protocol": "tcp", "dstPort": 80,
		"limit": %s}]}`, action, limit)
}

// syn returns the first segment of a connection to the service.
func syn(port uint16, v4 bool) []byte {
	if v4 {
		return newTCPFlow(svc4, 80, far4, port).in(tcpSYN, 0).bytes()
	}
	return newTCPFlow(svc6, 80, far6, port).in(tcpSYN, 0).bytes()
}

// New connections over the limit are dropped, existing ones are not, and the rule counts both.
func TestLimitOfConnections(t *testing.T) {
	k := loadFirewall(t, limited("allow", `{"rate": "1/h", "burst": 3}`))
	first := newTCPFlow(svc4, 80, far4, 1000)
	if !k.establish(first, 1) {
		t.Fatal("no handshake")
	}
	for i, want := range []bool{true, true, false, false} {
		if got := k.pass(syn(uint16(i), i%2 == 0), true); got != want {
			t.Errorf("connection %d passes %t", i, got)
		}
	}
	k.steps(step{"data of the first", first.in(tcpACK, 100), true, true},
		step{"its answer", first.out(tcpACK, 100), false, true})
	if n := k.drops(7); n != 2 {
		t.Errorf("%d drops by rate, want 2", n)
	}
	report, err := k.open(k.live(1)).listRules()
	if err != nil {
		t.Fatal(err)
	}
	if r := report.Rules[0]; r.Packets != 5 || r.Limited == nil || *r.Limited != 2 {
		t.Errorf("%+v", r)
	}
}

// The bucket refills at the rate, up to the burst.
func TestLimitRefills(t *testing.T) {
	notEmulated(t)
	k := loadFirewall(t, `{"state": {"enabled": false}, "rules": [{"action": "allow", "limit": {"rate": "20/s", "burst": 2}}]}`)
	begin, passed := time.Now(), 0
	for passed < 2+5 && time.Since(begin) < 20*time.Second {
		if k.pass(syn(1, true), true) {
			passed++
		}
	}
	if took := time.Since(begin); passed < 2+5 || took < 5*50*time.Millisecond {
		t.Errorf("%d packets passed in %v", passed, took)
	}
}

// A changed rule keeps its bucket, without the debt of its previous limit.
func TestLimitOfChangedRule(t *testing.T) {
	notEmulated(t)
	k := loadFirewall(t, limited("allow", `{"rate": "1/h", "burst": 2}`))
	for i := range 3 {
		k.pass(syn(uint16(i), true), true)
	}
	k.refill(limited("allow", `{"rate": "1/h", "burst": 2}`))
	if k.pass(syn(10, true), true) {
		t.Error("the same limit begins again")
	}
	k.refill(limited("allow", `{"rate": "1000000/s", "burst": 1}`))
	k.pass(syn(11, true), true)
	time.Sleep(time.Millisecond) // a thousand times the limit
	if !k.pass(syn(12, true), true) {
		t.Error("the limit of an hour before is still in force")
	}
	if report, err := k.open(k.live(1)).listRules(); err != nil || report.Rules[0].Packets != 6 {
		t.Errorf("%+v, %v", report, err)
	}
}

// refill writes other rules and activates them, as a change without a new program does.
func (k *kernel) refill(config string) {
	k.t.Helper()
	k.Firewall = compileConfig(k.t, config)
	mod := module(k.t, k.Firewall)
	mod.Values = strings.Repeat("0", 8) + mod.ID
	if err := k.loaded.SetValues(mod); err != nil {
		k.t.Fatal(err)
	}
}

// A rejecting rule answers up to its limit, and drops silently beyond.
func TestLimitOfReject(t *testing.T) {
	notEmulated(t)
	k := loadFirewall(t, limited("reject", `{"rate": "1/h", "burst": 1}`))
	of := packetOf(t, pkttest.Fields{TCP: &pkttest.TCP{Ports: pkttest.Ports{Dst: 80}, Flags: "S"}}, true)
	for _, want := range []int32{tcRedirect, tcShot} {
		if action, _ := k.run(of, true); action != want {
			t.Errorf("action %d, want %d", action, want)
		}
	}
	if n := k.drops(7); n != 1 {
		t.Errorf("%d drops by rate", n)
	}
}

// A change of rules does not count existing connections again.
func TestLimitSparesKnownConnections(t *testing.T) {
	notEmulated(t)
	k := loadFirewall(t, limited("allow", `{"rate": "1/h", "burst": 2}`))
	a, b := newTCPFlow(svc4, 80, far4, 1), newTCPFlow(svc4, 80, far4, 2)
	if !k.establish(a, 1) || !k.establish(b, 1) {
		t.Fatal("no handshake")
	}
	k.outdate(NewModel(k.Firewall))
	k.steps(step{"data after a change", a.in(tcpACK, 10), true, true},
		step{"data of the other one", b.in(tcpACK, 10), true, true},
		step{"a new connection", newTCPFlow(svc4, 80, far4, 3).in(tcpSYN, 0), true, false})
}

// Segments without a connection, which are dropped anyway, take no tokens from new connections.
func TestLimitOmitsStraySegments(t *testing.T) {
	notEmulated(t)
	k := loadFirewall(t, `{"state": {"pickup": "0s"}, "rules": [{"action": "allow", "limit": {"rate": "1/h", "burst": 1}}]}`)
	for _, flags := range []uint8{tcpACK, tcpRST, tcpFIN | tcpACK, tcpSYN | tcpACK} {
		if k.pass(newTCPFlow(svc4, 80, far4, 1).in(flags, 0).bytes(), true) {
			t.Errorf("flags %#x of no connection pass", flags)
		}
	}
	if n := k.other()["invalid_tcp"].Packets; n != 4 {
		t.Errorf("%d of 4 segments are invalid", n)
	}
	if !k.pass(syn(2, true), true) || k.pass(syn(3, true), true) {
		t.Error("want the first connection alone")
	}
}

// An ICMP error that a rule allows takes a token, also if it quotes TCP.
func TestLimitCountsErrors(t *testing.T) {
	notEmulated(t)
	k := loadFirewall(t, `{"rules": [{"action": "allow", "limit": {"rate": "1/h", "burst": 1}}]}`)
	about := tcp(svc4, 80, far4, 1, tcpACK)
	e := icmp(far4, svc4, 3, 0)
	e.Quoted = &about
	for i, want := range []bool{true, false} {
		if got := k.pass(frame{Packet: e}.bytes(), true); got != want {
			t.Errorf("error %d passes %t", i, got)
		}
	}
}

func TestLimitErrors(t *testing.T) {
	for config, want := range map[string]string{
		limited("deny", `{"rate": "1/s"}`):                    "rules[0].limit: rule \"web\": action deny has no limit",
		limited("allow", `{"rate": "10/d"}`):                  "rules[0].limit.rate: rule \"web\": \"10/d\" is not a rate",
		limited("allow", `{"rate": "0/s"}`):                   "is not a rate",
		limited("allow", `{"rate": "20000000/s"}`):            "at most 10000000",
		limited("allow", `{"rate": "1/s", "burst": 0}`):       "rules[0].limit.burst: rule \"web\": 0 is not between 1 and",
		limited("allow", `{"rate": "1/s", "burst": 2000000}`): "1000000 packets",
	} {
		_, err := Control().Compile([]byte(config))
		var field *sdk.ConfigError
		if !errors.As(err, &field) || !strings.Contains(field.Field+": "+field.Reason, want) {
			t.Errorf("%s: %v, want %s", config, err, want)
		}
	}
}

// Rules that refer to the same set have separate limits. Packets that do not match the set take no token, nor do
// connections that are checked again after the set has changed.
func TestLimitsOfRulesWithOneSet(t *testing.T) {
	const rules = maxSetRules
	var config struct {
		Rules []map[string]any `json:"rules"`
	}
	for i := range rules {
		config.Rules = append(config.Rules, map[string]any{"action": "allow", "direction": "ingress", "protocol": "tcp",
			"dstPort": 1000 + i, "src": map[string]any{"set": "addresses"}, "limit": map[string]any{"rate": "1/h", "burst": 2}})
	}
	k := loadFirewall(t, config)
	sets, id := newSets(t, k.maps), setOfAddresses.id()
	only := netip.PrefixFrom(addr(far4), 32)
	if err := sets.Replace(id, 1, dataplane.Elements{List: []netip.Prefix{only}}, nil); err != nil {
		t.Fatal(err)
	}
	flows := make([]*tcpFlow, rules)
	for i := range flows {
		port := uint16(1000 + i)
		if k.pass(newTCPFlow(svc4, port, "192.0.2.99", 1).in(tcpSYN, 0).bytes(), true) {
			t.Fatalf("port %d: an address that is not in the set passes", port)
		}
		flows[i] = newTCPFlow(svc4, port, far4, 1)
		if !k.establish(flows[i], 1) {
			t.Fatalf("port %d: the first connection does not pass", port)
		}
	}
	if err := sets.Change(id, 2, []netip.Prefix{netip.MustParsePrefix("192.0.2.98/32")}, nil); err != nil {
		t.Fatal(err)
	}
	for i, f := range flows {
		port := uint16(1000 + i)
		k.steps(step{"a connection examined again", f.in(tcpACK, 1), true, true},
			step{"the second", newTCPFlow(svc4, port, far4, 2).in(tcpSYN, 0), true, true},
			step{"beyond the limit", newTCPFlow(svc4, port, "192.0.2.98", 1).in(tcpSYN, 0), true, false})
	}
	if n := k.drops(7); n != rules {
		t.Errorf("%d drops by rate, want %d", n, rules)
	}
	if err := sets.Change(id, 3, nil, []netip.Prefix{only}); err != nil {
		t.Fatal(err)
	}
	k.steps(step{"a connection whose address has left the set", flows[0].in(tcpACK, 1), true, false})
}
