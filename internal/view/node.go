// SPDX-License-Identifier: Apache-2.0

package view

import (
	"context"
	"maps"
	"os"
	"slices"
	"sort"
	"time"

	"golang.org/x/sys/unix"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/deploy"
	"github.com/kerb-edge/kerb/internal/resource"
	"github.com/kerb-edge/kerb/internal/status"
	"github.com/kerb-edge/kerb/internal/version"
)

// Chains lists the attached chains, and those that are pinned but not attached.
func (v *Views) Chains(context.Context) ([]v1.Chain, error) {
	state, err := v.Look(time.Second)
	if err != nil {
		return nil, err
	}
	counts := v.counts()
	v.Lock.Lock()
	defer v.Lock.Unlock()
	ready, _ := v.Now.Inputs().Ready(v.Now.Points) // empty if the order of modules has a cycle
	var out []v1.Chain
	for _, c := range state.Chains {
		view := v.Now.Chain(c, state.Points)
		view.Ready = slices.ContainsFunc(ready, func(s chain.Spec) bool { return s.ID() == c.ID })
		counted := status.ChainCounts(c.ID, counts.Chains[c.ID])
		view.Counts, view.Latency = counted.Counts, counted.Latency
		out = append(out, view)
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Hook+out[i].ID < out[j].Hook+out[j].ID })
	return out, nil
}

// Counts returns the counters of all chains and modules, and whether anything else may have changed. Unlike lists, it
// reads nothing else from the kernel.
func (v *Views) Counts(context.Context) (v1.NodeCounts, error) {
	out := v1.NodeCounts{Change: v.ChangeLog.Last(), State: v.Now.Recorder.Version(), Chains: []v1.ChainCounts{},
		Modules: []v1.ModuleDrops{}}
	counts := v.counts()
	for _, id := range slices.Sorted(maps.Keys(counts.Chains)) {
		out.Chains = append(out.Chains, status.ChainCounts(id, counts.Chains[id]))
	}
	v.Lock.Lock()
	defer v.Lock.Unlock()
	for _, name := range slices.Sorted(maps.Keys(v.Now.Modules)) {
		out.Modules = append(out.Modules, v1.ModuleDrops{Module: name, Drops: v.Now.Drops(name)})
		v.yield()
	}
	return out, nil
}

// Packages lists the built-in packages, the pulled ones and those that modules use.
func (v *Views) Packages(context.Context) ([]v1.Package, error) {
	v.Lock.Lock()
	defer v.Lock.Unlock()
	return deploy.Packages(v.Catalog, v.Now.Modules)
}

// Package returns a package by name or directory.
func (v *Views) Package(_ context.Context, name string) (v1.Package, error) {
	v.Lock.Lock()
	defer v.Lock.Unlock()
	return deploy.Package(v.Catalog, v.Now.Modules, name)
}

// Status returns a summary of the agent.
func (v *Views) Status(context.Context) (v1.NodeStatus, error) {
	v.Lock.Lock()
	defer v.Lock.Unlock()
	st := v1.NodeStatus{Version: version.Version(), Kernel: kernelRelease(), PID: os.Getpid(),
		Uptime:  time.Since(v.Started).Round(time.Second).String(),
		Modules: v.Now.Desired.Len(resource.Module), Services: v.Now.Desired.Len(resource.Service),
		VirtualServices: len(v.Now.Virtual.Names()),
		Models:          v.Now.Desired.Len(resource.Model), Points: len(v.Now.Points)}
	chains := map[string]bool{}
	for _, p := range v.Now.Points {
		chains[p.Chain.ID()] = true
	}
	st.Chains = len(chains)
	for name := range v.Now.Modules {
		if c := v.Now.Counters(name); c != nil {
			st.Memory += c.Memory()
		}
	}
	st.Conditions, st.Problems = v.Now.RecordAgent(), v.Now.Problems(v.yield)
	return st, nil
}

func kernelRelease() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}
