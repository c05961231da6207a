// SPDX-License-Identifier: Apache-2.0

package tunnel

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/kerb-edge/kerb/sdk"
)

func withFragment(p packet, field uint16) packet {
	be.PutUint16(p[6:], field)
	refresh(p)
	return p
}

// The MAC of a fragment is not valid for another fragment, and that of one direction not for the other.
func TestMACIsBound(t *testing.T) {
	k := loadTunnel(t, keyed)
	w := fromTo(wires["keyed"], "192.0.2.2")
	const mac = 14 + 20 + 8 + 4
	stolen := func(to packet, w wire, by packet) []byte {
		f := w.arrival(k, to)
		copy(f[mac:mac+8], w.header(by)[4:])
		return f
	}
	later := withFragment(ip("10.2.0.7", "10.1.0.5", 17, make([]byte, 100)), 20)
	first := withFragment(ip("10.2.0.7", "10.1.0.5", 17, udpBody(92)), 0x2000)
	otherPorts := bytes.Clone(first)
	otherPorts[21]++
	shorter := withFragment(ip("10.2.0.7", "10.1.0.5", 17, udpBody(84)), 0x2000)
	otherID := bytes.Clone(first)
	otherID[5]++
	refresh(otherID)
	for name, f := range map[string][]byte{
		"later fragment's on a first one":  stolen(first, w, later),
		"first fragment's, other ports":    stolen(otherPorts, w, first),
		"first fragment's, other length":   stolen(shorter, w, first),
		"first fragment's, other datagram": stolen(otherID, w, first),
		"first fragment's on a whole one":  stolen(ip("10.2.0.7", "10.1.0.5", 17, udpBody(92)), w, first),
	} {
		if ret, why := k.reason(k.unwrap(), f); ret != tcShot || why != "bad_mac" {
			t.Errorf("%s: action %d %q", name, ret, why)
		}
	}
	reflected := w
	reflected.from, reflected.to = w.to, w.from
	f := w.arrival(k, first)
	copy(f[mac:mac+8], reflected.header(first)[4:])
	if ret, why := k.reason(k.unwrap(), f); ret != tcShot || why != "bad_mac" {
		t.Errorf("of the other direction: action %d %q", ret, why)
	}
	if ret, why := k.reason(k.unwrap(), w.arrival(k, first)); ret != tcRedirect {
		t.Errorf("the fragment itself: action %d %q", ret, why)
	}
}

// For a node with its own key, packets are sent with that key, and the cluster's key is not accepted.
func TestKeysOfOneNode(t *testing.T) {
	own := "00112233445566778899aabbccddeeff"
	k := loadTunnel(t, strings.Replace(keyed, `"subnets": ["10.2.0.0/24"`,
		`"keys": [{"id": 3, "key": "`+own+`"}], "subnets": ["10.2.0.0/24"`, 1))
	w := fromTo(wires["keyed"], "192.0.2.2")
	inner := ip("10.2.0.7", "10.1.0.5", 17, udpBody(9))
	if ret, why := k.reason(k.unwrap(), w.arrival(k, inner)); ret != tcShot || why != "bad_mac" {
		t.Errorf("the cluster's key: action %d %q", ret, why)
	}
	w.key = keyBytes(own)
	if ret, why := k.reason(k.unwrap(), w.arrival(k, inner)); ret != tcRedirect {
		t.Errorf("its own: action %d %q", ret, why)
	}
}

// fragNeeded returns a router's ICMP error about an outer packet.
func fragNeeded(mtu int, outer []byte, quote int) []byte {
	outer = outer[14:]
	body := append([]byte{3, 4, 0, 0, 0, 0, 0, 0}, outer[:min(quote, len(outer))]...)
	be.PutUint16(body[6:], uint16(mtu))
	return frame(ip("198.51.100.1", "192.0.2.1", 1, body))
}

