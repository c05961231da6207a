// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"github.com/cilium/ebpf"

	"github.com/kerb-edge/kerb/internal/apply"
	"github.com/kerb-edge/kerb/internal/deploy"
	"github.com/kerb-edge/kerb/sdk"
)

// releaseAll stops the control planes that a failed change has started. Those before them continue.
func (a *Agent) releaseAll(prepared map[string]*deploy.Module) {
	for name, d := range prepared {
		if a.now.Modules[name] != d {
			d.Release(a.now.Modules[name])
		}
	}
}

// upgrades are the modules that get another control plane.
func (a *Agent) upgrades(t target) (out []apply.Upgrade) {
	for name, d := range t.modules {
		before := a.now.Modules[name]
		if d == before || before == nil || before.Control == nil || d.Control == nil || d.Control == before.Control {
			continue
		}
		out = append(out, apply.Upgrade{Module: name, From: before.Pkg.Version, To: d.Pkg.Version,
			Limit: d.Pkg.Control.HealthTime(),
			Start: func() error { return a.startUpgrade(before, d) }, AwaitHealthy: d.Control.AwaitHealthy})
	}
	return out
}

// startUpgrade starts the control plane of the next generation before chains are swapped. The one before ends first if
// it reads a ring buffer: two readers would share its records.
func (a *Agent) startUpgrade(before, d *deploy.Module) error {
	m, err := a.dp.Maps(d.Dataplane.Name, d.Dataplane.ID)
	if err != nil {
		return err
	}
	defer (&liveModule{maps: m}).close()
	if hasRing(m) {
		before.Control.Rest()
	}
	return d.Start(m, a.instances(d.Dataplane.Name))
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
