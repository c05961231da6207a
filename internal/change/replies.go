// SPDX-License-Identifier: Apache-2.0

package change

import (
	"log/slog"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/plan"
	"github.com/kerb-edge/kerb/internal/service"
)

// enableReplies prepares interfaces for what modules send back by native XDP, which the other end of a veth does not
// receive by itself: such packets count as sent, and vanish. It returns the interfaces that it cannot prepare, by
// ifindex, and why. Replies of generic XDP take the path of ordinary packets.
func (t target) enableReplies(dp *dataplane.Dataplane, log *slog.Logger, points plan.Placements) map[int]error {
	failed := map[int]error{}
	for p, place := range points {
		if p.Side != chain.OnXDP || !t.Replies(place.Chain) || dp.Mode(p) != dataplane.ModeXDPNative {
			continue
		}
		if err := service.EnablePeerGRO(place.Link); err != nil {
			log.Warn("replies may not arrive", "interface", place.Link.Name, "error", err)
			failed[p.Ifindex] = err
		}
	}
	return failed
}
