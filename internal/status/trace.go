// SPDX-License-Identifier: Apache-2.0

package status

import (
	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/plan"
)

// TracedPoints returns the attach points that a request selects. f gets the network namespace of its service.
func (nd *Node) TracedPoints(r v1.TraceRequest, f *dataplane.TraceFilter) (plan.Placements, error) {
	m := nd.Modules[r.Module]
	alone := m != nil && m.Sockets // the module sees no packets
	messages := alone || r.Messages
	if messages && f.Expression != nil {
		return nil, &apierrors.Invalid{Field: "program", Reason: "expressions select frames, which messages do not " +
			"have: use host, port, service, module or verdict"}
	}
	if nd.Sockets != nil {
		f.Netns = nd.Sockets.Cookies[r.Service]
	}
	out := plan.Placements{}
	for p, place := range nd.Points {
		wanted := messages && (r.Service == "" || f.Netns != 0) && (!alone || p.Module == r.Module)
		if p.Side.SeesPackets() {
			wanted = !alone && (r.Service == "" || place.Service == r.Service)
		}
		if wanted {
			out[p] = place
		}
	}
	return out, nil
}
