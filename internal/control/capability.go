// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/kerb-edge/kerb/internal/pkgs"
	"github.com/kerb-edge/kerb/sdk"
)

// capabilities are services of the agent for control planes whose packages name them in their manifests. Each one is a
// file with a function that returns the grant for one control plane, whose type implements some of the interfaces
// below. The manifest's schema has the same names. Requests are served in this order.
var capabilities = []struct {
	name  string
	grant func(o *Options, module string) any
}{
	{"virtualServices", grantVirtualServices},
	{"models", grantModels},
	{pkgs.CapabilityInject, grantInject},
	{pkgs.CapabilityArrivals, grantArrivals},
	{pkgs.CapabilityClients, grantClients},
	{pkgs.CapabilityKernelFacts, grantKernelFacts},
}

type (
	// follower runs in parallel with a run, until ctx ends with it.
	follower interface {
		follow(ctx context.Context, p *Supervisor, r *run)
	}
	// preparer is called before a run starts with a map set, and whenever the attachments have changed.
	preparer interface {
		prepare(p *Supervisor, r *run, attachments []sdk.Attachment) error
	}
	// describer adds fields to the request that starts a map set.
	describer interface {
		describe(ctx context.Context, start *sdk.MapSetRequest)
	}
	// maintainer is called when a run has started with a map set, and with each health check. It logs problems.
	maintainer interface {
		maintain(p *Supervisor, r *run, attachments []sdk.Attachment)
	}
	// server serves requests of the control plane.
	server interface {
		serve(ctx context.Context, p *Supervisor, r *run, requests *sdk.Requests)
	}
	// reporter reports, as a condition of the module, whether the capability works for the control plane.
	reporter interface{ condition() sdk.Condition }
	// ender is called when a run has ended.
	ender interface{ end() }
	// closer is called when the control plane has ended permanently.
	closer interface{ Close() }
)

// grant returns the grants for the control plane of a package: those that its manifest names, and no others.
func grant(o *Options, module string, p *pkgs.Package) (out []any) {
	for _, c := range capabilities {
		if p.HasCapability(c.name) {
			out = append(out, c.grant(o, module))
			if g, ok := out[len(out)-1].(serviceGrant); ok && p.HasCapability(pkgs.CapabilityArrivals) {
				g.GetFirst() // its resources decide on packets that others send
			}
		}
	}
	return out
}

// grantsOf returns the grants of a control plane that implement an interface.
func grantsOf[G any](p *Supervisor) (out []G) {
	for _, g := range p.grants {
		if got, ok := g.(G); ok {
			out = append(out, got)
		}
	}
	return out
}

// maintain updates the capabilities.
func (p *Supervisor) maintain(r *run) {
	p.mu.Lock()
	want := p.want
	p.mu.Unlock()
	if want == nil {
		return
	}
	for _, g := range grantsOf[maintainer](p) {
		g.maintain(p, r, want.attachments)
	}
}

// Conditions returns the conditions of the capabilities, and those that the control plane has reported itself.
func (p *Supervisor) Conditions() (out []sdk.Condition) {
	for _, g := range grantsOf[reporter](p) {
		out = append(out, g.condition())
	}
	return slices.Concat(out, p.State().Conditions)
}

// conditionOf returns a condition that is True unless there is an error.
func conditionOf(kind, well, ill string, err error) sdk.Condition {
	if err != nil {
		return sdk.Condition{Type: kind, Status: "False", Reason: ill, Message: err.Error()}
	}
	return sdk.Condition{Type: kind, Status: "True", Reason: well}
}

const requestsTime = 45 * time.Second // the control plane answers after 30 s at the latest

// serveRequests fetches the requests of the control plane by long polling.
func (p *Supervisor) serveRequests(ctx context.Context, r *run) {
	servers := grantsOf[server](p)
	for len(servers) > 0 && ctx.Err() == nil {
		var requests sdk.Requests
		asked := time.Now()
		err := p.call(ctx, r, requestsTime, "wanted", nil, &requests)
		if answered(err, http.StatusNotFound) {
			return
		}
		hasty := requests.Empty() && time.Since(asked) < retrySync // it does not hold the request open
		if err != nil || hasty {                                   // do not poll in a loop
			sdk.Pause(ctx, retrySync)
			continue
		}
		for _, s := range servers {
			s.serve(ctx, p, r, &requests)
		}
	}
}
