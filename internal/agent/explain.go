// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/packet"
	"github.com/kerb-edge/kerb/internal/resource"
	"github.com/kerb-edge/kerb/internal/service"
	"github.com/kerb-edge/kerb/internal/trace"
)

// mostChains bounds how many chains a packet is followed through: the instances of a virtual service may be clients of
// another.
const mostChains = 8

// Explain runs a packet through copies of the chains that it would meet.
func (a *Agent) Explain(ctx context.Context, r v1.ExplainRequest) (out v1.ExplainedPacket, err error) {
	p, err := packet.Parse(r.Packet)
	if err != nil {
		return out, &apierrors.Invalid{Field: "packet", Reason: err.Error()}
	}
	a.changes.Lock() // what is copied stays
	defer a.changes.Unlock()
	if _, ok := resource.Service.Get(a.now.Desired, r.Service); !ok {
		return out, &apierrors.NotFound{Kind: v1.KindService, Name: r.Service}
	}
	at, err := a.firstPoint(r, p)
	if err != nil {
		return out, err
	}
	link := a.now.Points[at[0]].Link
	p.SourceMAC, p.DestinationMAC = link.MAC, link.PeerMAC
	if a.now.Points[at[0]].Chain.Direction == chain.Egress {
		p.SourceMAC, p.DestinationMAC = link.PeerMAC, link.MAC
	}
	frame := p.Frame()
	out.Verdict = "pass"
	for len(at) > 0 && len(out.Packets) < mostChains {
		seen, rest, passed, err := a.tryChain(ctx, at[0], frame)
		if err != nil {
			return out, err
		}
		out.Packets, frame = append(out.Packets, seen), rest
		if at = at[1:]; passed {
			if len(at) == 0 && seen.Direction == string(chain.Egress) {
				at = a.ingressTo(destination(seen))
			}
			continue
		}
		last := deciding(seen.Steps)
		out.Verdict, out.Module, out.Reason = last.Verdict, last.Module, last.Reason
		if at = a.ingressOf(last.Interface); len(at) > 0 {
			out.Verdict, out.Module = "pass", ""
		}
	}
	return out, nil
}

// deciding is the step whose verdict is that of the chain: the last one, or an earlier redirect that was deferred.
func deciding(steps []v1.TraceStep) (last v1.TraceStep) {
	for _, s := range steps {
		if s.Verdict != "next" {
			last = s
		}
	}
	return last
}

// tryChain runs the frame through a copy of one chain.
func (a *Agent) tryChain(ctx context.Context, p chain.Point, frame []byte) (seen v1.TracedPacket, rest []byte,
	passed bool, err error) {
	place := a.now.Points[p]
	_, modules := a.running()
	run, tried, err := a.dp.Try(place.Chain, modules, p.Ifindex, frame)
	if err != nil {
		return seen, nil, false, explain(err)
	}
	defer run.Close()
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	found := false
	reader := trace.Reader{Source: run, Chains: run.Chains, Points: a.now.Points, Reason: a.reasonNames(), Count: 1,
		Show: func(p v1.TracedPacket) error {
			seen, found = p, true
			return nil
		}}
	if err := reader.Run(ctx); err != nil {
		return seen, nil, false, err
	}
	if !found {
		return seen, nil, false, fmt.Errorf("the chain of %s reported nothing of the packet", place.Link.Name)
	}
	seen.Service, seen.Interface = place.Service, place.Link.Name
	return seen, tried.Frame, tried.Passed(p.Side.Hook()), nil
}

// firstPoint returns the chains of the service in the direction of the packet, in the order in which it meets them.
func (a *Agent) firstPoint(r v1.ExplainRequest, p packet.Packet) ([]chain.Point, error) {
	var addresses []string
	for _, point := range a.now.Points.Sorted() {
		place := a.now.Points[point]
		if place.Service != r.Service || point.Side == chain.OnSockets || place.Link.LinkType() != "ethernet" {
			continue
		}
		dir := chain.Direction(cmp.Or(r.Direction, directionOf(place.Link, p)))
		if dir == "" {
			for _, prefix := range place.Link.PeerAddresses {
				addresses = append(addresses, prefix.Addr().String())
			}
			continue
		}
		if all := a.pointsOf(point.Ifindex, dir); len(all) > 0 {
			return all, nil
		}
	}
	if len(addresses) > 0 {
		return nil, &apierrors.Invalid{Field: "packet", Reason: fmt.Sprintf("neither end is an address of service %s (%s): "+
			"name one of them, or set direction", r.Service, strings.Join(slices.Compact(addresses), ", "))}
	}
	return nil, &apierrors.Conflict{Reason: fmt.Sprintf("service %s has no chain there: no module attaches to it in that "+
		"direction", r.Service)}
}

// directionOf is the direction of a packet as the service at the link sees it; empty if it has neither address.
func directionOf(l service.Link, p packet.Packet) string {
	switch {
	case hasAddress(l, p.Source.Addr()):
		return string(chain.Egress)
	case hasAddress(l, p.Destination.Addr()):
		return string(chain.Ingress)
	}
	return ""
}

// pointsOf are the chains of an interface in one direction: XDP comes first.
func (a *Agent) pointsOf(ifindex int, dir chain.Direction) (out []chain.Point) {
	for _, side := range []chain.Side{chain.OnXDP, chain.OnTCIngress, chain.OnTCEgress} {
		p := chain.Point{Ifindex: ifindex, Side: side}
		if place, ok := a.now.Points[p]; ok && place.Chain.Direction == dir {
			out = append(out, p)
		}
	}
	return out
}

// ingressOf are the chains of the service that has the interface, for packets to it.
func (a *Agent) ingressOf(name string) []chain.Point {
	return a.ingressWhere(func(l service.Link) bool { return l.Name == name })
}

// ingressTo are the chains of the service that has the address: the node routes packets to it.
func (a *Agent) ingressTo(addr netip.Addr) []chain.Point {
	return a.ingressWhere(func(l service.Link) bool { return hasAddress(l, addr) })
}

func (a *Agent) ingressWhere(is func(service.Link) bool) []chain.Point {
	for _, p := range a.now.Points.Sorted() {
		if place := a.now.Points[p]; place.Service != "" && is(place.Link) {
			return a.pointsOf(p.Ifindex, chain.Ingress)
		}
	}
	return nil
}

// destination is the address that a packet has when it leaves its chain.
func destination(p v1.TracedPacket) netip.Addr {
	text := p.Destination
	for _, s := range p.Steps {
		text = cmp.Or(s.Destination, text)
	}
	if end, err := netip.ParseAddrPort(text); err == nil {
		return end.Addr()
	}
	addr, _ := netip.ParseAddr(text) // none without IP
	return addr
}

func hasAddress(l service.Link, addr netip.Addr) bool {
	return slices.ContainsFunc(l.PeerAddresses, func(own netip.Prefix) bool { return own.Addr().Unmap() == addr })
}
