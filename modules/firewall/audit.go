// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"fmt"

	"github.com/kerb-edge/kerb/sdk"
)

// Modes of the module.
const (
	modeEnforce = "enforce"
	modeAudit   = "audit"
)

// dropReasons are the names of what the firewall drops, by number; mirrored in kerb.yaml and <kerb/types.h>.
var dropReasons = map[uint32]string{1: "policy", 2: "malformed", 3: "fragment", 4: "extension", 5: "state",
	6: "table_full", 7: "rate", 10: "no_memory", 32: "spoofed", 33: "bad_offload", 34: "link_control", 35: "invalid_state",
	36: "invalid_flags"}

// wouldDrop returns what audit mode has let pass, by reason.
func wouldDrop(maps sdk.Maps) (map[string]Hits, error) {
	var reasons []uint32
	for reason := range dropReasons {
		reasons = append(reasons, reason)
	}
	hits, err := readHits(maps, mapWouldDrop, reasons)
	if err != nil {
		return nil, err
	}
	out := map[string]Hits{}
	for reason, h := range hits {
		if h.Packets > 0 {
			out[dropReasons[reason]] = h
		}
	}
	return out, nil
}

// Conditions implements sdk.Conditioner: Enforcing is there in audit mode.
func (g *running) Conditions() ([]sdk.Condition, error) {
	if g.config.Mode != modeAudit {
		return nil, nil
	}
	would, err := wouldDrop(g.live.Maps)
	if err != nil {
		return nil, err
	}
	packets := uint64(0)
	for _, h := range would {
		packets += h.Packets
	}
	return []sdk.Condition{{Type: "Enforcing", Status: "False", Reason: "Audit", Message: fmt.Sprintf("mode is audit: "+
		"every packet passes; %d so far would have been dropped (kerb module query %s rules); set mode: enforce to drop them",
		packets, g.live.Module)}}, nil
}