// The path MTU is learned only from ICMP errors that quote one of the tunnel's packets; it expires.
func TestLearnsPathMTU(t *testing.T) {
	for _, config := range []string{keyed, unkeyed} {
		k := loadTunnel(t, config)
		inner := frame(ip("10.1.0.5", "10.2.0.7", 17, udpBody(1400)))
		_, outer := k.run(k.wrap, inner, 0)
		ring, err := k.live.Maps.Get(mapErrors)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		seen := make(chan bool, 16)
		go func() {
			for record, err := range sdk.PromptEvents(ctx, ring) {
				if err != nil {
					return
				}
				seen <- k.learn(record)
			}
		}()
		report := func(f []byte) bool {
			if ret, _ := k.run(k.unwrap(), f, 0); ret != tcNext {
				t.Fatalf("an ICMP error does not pass to the stack: %d", ret)
			}
			select {
			case learned := <-seen:
				return learned
			case <-time.After(time.Minute):
				t.Fatal("no event")
				return false
			}
		}
		forged := func(at int) []byte {
			f := bytes.Clone(outer)
			f[at] ^= 1
			return f
		}
		hostile := map[string][]byte{
			"another source":  fragNeeded(1300, forged(14+15), 548),
			"no node":         fragNeeded(1300, forged(14+19), 548),
			"another port":    fragNeeded(1300, forged(14+20+3), 548),
			"length":          fragNeeded(1300, forged(14+20+5), 548),
			"MTU that fits":   fragNeeded(len(outer), outer, 548),
			"MTU zero":        fragNeeded(0, outer, 548),
			"less than ports": fragNeeded(1300, outer, 24),
		}
		if config == keyed {
			hostile["wrong MAC"] = fragNeeded(1300, forged(14+20+8+4), 548)
			hostile["another flow"] = fragNeeded(1300, forged(14+20+8+12+21), 548)
			hostile["no MAC"] = fragNeeded(1300, outer, 28)
		}
		for name, f := range hostile {
			if report(f) {
				t.Errorf("%s: believed", name)
			}
		}
		for _, c := range []struct{ said, want int }{{1400, 1400}, {1300, 1300}, {68, 1280}} {
			if !report(fragNeeded(c.said, outer, 548)) {
				t.Errorf("%d: not believed", c.said)
			}
			k.refresh()
			r, err := k.report()
			if err != nil || r.Nodes[1].PathMTU != c.want ||
				r.Nodes[1].MTU != c.want-k.config.overhead(netip.MustParseAddr("192.0.2.2")) {
				t.Errorf("%d said: %+v, %v", c.said, r.Nodes[1], err)
			}
			k.mu.Lock()
			k.ways[netip.MustParseAddr("192.0.2.2")] =
				func(n node) node { n.MTU = 1500; return n }(k.ways[netip.MustParseAddr("192.0.2.2")])
			k.mu.Unlock()
		}
		k.mu.Lock()
		for to, p := range k.paths {
			k.paths[to] = pathMTU{p.mtu, time.Now().Add(-time.Second)}
		}
		k.mu.Unlock()
		k.refresh()
		if r, err := k.report(); err != nil || r.Nodes[1].PathMTU != 0 ||
			int(k.ways[netip.MustParseAddr("192.0.2.2")].MTU) != 1500 {
			t.Errorf("does not expire: %+v, %v", r.Nodes[1], err)
		}
	}
}

