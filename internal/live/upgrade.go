// SPDX-License-Identifier: Apache-2.0

package live

import (
	"github.com/cilium/ebpf"

	"github.com/kerb-edge/kerb/internal/apply"
	"github.com/kerb-edge/kerb/internal/deploy"
	"github.com/kerb-edge/kerb/sdk"
)

// Upgrades are the modules that get another control plane.
func (s *Modules) Upgrades(before, next map[string]*deploy.Module) (out []apply.Upgrade) {
	for name, d := range next {
		before := before[name]
		if d == before || before == nil || before.Control == nil || d.Control == nil || d.Control == before.Control {
			continue
		}
		out = append(out, apply.Upgrade{Module: name, From: before.Pkg.Version, To: d.Pkg.Version,
			Limit: d.Pkg.Control.HealthTime(),
			Start: func() error { return s.startUpgrade(before, d) }, AwaitHealthy: d.Control.AwaitHealthy})
	}
	return out
}

// startUpgrade starts the control plane of the next map set before chains are swapped. The one before ends first if
// it reads a ring buffer: two readers would share its records.
func (s *Modules) startUpgrade(before, d *deploy.Module) error {
	m, err := s.dp.Maps(d.Dataplane.Name, d.Dataplane.ID)
	if err != nil {
		return err
	}
	defer (&module{maps: m}).close()
	if hasRing(m) {
		before.Control.Suspend()
	}
	return d.Start(m, s.attachments(d.Dataplane.Name))
}

// hasRing reports whether there is a ring buffer among maps. Map sets share it, and it can have one reader only: two
// would both move its consumer position, and lose events or read them twice.
func hasRing(m sdk.Maps) bool {
	for _, one := range m {
		if one.Type() == ebpf.RingBuf {
			return true
		}
	}
	return false
}
