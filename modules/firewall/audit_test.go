// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/kerb-edge/kerb/internal/kerbabi"
	"github.com/kerb-edge/kerb/internal/pkgs/pkgstest"
)

// Audit mode passes packets that enforce mode would drop, and counts them by rule and reason: the first packet of a
// denied connection, since the others would not have been sent.
func TestAuditPassesAndCounts(t *testing.T) {
	k := loadFirewall(t, `{"mode": "audit", "extensionHeaders": "deny", "rules": [{"name": "ssh", "action": "deny",
		"direction": "ingress", "protocol": "tcp", "dstPort": 22, "log": true}]}`)
	g := k.open(k.live(1))
	for _, a := range [][2]string{{svc4, far4}, {svc6, far6}} {
		f := newTCPFlow(a[0], 22, a[1], 999)
		stray := f.blind(tcpACK)
		k.steps(
			step{"denied SYN", f.in(tcpSYN, 0), true, true},
			step{"its answer", f.out(tcpSYN|tcpACK, 0), false, true},
			step{"ACK", f.in(tcpACK, 0), true, true},
			step{"data", f.in(tcpACK, 10), true, true},
			step{"answer", f.out(tcpACK, 10), false, true},
			step{"outside the window", stray, true, true},
			step{"no flags", frame{Packet: tcp(a[1], 1, a[0], 22, 0)}, true, true},
			step{"a packet of no rule", frame{Packet: udp(a[1], 1, a[0], 53)}, true, true},
			step{"an allowed one", frame{Packet: udp(a[0], 1, a[1], 53)}, false, true},
			step{"its answer", frame{Packet: udp(a[1], 53, a[0], 1)}, true, true},
		)
	}
	k.steps(step{"an extension header", frame{Packet: tcp(svc6, 1, far6, 80, tcpSYN), ext: []int{60}}, false, true})
	if !k.pass(frame{Packet: udp(svc4, 1, far4, 2)}.bytes()[:36], true) {
		t.Error("a malformed packet is dropped")
	}
	report, err := g.listRules()
	if err != nil {
		t.Fatal(err)
	}
	if report.Mode != modeAudit || report.Rules[0].Packets != 2 || report.Other["tracked"].Packets != 10 {
		t.Errorf("mode %s, rule %+v, tracked %+v", report.Mode, report.Rules[0], report.Other["tracked"])
	}
	would := map[string]uint64{}
	for reason, h := range report.WouldDrop {
		would[reason] = h.Packets
	}
	want := map[string]uint64{"policy": 4, "invalid_state": 2, "invalid_flags": 2, "extension": 1,
		"malformed": 1}
	if !maps.Equal(would, want) {
		t.Errorf("would drop %v, want %v", would, want)
	}
	for reason := range dropReasons {
		if n := k.drops(int(reason)); n != 0 {
			t.Errorf("%d packets dropped for reason %d", n, reason)
		}
	}
	c, err := g.Conditions()
	if err != nil || len(c) != 1 || c[0].Type != "Enforcing" || c[0].Status != "False" {
		t.Errorf("conditions %+v, %v", c, err)
	}
	samples, err := g.Collect()
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, s := range samples {
		found = found || s.Name == "would_drop_total" && fmt.Sprint(s.Labels) == "map[reason:policy]" && s.Value == 4
	}
	if !found {
		t.Errorf("no sample of packets that the policy would drop in %+v", samples)
	}
	k.wantReports("ssh: would drop policy web ingress tcp "+far4+":999 > "+svc4+":22 S len 54 suppressed 0",
		"ssh: would drop policy web ingress tcp ["+far6+"]:999 > ["+svc6+"]:22 S len 74 suppressed 0")
}

