// SPDX-License-Identifier: Apache-2.0

package change

import (
	"log/slog"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/plan"
	"github.com/kerb-edge/kerb/internal/service"
)

// enableReplies prepares interfaces for packets that modules send back from native XDP. Without it the other end of a
// veth does not receive such packets, which count as sent and disappear. It returns, by ifindex, why interfaces cannot
// be prepared. Replies from generic XDP take the path of ordinary packets.
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
