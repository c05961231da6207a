// SPDX-License-Identifier: Apache-2.0

package live

import (
	"github.com/cilium/ebpf"

	"github.com/kerb-edge/kerb/internal/deploy"
	"github.com/kerb-edge/kerb/sdk"
)

// StartUpgrade starts the control plane of the next generation before chains are swapped. The one before ends first if
// it reads a ring buffer: two readers would share its records.
func (s *Modules) StartUpgrade(before, d *deploy.Module) error {
	m, err := s.dp.Maps(d.Dataplane.Name, d.Dataplane.ID)
	if err != nil {
		return err
	}
	defer (&module{maps: m}).close()
	if hasRing(m) {
		before.Control.Rest()
	}
	return d.Start(m, s.instances(d.Dataplane.Name))
}

// hasRing reports whether there is a ring buffer among maps. Generations share it, and it can have one reader only: two
// would both move its consumer position, and lose events or read them twice.
func hasRing(m sdk.Maps) bool {
	for _, one := range m {
		if one.Type() == ebpf.RingBuf {
			return true
		}
	}
	return false
}
