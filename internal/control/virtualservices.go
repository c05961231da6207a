// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"

	"github.com/kerb-edge/kerb/internal/resolve"
	"github.com/kerb-edge/kerb/sdk"
)

// grantVirtualServices sends all virtual services, and their changes, to a control plane, and resolves the addresses
// that it requests.
func grantVirtualServices(o *Options, module string) any {
	return serviceGrant{o.Services.Subscribe(module)}
}

type serviceGrant struct{ *resolve.Subscription }

func (g serviceGrant) follow(ctx context.Context, p *Supervisor, r *run) {
	feed(ctx, p, r, "virtualservices", g.Subscription)
}

func (g serviceGrant) serve(_ context.Context, _ *Supervisor, _ *run, requests *sdk.Requests) {
	g.Handle(*requests)
}

func (g serviceGrant) condition() sdk.Condition {
	return conditionOf("VirtualServices", "Synced", "SyncFailed", g.Err())
}
