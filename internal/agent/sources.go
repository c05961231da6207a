// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"log/slog"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/control"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/status"
)

// sources connects status with what it is read from.
func (a *Agent) sources(cgroup string) status.Sources {
	return status.Sources{Recorder: status.NewRecorder(), Virtual: a.virtual, CgroupRoot: cgroup, Agent: a.itself,
		Cost: a.budgets.Get, View: a.dp.View, Interfaces: a.watcher.HostInterfaces, LostMetric: a.LostMetric,
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

// supervisors are the control planes of modules that see packets. a.mu is held.
func (a *Agent) supervisors() map[string]*control.Supervisor {
	out := map[string]*control.Supervisor{}
	for name, l := range a.live {
		if l.plane != nil {
			out[name] = l.plane
		}
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
