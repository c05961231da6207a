// SPDX-License-Identifier: Apache-2.0

package status

import (
	"maps"
	"slices"
	"strings"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apply"
	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/deploy"
	"github.com/kerb-edge/kerb/internal/observe"
	"github.com/kerb-edge/kerb/internal/plan"
	"github.com/kerb-edge/kerb/internal/resource"
	"github.com/kerb-edge/kerb/internal/service"
)

// Node is the current state of the agent, from which status and conditions are computed. It is not safe for concurrent
// use.
type Node struct {
	Desired   resource.State
	Modules   map[string]*deploy.Module
	Services  map[string]service.State // at the last reconciliation
	Points    plan.Placements
	Sockets   *observe.Sockets       // nil before the first reconciliation
	NoReplies map[int]error          // interfaces whose peer does not receive replies from native XDP
	Problem   error                  // error of the last reconciliation
	Reordered map[chain.Point]string // chains whose order a reconciliation, not a change, has changed
	Functions bool                   // modules stay separate functions in chains
	former    formerDroppers

	Sources
}

// Sources provide what the state does not contain. They are safe for concurrent use, except Counters.
type Sources struct {
	Recorder   *Recorder
	Virtual    Virtual
	Model      func(name string) *v1.ModelStatus // nil if it is just coming
	CgroupRoot string                            // of the sockets of services
	Agent      func() Agent
	Counters   func(module string) Counters            // nil: the module has no map set in use
	Cost       func(key string) (apply.Measured, bool) // by apply.Candidate.Key
	Mode       func(chain.Point) string                // how programs run there
	Programs   func(chain.Point) []string              // all programs there, including foreign ones
	Interfaces func() map[string]service.Link          // of the node
	LostMetric func(module string) string              // a metric that is not exported, because its name is taken
	SetProblem func(set string) error                  // why the kernel does not have it as stored
}

// Virtual are the virtual services.
type Virtual interface {
	Names() []string
	View(name string) (v1.VirtualService, bool)
}

// Agent is the input for the conditions of the agent itself.
type Agent struct {
	Starting       bool // the first reconciliation has not finished
	StoreReadOnly  bool
	StoreLost      bool
	ControlProblem error         // why control planes cannot start
	Weaknesses     []string      // of their sandbox
	Integrations   *v1.Condition // nil without any
}

// Itself is the resource of the agent's conditions.
var Itself = Resource{Kind: "Agent"}

// Running returns the running chains of packets by identity, and the modules of all chains.
func (nd *Node) Running() (map[string]chain.Spec, map[string]dataplane.Module) {
	chains, modules := map[string]chain.Spec{}, map[string]dataplane.Module{}
	for p, place := range nd.Points {
		if p.Side.SeesPackets() {
			chains[place.Chain.ID()] = place.Chain
		}
	}
	for name, d := range nd.Modules {
		modules[name] = d.Dataplane
	}
	return chains, modules
}

// Observation returns what is to be observed for the next desired state: its services and interfaces.
func (nd *Node) Observation(next resource.State) observe.Request {
	return observe.Request{Services: maps.Collect(resource.Service.All(next)),
		Before:  maps.Collect(resource.Service.All(nd.Desired)),
		Modules: maps.Collect(resource.Module.All(next)), Last: nd.Services}
}

// RecordAgent records the conditions of the agent.
func (nd *Node) RecordAgent() []v1.Condition {
	return nd.Recorder.Record(Itself, 0, nd.agentConditions(nd.Agent()))
}

// Evaluate records the conditions of the agent, a module or a service that depend only on the agent's state.
func (nd *Node) Evaluate(of Resource) {
	if of == Itself {
		nd.RecordAgent()
	}
	if m, ok := resource.Module.Get(nd.Desired, of.Name); ok && of.Kind == v1.KindModule {
		nd.RecordModule(m, nd.Modules[of.Name], nd.attached(of.Name))
	}
	if s, ok := resource.Service.Get(nd.Desired, of.Name); ok && of.Kind == v1.KindService {
		nd.RecordService(s, nd.Services[of.Name])
	}
}

// EnqueueAll queues all conditions that depend on chains and services.
func (nd *Node) EnqueueAll() {
	all := []Resource{Itself}
	for _, kind := range []string{v1.KindModule, v1.KindService} {
		for name := range nd.Desired[kind] {
			all = append(all, Resource{Kind: kind, Name: name})
		}
	}
	nd.Recorder.Enqueue(all...)
}

// ForgetWithout forgets the conditions of resources that next does not contain: if re-created, they start without. Of
// removed modules it keeps the names of drop reasons.
func (nd *Node) ForgetWithout(next resource.State, modules map[string]*deploy.Module) {
	nd.former.add(nd.Modules, modules)
	for kind, all := range nd.Desired {
		for name := range all {
			if _, stays := next[kind][name]; !stays {
				nd.Recorder.Forget(Resource{Kind: kind, Name: name})
			}
		}
	}
}

func (nd *Node) agentConditions(a Agent) []v1.Condition {
	reconciled := v1.Condition{Type: "Reconciled", Status: "True", Reason: "InSync"}
	if a.Starting {
		reconciled.Status, reconciled.Reason, reconciled.Message = "False", "Starting",
			"the first reconciliation since the start of the agent is under way"
	} else if nd.Problem != nil {
		reconciled.Status, reconciled.Reason, reconciled.Message = "False", "Retrying", nd.Problem.Error()
	} else if failed := nd.cannotRun(); failed != "" {
		reconciled.Status, reconciled.Reason, reconciled.Message = "False", "ModuleFailed", failed
	}
	stored := v1.Condition{Type: "StoreWritable", Status: "True", Reason: "Writable"}
	if a.StoreReadOnly {
		stored.Status, stored.Reason, stored.Message = "False", "ReadOnly", "the store can only be read: changes are refused"
	}
	out := []v1.Condition{reconciled, stored, nd.controlPlanes(a)}
	if a.Integrations != nil {
		out = append(out, *a.Integrations)
	}
	out = append(out, nd.orderConditions()...)
	if a.StoreLost {
		out = append(out, v1.Condition{Type: "StoreLost", Status: "True", Reason: "Corrupted",
			Message: "the store was damaged and has been moved aside; attached chains keep running unchanged until modules " +
				"are applied again"})
	}
	return out
}

// controlPlanes summarizes the control planes.
func (nd *Node) controlPlanes(a Agent) v1.Condition {
	c := v1.Condition{Type: "ControlPlanes", Status: "True", Reason: "Running"}
	if err := a.ControlProblem; err != nil {
		c.Status, c.Reason, c.Message = "False", "SandboxFailed", "control planes cannot start: "+err.Error()+
			"; run kerb doctor"
		return c
	}
	c.Message = strings.Join(a.Weaknesses, "; ")
	for _, name := range slices.Sorted(maps.Keys(nd.Modules)) {
		d := nd.Modules[name]
		if d.Control == nil {
			continue
		}
		if one := ControlCondition(d.Control.State()); one.Status != "True" {
			if c.Status == "True" {
				c.Message = ""
			}
			c.Status, c.Reason = "False", one.Reason
			c.Message = strings.TrimPrefix(c.Message+"; "+name+": "+one.Message, "; ")
		}
	}
	return c
}
