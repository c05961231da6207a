// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"github.com/kerb-edge/kerb/internal/kerbabi"
	"github.com/kerb-edge/kerb/sdk"
)

// eventsMap counts the events of modules that have any: bpf/include/kerb/event.h.
const eventsMap = "kerb_event_counts"

// Events returns how many events a map set's module sent and lost, summed over the CPUs. ok is false for a module that
// sends none.
func Events(maps sdk.Maps) (sent, lost uint64, ok bool, err error) {
	m := maps[eventsMap]
	if m == nil {
		return 0, 0, false, nil
	}
	counts, err := sumPerCPU(m)
	if err != nil || len(counts) < int(kerbabi.EventCounts) {
		return 0, 0, false, err
	}
	return counts[kerbabi.EventsSent], counts[kerbabi.EventsLost], true, nil
}
