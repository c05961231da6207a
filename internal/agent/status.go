// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"log/slog"
	"os"
	"slices"
	"sort"
	"time"

	"golang.org/x/sys/unix"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/deploy"
	"github.com/kerb-edge/kerb/internal/resource"
	"github.com/kerb-edge/kerb/internal/status"
	"github.com/kerb-edge/kerb/internal/version"
)

func (a *Agent) moduleViews() func(string) resource.Object {
	counts := a.counts()
	return func(name string) resource.Object {
		a.mu.Lock()
		defer a.mu.Unlock()
		m, ok := resource.Module.Get(a.now.Desired, name)
		if !ok {
			return nil
		}
		view := a.now.Module(m)
		view.Status.Counts = status.CountsOf(counts, name)
		return resource.ObjectOf(view)
	}
}

// counts are the packets of all modules.
func (a *Agent) counts() dataplane.Counts {
	counts, err := a.dp.Counts()
	if err != nil {
		a.log.Warn("cannot read the counts of modules", "error", err)
	}
	return counts
}

func (a *Agent) serviceViews() func(string) resource.Object {
	programs := a.programs()
	a.mu.Lock()
	drops := a.now.ServiceDrops() // once for a list: its maps have the drops of all services
	a.mu.Unlock()
	return func(name string) resource.Object {
		a.mu.Lock()
		defer a.mu.Unlock()
		s, ok := resource.Service.Get(a.now.Desired, name)
		if !ok {
			return nil
		}
		return resource.ObjectOf(a.now.Service(s, programs, drops[name]))
	}
}

// programs are the kernel's ids of running programs by attach point.
func (a *Agent) programs() map[chain.Point]uint32 {
	out := map[chain.Point]uint32{}
	state, err := a.look(time.Second)
	if err != nil {
		a.log.Warn("cannot read the state of the kernel", "error", err)
	}
	for _, p := range state.Points {
		out[p.Point] = uint32(p.Program)
	}
	return out
}

// Chains lists the chains that run, and those that are pinned without running.
func (a *Agent) Chains(context.Context) ([]v1.Chain, error) {
	state, err := a.look(time.Second)
	if err != nil {
		return nil, err
	}
	counts := a.counts()
	a.mu.Lock()
	defer a.mu.Unlock()
	ready, _ := a.now.Inputs().Ready(a.now.Points) // none if the order of modules is a cycle
	var out []v1.Chain
	for _, c := range state.Chains {
		view := a.now.Chain(c, state.Points)
		view.Ready = slices.ContainsFunc(ready, func(s chain.Spec) bool { return s.ID() == c.ID })
		view.Counts, view.Took = status.ChainCounts(counts, c), status.ChainTook(counts, c)
		out = append(out, view)
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Hook+out[i].ID < out[j].Hook+out[j].ID })
	return out, nil
}

// Packages lists the built-in packages, those that were pulled and those that modules use.
func (a *Agent) Packages(context.Context) ([]v1.Package, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return deploy.Packages(a.catalog, a.now.Modules)
}

// Package returns one by name or directory.
func (a *Agent) Package(_ context.Context, name string) (v1.Package, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return deploy.Package(a.catalog, a.now.Modules, name)
}

// Status is the agent at a glance.
func (a *Agent) Status(context.Context) (v1.NodeStatus, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	st := v1.NodeStatus{Version: version.Version(), Kernel: kernelRelease(), PID: os.Getpid(),
		Uptime:  time.Since(a.started).Round(time.Second).String(),
		Modules: a.now.Desired.Len(resource.Module), Services: a.now.Desired.Len(resource.Service),
		VirtualServices: len(a.virtual.Names()),
		Models:          a.now.Desired.Len(resource.Model), Points: len(a.now.Points)}
	chains := map[string]bool{}
	for _, p := range a.now.Points {
		chains[p.Chain.ID()] = true
	}
	st.Chains = len(chains)
	for _, l := range a.live {
		st.Memory += dataplane.Memory(l.maps)
	}
	st.Conditions, st.Problems = a.now.RecordAgent(), a.now.Problems(a.yield)
	return st, nil
}

func kernelRelease() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}

// sources connects status with what it is read from.
func (a *Agent) sources(cgroup string) status.Sources {
	return status.Sources{Recorder: status.NewRecorder(), Virtual: a.virtual, CgroupRoot: cgroup, Agent: a.itself,
		Cost: a.budgets.Get, View: a.dp.View, Interfaces: a.watcher.HostInterfaces, LostMetric: a.metrics.clash,
		Counters: func(module string) status.Counters {
			if l := a.live[module]; l != nil {
				return counters{l, a.log}
			}
			return nil
		}}
}

// itself is what the agent's own conditions are about.
func (a *Agent) itself() status.Agent {
	out := status.Agent{Starting: a.starting(), StoreReadOnly: a.store.ReadOnly(), StoreLost: a.store.RecoveryPending(),
		ControlProblem: a.control.Problem(), Weaknesses: a.control.Weaknesses()}
	if c, configured := a.integrations.Condition(); configured {
		out.Integrations = &c
	}
	return out
}

// counters are read from the maps of a generation.
type counters struct {
	*liveModule
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
		c.log.Warn("cannot read the drops by service", "generation", c.id, "error", err)
	}
	return counts
}
