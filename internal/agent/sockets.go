// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"time"
)

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
