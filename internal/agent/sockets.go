// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/cgroup"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/deploy"
	"github.com/kerb-edge/kerb/internal/observe"
	"github.com/kerb-edge/kerb/internal/resource"
)

// ageIdle takes idle sockets out of a module's map while it is attached, and puts those back that become active.
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
	if l.aging, err = a.dp.Tend(d.SocketsChain(dataplane.Linker()), gaveUp); err != nil {
		gaveUp(err)
	}
}

// placedCondition reports whether a module on sockets is attached wherever it is wanted.
func (a *Agent) placedCondition(d *deploy.Module) v1.Condition {
	c := v1.Condition{Type: "Placed", Status: "True", Reason: "AllAttached"}
	if others := a.neighbours(d); len(others) > 0 {
		c.Message = "sockets that another program also holds in a map are not changed; other programs on the same cgroup: " + strings.Join(others, ", ")
	}
	if texts := a.unplaced(d); len(texts) > 0 {
		c.Status, c.Reason, c.Message = "False", "PartiallyAttached", strings.Join(texts, "; ")
	}
	return c
}

// neighbours are programs of others that see the sockets of a module's cgroups.
func (a *Agent) neighbours(d *deploy.Module) (out []string) {
	for _, p := range sortedPoints(a.points) {
		if p.Module != d.Dataplane.Name {
			continue
		}
		for _, program := range a.dp.View(p).Programs {
			if !strings.HasPrefix(program, dataplane.SocketsPrefix) && !slices.Contains(out, program) {
				out = append(out, program)
			}
		}
	}
	return out
}

func (a *Agent) unplaced(d *deploy.Module) (out []string) {
	if a.sockets == nil {
		return nil
	}
	add := func(key, format string, args ...any) {
		if err := a.sockets.Errs[key]; err != nil {
			out = append(out, fmt.Sprintf(format, args...)+err.Error())
		}
	}
	for _, path := range d.CgroupPaths(a.observer.Cgroup) {
		add(path, "")
	}
	for _, name := range a.desired.Names(resource.Service) {
		if s, _ := resource.Service.Get(a.desired, name); d.Selector.Matches(s.Metadata.Labels) {
			add(observe.ServiceKey(name), "service %s: ", name)
		}
	}
	return out
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
			a.poke()
		}
	}
}

func (a *Agent) cgroupsMoved() bool {
	a.mu.Lock()
	v, paths := a.sockets, map[string]bool{}
	for _, d := range a.modules {
		for _, path := range d.CgroupPaths(a.observer.Cgroup) {
			paths[path] = true
		}
	}
	a.mu.Unlock()
	for path := range paths {
		if v == nil || v.Cgroups[path].Exists() {
			continue
		}
		if found, _ := cgroup.Find(path); v.Cgroups[path] != found {
			return true
		}
	}
	return false
}