// A connection is counted again when the rules change: once for denying rules, whichever side sends first. A packet of
// the service in the middle of an unknown connection counts as the start of a denied one.
func TestAuditCountsConnectionsOnce(t *testing.T) {
	notEmulated(t)
	allow := `{"mode": "audit", "defaultPolicy": {"egress": "deny"}, "antiSpoof": false, "rules": [{"name": "web",
		"action": "allow", "direction": "ingress", "protocol": "tcp", "dstPort": 80}]}`
	deny := strings.Replace(allow, `"allow"`, `"deny"`, 1)
	k := loadFirewall(t, allow)
	f, g, old := newTCPFlow(svc4, 80, far4, 1), newTCPFlow(svc4, 80, far4, 2), newTCPFlow(svc4, 5, far4, 3)
	if !k.establish(f, 1) || !k.establish(g, 1) {
		t.Fatal("no handshake")
	}
	want := func(when string, policy, state uint64) {
		t.Helper()
		h, err := readHits(k.maps, mapWouldDrop, []uint32{uint32(kerbabi.DropPolicy), uint32(kerbabi.DropState)})
		if got := h[uint32(kerbabi.DropPolicy)].Packets; err != nil || got != policy {
			t.Errorf("%s: %d packets of policy, want %d, %v", when, got, policy, err)
		}
		if got := h[uint32(kerbabi.DropState)].Packets; got != state {
			t.Errorf("%s: %d packets of state, want %d", when, got, state)
		}
	}
	talk := func() {
		for range 3 {
			k.steps(step{"data", f.in(tcpACK, 1), true, true}, step{"answer", f.out(tcpACK, 1), false, true},
				step{"answer first", g.out(tcpACK, 1), false, true}, step{"data", g.in(tcpACK, 1), true, true})
		}
	}
	talk()
	want("allowed", 0, 0)
	k.refill(deny)
	talk()
	want("denied", 1, 1)
	k.refill(allow)
	talk()
	want("allowed again", 1, 1)
	for range 3 {
		k.steps(step{"began unseen", old.out(tcpACK, 1), false, true}, step{"answer", old.in(tcpACK, 1), true, true})
	}
	want("began unseen", 2, 1)
	for range 3 {
		k.steps(step{"datagram", frame{Packet: udp(far4, 1, svc4, 53)}, true, true},
			step{"answer", frame{Packet: udp(svc4, 53, far4, 1)}, false, true})
	}
	want("datagrams", 3, 1)
}

// The same rules in mode enforce drop a connection that audit mode passed, without audit counts.
func TestEnforceAfterAudit(t *testing.T) {
	audit := loadFirewall(t, `{"mode": "audit"}`)
	f := newTCPFlow(svc4, 22, far4, 999)
	if !audit.establish(f, 1) {
		t.Fatal("no handshake")
	}
	k := loadFirewall(t, `{}`)
	var key key4
	var c conn
	if err := audit.maps[mapEstablished4].NextKey(nil, &key); err != nil {
		t.Fatal(err)
	}
	if err := audit.maps[mapEstablished4].Lookup(key, &c); err != nil {
		t.Fatal(err)
	}
	if err := k.maps[mapEstablished4].Put(key, c); err != nil {
		t.Fatal(err)
	}
	k.steps(step{"answer", f.out(tcpACK, 10), false, false}, step{"data", f.in(tcpACK, 10), true, false})
	g := k.open(k.live(1))
	report, err := g.listRules()
	if err != nil || report.Mode != modeEnforce || len(report.WouldDrop) != 0 {
		t.Errorf("mode %s, would drop %v, %v", report.Mode, report.WouldDrop, err)
	}
	if c, err := g.Conditions(); err != nil || len(c) != 0 {
		t.Errorf("conditions %+v, %v", c, err)
	}
}

// The names of reasons match those of the manifest and of Kerb.
func TestDropReasons(t *testing.T) {
	own := pkgstest.Package(t).DropReasons
	for number, name := range dropReasons {
		if number < uint32(kerbabi.DropModuleFirst) && kerbabi.DropReasonName(number) != name {
			t.Errorf("%d is %s, not %s", number, kerbabi.DropReasonName(number), name)
		}
		if number >= uint32(kerbabi.DropModuleFirst) && own[name] != int(number) {
			t.Errorf("%s is %d in the manifest, not %d", name, own[name], number)
		}
	}
	for name, number := range own {
		if dropReasons[uint32(number)] != name {
			t.Errorf("%s is missing", name)
		}
	}
}
