// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"

	"github.com/cilium/ebpf"
	"golang.org/x/sync/errgroup"

	"github.com/kerb-edge/kerb/internal/fault"
	"github.com/kerb-edge/kerb/sdk"
)

// releaseAll stops the control planes that a failed change has started. Those before them continue.
func (a *Agent) releaseAll(prepared map[string]*deployment) {
	for name, d := range prepared {
		if a.modules[name] != d {
			a.release(d)
		}
	}
}

// awaitUpgrades gives the new version of each upgraded module its time to become healthy on live traffic. The old version
// is still whole, maps and control plane: an error takes the change back.
func (a *Agent) awaitUpgrades(t target) error {
	var all errgroup.Group
	for name, d := range t.modules {
		before := a.modules[name]
		if d == before || before == nil || before.plane == nil || d.plane == nil || d.plane == before.plane {
			continue
		}
		all.Go(func() error { return a.awaitUpgrade(before, d) })
	}
	return all.Wait()
}

func (a *Agent) awaitUpgrade(before, d *deployment) error {
	name := d.module.Name
	m, err := a.dp.Maps(name, d.module.ID)
	if err != nil {
		return err
	}
	defer (&liveModule{maps: m}).close()
	if hasRing(m) {
		before.plane.Rest()
	}
	if err := d.start(m, a.instances(name)); err != nil {
		return err
	}
	limit := d.pkg.Control.HealthTime()
	ctx, cancel := context.WithTimeout(a.base, limit)
	defer cancel()
	if err := d.plane.AwaitHealthy(ctx); err != nil {
		return &fault.Conflict{Reason: fmt.Sprintf("Module %s: version %s was rolled back to %s, as it was not healthy within %v: %v",
			name, d.pkg.Version, before.pkg.Version, limit, err)}
	}
	return nil
}

// hasRing reports whether there is a ring buffer among maps. Generations share it, and it can have one reader only: two would
// both move its consumer position, and lose events or read them twice.
func hasRing(m sdk.Maps) bool {
	for _, one := range m {
		if one.Type() == ebpf.RingBuf {
			return true
		}
	}
	return false
}
