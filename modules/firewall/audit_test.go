// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"fmt"
	"maps"
	"testing"

	"github.com/kerb-edge/kerb/internal/kerbabi"
	"github.com/kerb-edge/kerb/internal/pkgs/pkgstest"
)

// Audit mode passes what it would drop, the packets of a denied connection in both directions included, and counts it
// by rule and by reason.
func TestAuditPassesAndCounts(t *testing.T) {
	k := loadFirewall(t, `{"mode": "audit", "extensionHeaders": "deny", "rules": [{"name": "ssh", "action": "deny",
		"direction": "ingress", "protocol": "tcp", "dstPort": 22}]}`)
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
	if report.Mode != modeAudit || report.Rules[0].Packets != 6 || report.Other["tracked"].Packets != 2 {
		t.Errorf("mode %s, rule %+v, tracked %+v", report.Mode, report.Rules[0], report.Other["tracked"])
	}
	would := map[string]uint64{}
	for reason, h := range report.WouldDrop {
		would[reason] = h.Packets
	}
	want := map[string]uint64{"policy": 8, "state": 4, "invalid_state": 2, "invalid_flags": 2, "extension": 1,
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
		found = found || s.Name == "would_drop_total" && fmt.Sprint(s.Labels) == "map[reason:policy]" && s.Value == 8
	}
	if !found {
		t.Errorf("no sample of packets that the policy would drop in %+v", samples)
	}
}

// The same rules in mode enforce drop a connection that audit mode let pass, and say nothing of audit.
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

// The names of reasons are those of the manifest and of Kerb.
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
