// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"slices"

	"github.com/kerb-edge/kerb/sdk"
)

// grantArrivals lets a control plane deliver frames to interfaces of the node: those that its module is attached to,
// whose packets it may change anyway.
func grantArrivals(o *Options, _ string) any { return arrivalGrant(o.Arrive) }

type arrivalGrant func([]sdk.Arrival) error

// serve permits only interfaces of the control plane's own attachments that belong to no service: a module must not
// make frames arrive anywhere else.
func (g arrivalGrant) serve(_ context.Context, p *Supervisor, _ *run, requests *sdk.Requests) {
	if len(requests.Arrive) == 0 {
		return
	}
	p.mu.Lock()
	want := p.want
	p.mu.Unlock()
	permitted := slices.DeleteFunc(requests.Arrive, func(a sdk.Arrival) bool {
		return want == nil || !slices.ContainsFunc(want.attachments, func(i sdk.Attachment) bool {
			return i.Service == "" && i.Cgroup == "" && i.Ifindex == a.Ifindex
		})
	})
	if err := g(permitted); err != nil {
		p.log.Warn("frames of a control plane do not arrive", "frames", len(permitted), "error", err)
	}
}
