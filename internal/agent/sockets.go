// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"time"

	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/deploy"
)

// ageIdle takes idle sockets out of a module's map while it is attached.
func (a *Agent) ageIdle(d *deploy.Module, l *liveModule) {
	if !d.Sockets || len(a.instances(d.Dataplane.Name)) == 0 {
		l.aging.Close()
		l.aging = nil
		return
	}
	if l.aging != nil {
		return
	}
	gaveUp := func(err error) {
		a.log.Error("idle sockets are no longer aged out of the module's map", "module", d.Dataplane.Name, "error", err)
	}
	var err error
	if l.aging, err = a.dp.AgeIdle(d.SocketsChain(dataplane.Linker()), gaveUp); err != nil {
		gaveUp(err)
	}
}

// cgroupPeriod is how soon it is seen that a cgroup comes, goes or is another one.
const cgroupPeriod = time.Second

// watchCgroups asks for a reconciliation when a cgroup that modules select has come or gone.
func (a *Agent) watchCgroups(ctx context.Context) {
	tick := time.NewTicker(cgroupPeriod)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if a.cgroupsMoved() {
			a.requestReconcile()
		}
	}
}

// cgroupsMoved reports whether a cgroup that a module names was created, removed, or replaced under the same path
// since the last observation.
func (a *Agent) cgroupsMoved() bool {
	a.mu.Lock()
	v, paths := a.now.Sockets, map[string]bool{}
	for _, d := range a.now.Modules {
		for _, path := range d.CgroupPaths(a.observer.Cgroup) {
			paths[path] = true
		}
	}
	a.mu.Unlock()
	return v.Moved(paths)
}
