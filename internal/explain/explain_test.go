// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/packet"
	"github.com/kerb-edge/kerb/internal/plan"
	"github.com/kerb-edge/kerb/internal/service"
)

// nodeOf has a service with an address at an interface, with chains in both directions, and one with a chain for
// packets to it.
func nodeOf() *Node {
	link := func(ifindex int, name, address string) service.Link {
		return service.Link{Ifindex: ifindex, Name: name, MAC: net.HardwareAddr{2, 0, 0, 0, 0, 1},
			PeerAddresses: []netip.Prefix{netip.MustParsePrefix(address)}}
	}
	web, db := link(3, "web0", "10.0.0.2/24"), link(4, "db0", "::ffff:10.0.0.3/120")
	at := func(l service.Link, service string, d chain.Direction) plan.Placement {
		return plan.Placement{Service: service, Link: l, Chain: chain.Spec{Direction: d}}
	}
	return &Node{Points: plan.Placements{
		{Ifindex: 3, Side: chain.OnXDP}:       at(web, "web", chain.Egress),
		{Ifindex: 3, Side: chain.OnTCIngress}: at(web, "web", chain.Egress),
		{Ifindex: 3, Side: chain.OnTCEgress}:  at(web, "web", chain.Ingress),
		{Ifindex: 4, Side: chain.OnTCEgress}:  at(db, "db", chain.Ingress),
	}}
}

func fields(src, dst string) packet.Fields {
	return packet.Fields{Src: netip.MustParseAddr(src), Dst: netip.MustParseAddr(dst)}
}

// The direction of a packet follows from its addresses as the service has them, unless the request says it.
func TestFirstPoint(t *testing.T) {
	x := nodeOf()
	const outside = "192.0.2.1"
	for name, c := range map[string]struct {
		r    v1.ExplainRequest
		p    packet.Fields
		want string // points, or a part of the error
	}{
		"from the service": {v1.ExplainRequest{Service: "web"}, fields("10.0.0.2", outside), "[3 xdp, 3 tc-ingress]"},
		"to the service":   {v1.ExplainRequest{Service: "web"}, fields(outside, "10.0.0.2"), "[3 tc-egress]"},
		"mapped address":   {v1.ExplainRequest{Service: "db"}, fields(outside, "10.0.0.3"), "[4 tc-egress]"},
		"by the request": {v1.ExplainRequest{Service: "web", Direction: "ingress"}, fields(outside, outside),
			"[3 tc-egress]"},
		"of others": {v1.ExplainRequest{Service: "web"}, fields(outside, "10.0.0.3"),
			"neither end is an address of service web (10.0.0.2): name one of them, or set direction"},
		"no chain": {v1.ExplainRequest{Service: "db"}, fields("10.0.0.3", outside), "service db has no chain there"},
	} {
		at, err := x.firstPoint(c.r, c.p)
		got := fmt.Sprint(err)
		if err == nil {
			var points []string
			for _, p := range at {
				points = append(points, fmt.Sprintf("%d %s", p.Ifindex, p.Side))
			}
			got = "[" + strings.Join(points, ", ") + "]"
		}
		if !strings.Contains(got, c.want) {
			t.Errorf("%s: got %s, want %s", name, got, c.want)
		}
	}
}

// A packet that leaves a service for another meets that one's chains next: by the address that it has then.
func TestWhereAPacketGoesOn(t *testing.T) {
	x := nodeOf()
	translated := v1.TracedPacket{Destination: "192.0.2.9:80", Steps: []v1.TraceStep{
		{Verdict: "next", Destination: "10.0.0.3:8080"}, {Verdict: "next"}}}
	if at := x.ingressTo(destination(translated)); len(at) != 1 || at[0].Ifindex != 4 {
		t.Errorf("by its address: %v", at)
	}
	if at := x.ingressOf("db0"); len(at) != 1 || at[0].Ifindex != 4 {
		t.Errorf("by its interface: %v", at)
	}
	if at := x.ingressTo(netip.MustParseAddr("192.0.2.9")); at != nil {
		t.Errorf("to no service: %v", at)
	}
}

// The verdict at the end is one that the API has, also where a module returned none: by its failure policy.
func TestDecidingStep(t *testing.T) {
	members := []chain.Member{{Name: "open"}, {Name: "closed", FailClosed: true}}
	step := func(module, verdict string) v1.TraceStep { return v1.TraceStep{Module: module, Verdict: verdict} }
	for name, c := range map[string]struct {
		steps []v1.TraceStep
		want  v1.TraceStep
	}{
		"a redirect is deferred": {[]v1.TraceStep{step("proxy", "redirect"), step("tunnel", "next")},
			step("proxy", "redirect")},
		"no verdict, closed": {[]v1.TraceStep{step("proxy", "redirect"), step("closed", "invalid")},
			v1.TraceStep{Module: "closed", Verdict: "drop", Reason: "bad_verdict"}},
		"no verdict, open": {[]v1.TraceStep{step("proxy", "redirect"), step("open", "invalid")},
			step("proxy", "redirect")},
		"by no module": {[]v1.TraceStep{step("open", "next")}, v1.TraceStep{Verdict: "drop"}},
	} {
		if got := deciding(c.steps, members); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

func TestPacketThatCannotBeRead(t *testing.T) {
	_, err := nodeOf().Explain(t.Context(), v1.ExplainRequest{Service: "web", Packet: "nonsense"})
	var invalid *apierrors.Invalid
	if !errors.As(err, &invalid) || invalid.Field != "packet" {
		t.Errorf("%v", err)
	}
}
