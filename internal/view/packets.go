// SPDX-License-Identifier: Apache-2.0

package view

import (
	"context"
	"maps"
	"slices"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/deploy"
	"github.com/kerb-edge/kerb/internal/kerbabi"
	"github.com/kerb-edge/kerb/internal/resource"
	"github.com/kerb-edge/kerb/internal/trace"
)

// Drops returns the last packets that modules dropped, oldest first. Chains record them, also without a trace.
func (v *Views) Drops(_ context.Context, r v1.DropsRequest) ([]v1.TracedPacket, error) {
	filter, err := trace.Filter(v1.TraceRequest{Host: r.Host, Protocol: r.Protocol, Port: r.Port, Bytes: r.Bytes})
	if err != nil {
		return nil, err
	}
	k, err := v.kept(v1.TraceRequest{Service: r.Service, Module: r.Module, Reason: r.Reason,
		Verdict: kerbabi.Drop.String()}, filter)
	if err != nil {
		return nil, err
	}
	out, err := k.dropped()
	return out[len(out)-min(len(out), r.Count):], err
}

// LastPackets shows the last packets that chains recorded because they were slow, were dropped, or got no verdict.
func (v *Views) LastPackets(r v1.TraceRequest, f dataplane.TraceFilter, show func(v1.TraceLine) error) error {
	if r.Program != "" {
		return &apierrors.Invalid{Field: "program", Reason: "expressions select packets that come, not packets that were " +
			"kept: use host, protocol, port, service, module, verdict or reason"}
	}
	if r.After {
		return &apierrors.Invalid{Field: "after", Reason: "chains do not keep packets that the kernel drops: remove last"}
	}
	k, err := v.kept(r, f)
	if err != nil {
		return err
	}
	out, err := k.slow()
	if err == nil && r.Slower == "" {
		var dropped []v1.TracedPacket
		dropped, err = k.dropped()
		out = append(out, dropped...)
	}
	if err != nil {
		return err
	}
	slices.SortStableFunc(out, func(a, b v1.TracedPacket) int { return a.Time.Compare(b.Time) })
	if r.Count > 0 {
		out = out[len(out)-min(len(out), r.Count):]
	}
	for _, p := range out {
		if err := show(v1.TraceLine{TracedPacket: &p}); err != nil {
			return err
		}
	}
	return nil
}

// kept converts packets that chains have recorded to API objects.
type kept struct {
	*Views
	request v1.TraceRequest
	filter  dataplane.TraceFilter
	modules map[string]*deploy.Module
	reader  trace.Reader
}

func (v *Views) kept(r v1.TraceRequest, f dataplane.TraceFilter) (kept, error) {
	v.Lock.Lock()
	defer v.Lock.Unlock()
	now := v.Now
	if _, known := resource.Service.Get(now.Desired, r.Service); r.Service != "" && !known {
		return kept{}, &apierrors.NotFound{Kind: v1.KindService, Name: r.Service}
	}
	if _, known := now.Modules[r.Module]; r.Module != "" && !known {
		return kept{}, &apierrors.NotFound{Kind: v1.KindModule, Name: r.Module}
	}
	return kept{v, r, f, maps.Clone(now.Modules), trace.Reader{Points: maps.Clone(now.Points), Reason: now.ReasonNames(),
		Note: now.NoteNames(), Name: trace.NoteValues(v.Live.Planes())}}, nil
}

// wanted reports whether a packet matches the request.
func (k kept) wanted(p v1.TracedPacket) bool {
	return (k.request.Service == "" || k.request.Service == p.Service) && trace.Matches(k.request, p)
}

// dropped returns packets that modules dropped, or for which they returned no verdict. It omits those of deleted
// modules.
func (k kept) dropped() ([]v1.TracedPacket, error) {
	packets, err := k.Dataplane.LastDrops()
	drops := trace.Drops{Filter: k.filter, Reader: k.reader}
	out := []v1.TracedPacket{}
	for _, p := range packets {
		if k.modules[p.Module] == nil {
			continue
		}
		if d, ok := drops.Of(p); ok && k.wanted(d) {
			out = append(out, d)
		}
	}
	return out, err
}

// slow returns packets with a high latency.
func (k kept) slow() (out []v1.TracedPacket, err error) {
	packets, err := k.Dataplane.LastSlow()
	words := trace.Slow{Filter: k.filter, Reader: k.reader}
	for _, p := range packets {
		if slices.ContainsFunc(p.Chain.Members, func(m chain.Member) bool { return k.modules[m.Name] == nil }) {
			continue
		}
		if s, ok := words.Of(p); ok && k.wanted(s) {
			out = append(out, s)
		}
	}
	return out, err
}
