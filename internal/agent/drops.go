// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"maps"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/resource"
	"github.com/kerb-edge/kerb/internal/trace"
)

// Drops returns the last packets that modules dropped, oldest first. Chains keep them: no trace needs to have run.
func (a *Agent) Drops(_ context.Context, r v1.DropsRequest) ([]v1.TracedPacket, error) {
	filter, err := trace.Filter(v1.TraceRequest{Host: r.Host, Protocol: r.Protocol, Port: r.Port, Bytes: r.Bytes})
	if err != nil {
		return nil, err
	}
	a.mu.Lock()
	now := a.now
	drops := trace.Drops{Filter: filter, Points: maps.Clone(now.Points), Reason: now.ReasonNames()}
	_, known := resource.Service.Get(now.Desired, r.Service)
	modules := maps.Clone(now.Modules)
	a.mu.Unlock()
	if r.Service != "" && !known {
		return nil, &apierrors.NotFound{Kind: v1.KindService, Name: r.Service}
	}
	if _, ok := modules[r.Module]; r.Module != "" && !ok {
		return nil, &apierrors.NotFound{Kind: v1.KindModule, Name: r.Module}
	}
	packets, err := a.dp.LastDrops()
	out := []v1.TracedPacket{}
	for _, p := range packets {
		if _, ok := modules[p.Module]; !ok || r.Module != "" && r.Module != p.Module {
			continue
		}
		d, ok := drops.Of(p)
		if ok && (r.Service == "" || r.Service == d.Service) && (r.Reason == "" || r.Reason == d.Steps[0].Reason) {
			out = append(out, d)
		}
	}
	return out[len(out)-min(len(out), r.Count):], err
}
