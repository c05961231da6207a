// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/service"
)

// letRepliesIn makes interfaces ready for what modules send back by native XDP, which the other end of a veth does not take
// by itself: such packets count as sent, and vanish. What it cannot make ready it returns, by ifindex. Generic XDP goes the
// way of ordinary packets.
func (a *Agent) letRepliesIn(w world, points map[chain.Point]placement) map[int]error {
	failed := map[int]error{}
	for p, place := range points {
		if p.Side != chain.OnXDP || !w.replies(place.chain) || a.dp.View(p).Mode != dataplane.ModeXDPNative {
			continue
		}
		if err := service.LetRepliesIn(place.link); err != nil {
			a.log.Warn("replies may not arrive", "interface", place.link.Name, "error", err)
			failed[p.Ifindex] = err
		}
	}
	return failed
}

// replies tells whether a module of the chain answers packets.
func (w world) replies(spec chain.Spec) bool {
	return slices.ContainsFunc(spec.Members, func(m chain.Member) bool {
		d := w.modules[m.Name]
		return d != nil && d.pkg != nil && d.pkg.Replies
	})
}

// repliesCondition reports whether a module's replies arrive.
func (a *Agent) repliesCondition(name string) v1.Condition {
	c := v1.Condition{Type: "Replies", Status: "True", Reason: "RepliesDelivered"}
	var lost, noRoom []error
	for _, p := range slices.SortedFunc(maps.Keys(a.points), func(p, q chain.Point) int { return p.Ifindex - q.Ifindex }) {
		place := a.points[p]
		if p.Side != chain.OnXDP || !slices.ContainsFunc(place.chain.Members, func(m chain.Member) bool { return m.Name == name }) {
			continue
		}
		if err := a.deaf[p.Ifindex]; err != nil {
			lost = append(lost, err)
		}
		if a.modules[name].module.Settings.LongReplies && place.link.Kind == "veth" && a.dp.View(p).Mode == dataplane.ModeXDPNative {
			noRoom = append(noRoom, fmt.Errorf("native XDP on the veth %s has no room for replies that are longer than their requests, "+
				"which are passed to the ordinary server", place.link.Name))
		}
	}
	if err := errors.Join(append(lost, noRoom...)...); err != nil {
		c.Status, c.Reason, c.Message = "False", "NoHeadroom", err.Error()+"; set hook: tc"
		if len(lost) > 0 {
			c.Reason = "RepliesLost"
		}
	}
	return c
}
