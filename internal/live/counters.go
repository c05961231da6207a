// SPDX-License-Identifier: Apache-2.0

package live

import (
	"log/slog"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/status"
)

// Counters returns what is counted in the maps of a module, nil if no map set of it sees packets.
func (s *Modules) Counters(name string) status.Counters {
	if l := s.all[name]; l != nil {
		return counters{l, s.log}
	}
	return nil
}

// counters are read from the maps of a map set.
type counters struct {
	*module
	log *slog.Logger
}

func (c counters) Memory() int64 { return dataplane.Memory(c.maps) }

func (c counters) Events() *v1.Events {
	sent, lost, ok, err := dataplane.Events(c.maps)
	if err != nil || !ok {
		return nil
	}
	return &v1.Events{Sent: sent, Lost: lost}
}

func (c counters) Drops() ([]uint64, error) { return dataplane.Drops(c.maps) }

func (c counters) DropsByInterface() map[dataplane.DropKey]uint64 {
	counts, err := dataplane.IfindexDrops(c.maps)
	if err != nil {
		c.log.Warn("cannot read the drops by service", "map_set", c.id, "error", err)
	}
	return counts
}

func (c counters) DropsOf(keys []dataplane.DropKey) map[dataplane.DropKey]uint64 {
	counts, err := dataplane.IfindexDropsOf(c.maps, keys)
	if err != nil {
		c.log.Warn("cannot read the drops of a service", "map_set", c.id, "error", err)
	}
	return counts
}
