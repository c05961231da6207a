// SPDX-License-Identifier: Apache-2.0

package control

import (
	"testing"

	"github.com/kerb-edge/kerb/sdk"
)

// Frames arrive at interfaces of the node that the module is attached to, and nowhere else.
func TestArrivalsWhereAttached(t *testing.T) {
	var got []sdk.Arrival
	opts := (&provider{}).options(t)
	opts.Arrive = func(all []sdk.Arrival) error { got = all; return nil }
	p := newSupervisor("m", packageNaming("arrivals"), opts, nil)
	requests := &sdk.Requests{Arrive: []sdk.Arrival{{Ifindex: 2}, {Ifindex: 7}, {Ifindex: 9}}}
	g := grantsOf[server](p)[0]
	if g.serve(t.Context(), p, nil, requests); len(got) != 0 {
		t.Errorf("before there is a generation: %v", got)
	}
	requests.Arrive = []sdk.Arrival{{Ifindex: 2}, {Ifindex: 7}, {Ifindex: 9}}
	p.want = &live{instances: []sdk.Instance{{Service: "web", Ifindex: 7}, {Interface: "eth0", Ifindex: 2}}}
	if g.serve(t.Context(), p, nil, requests); len(got) != 1 || got[0].Ifindex != 2 {
		t.Errorf("frames arrive at %v", got)
	}
}
