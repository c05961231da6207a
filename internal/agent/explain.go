// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"maps"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/explain"
	"github.com/kerb-edge/kerb/internal/resource"
	"github.com/kerb-edge/kerb/internal/trace"
)

// Explain runs a packet through copies of the chains that it would meet. Copying and linking them takes a while:
// changes wait only while maps are opened.
func (a *Agent) Explain(ctx context.Context, r v1.ExplainRequest) (out v1.ExplainedPacket, err error) {
	if !a.explaining.TryLock() {
		return out, &apierrors.Conflict{Reason: "another packet is being explained; one is at a time: try again"}
	}
	defer a.explaining.Unlock()
	a.changes.Lock()
	_, exists := resource.Service.Get(a.now.Desired, r.Service)
	_, modules := a.now.Running()
	node := explain.Node{Points: maps.Clone(a.now.Points), Reason: a.now.ReasonNames(),
		Note: a.now.NoteNames(), Name: trace.NoteValues(a.live.Planes())}
	a.changes.Unlock()
	if !exists {
		return out, &apierrors.NotFound{Kind: v1.KindService, Name: r.Service}
	}
	node.Open = func(spec chain.Spec) (*dataplane.Trial, error) {
		a.changes.Lock() // the maps stay until they are open
		defer a.changes.Unlock()
		return a.dp.OpenTrial(spec, modules)
	}
	out, err = node.Explain(ctx, r)
	return out, forOperator(err)
}
