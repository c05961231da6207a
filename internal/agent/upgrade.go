// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"github.com/kerb-edge/kerb/internal/apply"
	"github.com/kerb-edge/kerb/internal/deploy"
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
			Start: func() error { return a.live.StartUpgrade(before, d) }, AwaitHealthy: d.Control.AwaitHealthy})
	}
	return out
}
