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
	"github.com/kerb-edge/kerb/internal/plan"
	"github.com/kerb-edge/kerb/internal/service"
)

// enableReplies prepares interfaces for what modules send back by native XDP, which the other end of a veth does not receive
// by itself: such packets count as sent, and vanish. It returns the interfaces that it cannot prepare, by ifindex, and why.
// Replies of generic XDP take the path of ordinary packets.
func (a *Agent) enableReplies(t target, points plan.Placements) map[int]error {
	failed := map[int]error{}
	for p, place := range points {
		if p.Side != chain.OnXDP || !t.Replies(place.Chain) || a.dp.View(p).Mode != dataplane.ModeXDPNative {
			continue
		}
		if err := service.EnablePeerGRO(place.Link); err != nil {
			a.log.Warn("replies may not arrive", "interface", place.Link.Name, "error", err)
			failed[p.Ifindex] = err
		}
	}
	return failed
}

// repliesCondition reports whether a module's replies arrive.
func (a *Agent) repliesCondition(name string) v1.Condition {
	c := v1.Condition{Type: "Replies", Status: "True", Reason: "RepliesDelivered"}
	var lost, noRoom []error
	for _, p := range slices.SortedFunc(maps.Keys(a.points), func(p, q chain.Point) int { return p.Ifindex - q.Ifindex }) {
		place := a.points[p]
		if p.Side != chain.OnXDP || !slices.ContainsFunc(place.Chain.Members, func(m chain.Member) bool { return m.Name == name }) {
			continue
		}
		if err := a.noReplies[p.Ifindex]; err != nil {
			lost = append(lost, err)
		}
		if a.modules[name].Dataplane.Settings.LongReplies && place.Link.Kind == "veth" && a.dp.View(p).Mode == dataplane.ModeXDPNative {
			noRoom = append(noRoom, fmt.Errorf("native XDP on the veth %s has no room for replies that are longer than their requests, "+
				"which are passed to the ordinary server", place.Link.Name))
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
