// SPDX-License-Identifier: Apache-2.0

package status

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/kerb-edge/kerb/internal/apply"
	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/plan"
)

func TestReordered(t *testing.T) {
	spec := func(names ...string) (out chain.Spec) {
		out.Direction = chain.Ingress
		for _, name := range names {
			out.Members = append(out.Members, chain.Member{Name: name})
		}
		return out
	}
	standIn := func(s chain.Spec) chain.Spec {
		s.Members[0].ID = dataplane.UnavailableID
		return s
	}
	at := chain.Point{Ifindex: 7, Side: chain.OnTCEgress}
	for _, c := range []struct {
		action  plan.Action
		was, is chain.Spec
		want    map[chain.Point]string
	}{
		{plan.Replace, spec("fw", "px"), spec("px", "fw"),
			map[chain.Point]string{at: "web ingress: px, fw (before: fw, px)"}},
		{plan.Replace, spec("fw", "px"), spec("fw", "px"), nil},
		{plan.Replace, spec("fw"), spec("px", "fw"), nil},
		{plan.Replace, spec("fw", "px"), standIn(spec("px", "fw")), nil},
		{plan.Replace, standIn(spec("px", "fw")), spec("fw", "px"), nil},
		{plan.Detach, spec("fw", "px"), spec(), nil},
	} {
		r := apply.Result{Steps: []plan.Step{{Action: c.action, Point: at, Chain: c.is, Old: chain.Pinned{Spec: c.was}}}}
		points := plan.Placements{at: {Service: "web"}}
		got := reordered(r, points)
		if diff := cmp.Diff(c.want, got, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%v to %v: want (-), got (+):\n%s", memberNames(c.was), memberNames(c.is), diff)
		}
		if r.Busy = map[chain.Point]error{at: chain.ErrBusy}; len(reordered(r, points)) > 0 {
			t.Error("a point that another program holds has no other order")
		}
		if r.Busy, r.Gone = nil, []chain.Point{at}; len(reordered(r, points)) > 0 {
			t.Error("a point that has vanished has no other order")
		}
	}
}
