// SPDX-License-Identifier: Apache-2.0

// Package explain reports what the modules of a service would do to a packet: it runs copies of chains, which the node
// does not notice.
package explain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strings"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/kerbabi"
	"github.com/kerb-edge/kerb/internal/packet"
	"github.com/kerb-edge/kerb/internal/plan"
	"github.com/kerb-edge/kerb/internal/service"
	"github.com/kerb-edge/kerb/internal/trace"
)

// mostChains bounds how many chains a packet is followed through: the instances of a virtual service may be clients of
// another.
const mostChains = 8

// Node is the node at the moment of the question.
type Node struct {
	Points plan.Placements
	Reason func(module string, reason int) string
	Note   func(module string, note int) string
	Name   func(module, note string, value uint64) string
	Open   func(chain.Spec) (*dataplane.Trial, error) // a copy of a chain; fs.ErrNotExist if it has been replaced
}

// Explain runs the packet through copies of the chains that it would meet.
func (x *Node) Explain(ctx context.Context, r v1.ExplainRequest) (out v1.ExplainedPacket, err error) {
	p, err := packet.Parse(r.Packet)
	if err != nil {
		return out, &apierrors.Invalid{Field: "packet", Reason: err.Error()}
	}
	at, err := x.firstPoint(r, p)
	if err != nil {
		return out, err
	}
	link := x.Points[at[0]].Link
	p.SrcMAC, p.DstMAC = link.MAC.String(), link.PeerMAC.String()
	if x.Points[at[0]].Chain.Direction == chain.Egress {
		p.SrcMAC, p.DstMAC = p.DstMAC, p.SrcMAC
	}
	frame, err := p.Frame()
	if err != nil {
		return out, err
	}
	out.Verdict = "pass"
	for len(at) > 0 && len(out.Packets) < mostChains && ctx.Err() == nil {
		point := at[0]
		seen, rest, passed, err := x.tryChain(ctx, point, frame)
		if err != nil {
			return out, err
		}
		out.Packets, frame = append(out.Packets, seen), rest
		if at = at[1:]; passed {
			if len(at) == 0 && seen.Direction == string(chain.Egress) {
				at = x.ingressTo(destination(seen))
			}
			continue
		}
		last := deciding(seen.Steps, x.Points[point].Chain.Members)
		out.Verdict, out.Module, out.Reason = last.Verdict, last.Module, last.Reason
		if at = x.ingressOf(last.Interface); len(at) > 0 {
			out.Verdict, out.Module = "pass", ""
		}
	}
	return out, ctx.Err()
}

// deciding is the step whose verdict is that of a chain that keeps the packet: the last one, or an earlier redirect
// that was deferred. Its verdict is one of the API: a number that is no verdict drops the packet if the module fails
// closed, and otherwise leaves it to the next module. A chain in which no module decided has dropped the packet itself.
func deciding(steps []v1.TraceStep, members []chain.Member) v1.TraceStep {
	last := v1.TraceStep{Verdict: kerbabi.Drop.String()}
	for _, s := range steps {
		if v, ok := kerbabi.VerdictNamed(s.Verdict); !ok && failsClosed(s.Module, members) {
			s.Verdict, s.Reason = kerbabi.Drop.String(), kerbabi.DropReasons[kerbabi.DropBadVerdict]
			last = s
		} else if ok && v != kerbabi.Next {
			last = s
		}
	}
	return last
}

func failsClosed(module string, members []chain.Member) bool {
	return slices.ContainsFunc(members, func(m chain.Member) bool { return m.Name == module && m.FailClosed })
}

// tryChain runs the frame through a copy of one chain.
func (x *Node) tryChain(ctx context.Context, p chain.Point, frame []byte) (seen v1.TracedPacket, rest []byte,
	passed bool, err error) {
	place := x.Points[p]
	trial, err := x.Open(place.Chain)
	if errors.Is(err, fs.ErrNotExist) {
		return seen, nil, false, &apierrors.Conflict{Reason: "the chains have changed in the meantime: try again"}
	}
	if err != nil {
		return seen, nil, false, err
	}
	defer trial.Close()
	run, tried, err := trial.Try(p.Ifindex, frame)
	var busy *dataplane.MigrationError
	if errors.As(err, &busy) {
		return seen, nil, false, &apierrors.Conflict{Reason: "the entries of a table change faster than they can be " +
			"copied: try again"}
	}
	if err != nil {
		return seen, nil, false, err
	}
	defer run.Close()
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	found := false
	reader := trace.Reader{Source: run, Chains: run.Chains, Points: x.Points, Reason: x.Reason, Note: x.Note, Name: x.Name,
		Count:  1,
		Wanted: func(v1.TracedPacket) bool { return true },
		Show: func(line v1.TraceLine) error {
			if line.TracedPacket != nil {
				seen, found = *line.TracedPacket, true
			}
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
func (x *Node) firstPoint(r v1.ExplainRequest, p packet.Fields) ([]chain.Point, error) {
	var addresses []string
	for _, point := range x.Points.Sorted() {
		place := x.Points[point]
		if place.Service != r.Service || !point.Side.SeesPackets() || place.Link.LinkType() != "ethernet" {
			continue
		}
		dir := chain.Direction(cmp.Or(r.Direction, directionOf(place.Link, p)))
		if dir == "" {
			for _, prefix := range place.Link.PeerAddresses {
				addresses = append(addresses, prefix.Addr().String())
			}
			continue
		}
		if all := x.pointsOf(point.Ifindex, dir); len(all) > 0 {
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
func directionOf(l service.Link, p packet.Fields) string {
	switch {
	case hasAddress(l, p.Src):
		return string(chain.Egress)
	case hasAddress(l, p.Dst):
		return string(chain.Ingress)
	}
	return ""
}

// pointsOf are the chains of an interface in one direction: XDP comes first.
func (x *Node) pointsOf(ifindex int, dir chain.Direction) (out []chain.Point) {
	for _, side := range []chain.Side{chain.OnXDP, chain.OnTCIngress, chain.OnTCEgress} {
		p := chain.Point{Ifindex: ifindex, Side: side}
		if place, ok := x.Points[p]; ok && place.Chain.Direction == dir {
			out = append(out, p)
		}
	}
	return out
}

// ingressOf are the chains of the service that has the interface, for packets to it.
func (x *Node) ingressOf(name string) []chain.Point {
	return x.ingressWhere(func(l service.Link) bool { return l.Name == name })
}

// ingressTo are the chains of the service that has the address: the node routes packets to it.
func (x *Node) ingressTo(addr netip.Addr) []chain.Point {
	return x.ingressWhere(func(l service.Link) bool { return hasAddress(l, addr) })
}

func (x *Node) ingressWhere(is func(service.Link) bool) []chain.Point {
	for _, p := range x.Points.Sorted() {
		if place := x.Points[p]; place.Service != "" && is(place.Link) {
			return x.pointsOf(p.Ifindex, chain.Ingress)
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
