// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kerb-edge/kerb/internal/chain"
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
	at := chain.Point{Ifindex: 7, Side: chain.OnTCEgress}
	for _, c := range []struct {
		action  plan.Action
		was, is chain.Spec
		want    []string
	}{
		{plan.Replace, spec("fw", "px"), spec("px", "fw"), []string{"web ingress: px, fw (before: fw, px)"}},
		{plan.Replace, spec("fw", "px"), spec("fw", "px"), nil},
		{plan.Replace, spec("fw"), spec("px", "fw"), nil},
		{plan.Detach, spec("fw", "px"), spec(), nil},
	} {
		step := plan.Step{Action: c.action, Point: at, Chain: c.is, Old: chain.Pinned{Spec: c.was}}
		got := reordered([]plan.Step{step}, plan.Placements{at: {Service: "web"}})
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%v to %v: want (-), got (+):\n%s", memberNames(c.was), memberNames(c.is), diff)
		}
	}
}