// The IPsec policies that match the tunnel's packets.
func TestPolicies(t *testing.T) {
	c := compileConfig(t, unkeyed)
	p := netip.MustParsePrefix
	n := node{Addr: netip.MustParseAddr("192.0.2.2").As16(), Local: netip.MustParseAddr("192.0.2.1").As16(), Ifindex: 7}
	protect := sdk.IPsecPolicy{Direction: sdk.IPsecOut, Action: sdk.IPsecProtect, Index: 1, Source: p("192.0.2.1/32"),
		Destination: p("192.0.2.0/24")}
	with := func(change func(*sdk.IPsecPolicy)) sdk.IPsecPolicy {
		out := protect
		change(&out)
		return out
	}
	for i, test := range []struct {
		policies []sdk.IPsecPolicy
		want     uint32
	}{
		{nil, 0},
		{[]sdk.IPsecPolicy{protect}, refuseOut},
		{[]sdk.IPsecPolicy{with(func(p *sdk.IPsecPolicy) { p.Action = sdk.IPsecBlock })}, refuseOut},
		{[]sdk.IPsecPolicy{with(func(p *sdk.IPsecPolicy) { p.Action = sdk.IPsecAllow }), protect}, 0},
		{[]sdk.IPsecPolicy{with(func(p *sdk.IPsecPolicy) {
			p.Action, p.SourcePort = sdk.IPsecAllow, sdk.PortMask{Port: 50000, Mask: 0xffff}
		}), protect}, refuseOut},
		{[]sdk.IPsecPolicy{with(func(p *sdk.IPsecPolicy) {
			p.SourcePort = sdk.PortMask{Port: 50000, Mask: 0xffff}
		})}, refuseOut},
		{[]sdk.IPsecPolicy{with(func(p *sdk.IPsecPolicy) { p.SourcePort = sdk.PortMask{Port: 500, Mask: 0xffff} })}, 0},
		{[]sdk.IPsecPolicy{with(func(p *sdk.IPsecPolicy) {
			p.DestinationPort = sdk.PortMask{Port: 7187, Mask: 0xffff}
		})}, refuseOut},
		{[]sdk.IPsecPolicy{with(func(p *sdk.IPsecPolicy) { p.DestinationPort = sdk.PortMask{Port: 500, Mask: 0xffff} })}, 0},
		{[]sdk.IPsecPolicy{with(func(p *sdk.IPsecPolicy) { p.Protocol = 17 })}, refuseOut},
		{[]sdk.IPsecPolicy{with(func(p *sdk.IPsecPolicy) { p.Protocol = 6 })}, 0},
		{[]sdk.IPsecPolicy{with(func(p *sdk.IPsecPolicy) { p.Ifindex = 8 })}, 0},
		{[]sdk.IPsecPolicy{with(func(q *sdk.IPsecPolicy) { q.Source = p("192.0.2.9/32") })}, 0},
		{[]sdk.IPsecPolicy{with(func(q *sdk.IPsecPolicy) { q.Source, q.Destination = p("::/0"), p("::/0") })}, 0},
		{[]sdk.IPsecPolicy{{Direction: sdk.IPsecOut, Action: sdk.IPsecBlock}}, refuseOut},
		{[]sdk.IPsecPolicy{with(func(q *sdk.IPsecPolicy) {
			q.Source, q.Destination, q.Direction = q.Destination, q.Source, sdk.IPsecIn
		})}, refuseIn},
		{[]sdk.IPsecPolicy{with(func(q *sdk.IPsecPolicy) {
			q.Source, q.Destination = p("10.1.0.0/16"), p("10.2.0.0/16")
		})}, refuseOut},
		{[]sdk.IPsecPolicy{with(func(q *sdk.IPsecPolicy) {
			q.Source, q.Destination, q.Direction = p("10.2.0.0/16"), p("10.1.0.0/16"), sdk.IPsecForward
		})}, refuseIn},
	} {
		got, why := c.refusal(n, &sdk.IPsec{Policies: test.policies}, []netip.Prefix{p("10.2.0.0/24")},
			[]netip.Prefix{p("10.1.0.5/32")})
		if got != test.want || got != 0 && !strings.Contains(why, "policy ") {
			t.Errorf("%d: %v: refuses %d (%s), want %d", i, fmt.Sprint(test.policies), got, why, test.want)
		}
	}
	for _, unknown := range []*sdk.IPsec{nil, {Error: "EPERM"}} {
		if got, why := c.refusal(n, unknown, nil, nil); got != refuseIn|refuseOut || why == "" {
			t.Errorf("policies that are not known: refuses %d, %s", got, why)
		}
	}
	c.Mode = modeDevice
	if got, _ := c.refusal(n, &sdk.IPsec{Policies: []sdk.IPsecPolicy{protect}}, nil, nil); got != 0 {
		t.Error("mode device goes through the stack, and is refused")
	}
}
