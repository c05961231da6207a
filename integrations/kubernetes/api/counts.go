// SPDX-License-Identifier: Apache-2.0

package api

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
)

// ClusterModule is a Module without namespace, with the counts of kerb-kube-controller, which nodes do not read.
type ClusterModule struct {
	v1.TypeMeta
	Metadata ObjectMeta           `json:"metadata"`
	Spec     ModuleSpec           `json:"spec" doc:"Package and config of the module, and the pods that it is attached to"`
	Status   *ClusterModuleStatus `json:"status,omitempty" doc:"Aggregated by kerb-kube-controller from the KerbNodes"`
}

// Meta returns the metadata.
func (m *ClusterModule) Meta() *ObjectMeta { return &m.Metadata }

// Module returns the part that nodes read.
func (m *ClusterModule) Module() Module {
	out := Module{Metadata: m.Metadata, Spec: m.Spec}
	if m.Status != nil {
		out.Status = &ModuleStatus{Rollout: m.Status.Rollout}
	}
	return out
}

// ClusterModuleStatus has counts of KerbNodes; its size does not grow with their number.
type ClusterModuleStatus struct {
	Generation int64 `json:"observedGeneration" doc:"metadata.generation that was counted"`
	Desired    int   `json:"desired" doc:"Nodes that are to run package and config of the spec"`
	Ready      int   `json:"ready" doc:"Of those, in a rollout that say that they run them, else that report no problem"`
	Failed     int   `json:"failed" doc:"Nodes that report a problem with the module, whichever version they run"`
	RolledBack int   `json:"rolledBack" doc:"Of those, nodes that have rolled back the new version by themselves"`

	Problems []Problem `json:"problems,omitempty" maxItems:"10" doc:"Problems that those nodes report, the most frequent first; at most ten"`

	Rollout    *RolloutStatus `json:"rollout,omitempty" doc:"How far kerb-kube-controller has rolled out the spec; absent without spec.rollout, and with a percent in it"`
	Conditions []Condition    `json:"conditions,omitempty" maxItems:"8" doc:"Ready: no node reports a problem, and in a rollout all nodes that are to run the spec do. RolledOut: all nodes that answer run it, in a rollout by kerb-kube-controller"`
}

// NamespacedModule is a Module of a namespace with the status that kerb-kube-controller writes. Nodes do not read it.
type NamespacedModule struct {
	v1.TypeMeta
	Metadata ObjectMeta              `json:"metadata"`
	Spec     ModuleSpec              `json:"spec" doc:"Package and config of the module, and the pods that it is attached to"`
	Status   *NamespacedModuleStatus `json:"status,omitempty" doc:"Aggregated by kerb-kube-controller from the KerbNodes"`
}

// NamespacedModuleStatus does not contain the number of all nodes, so that a new node does not change the status of
// every Module.
type NamespacedModuleStatus struct {
	Generation int64       `json:"observedGeneration" doc:"metadata.generation that was counted"`
	Failed     int         `json:"failed" doc:"Nodes that report a problem with the module"`
	Problems   []Problem   `json:"problems,omitempty" maxItems:"10" doc:"Problems that those nodes report, the most frequent first; at most ten"`
	Conditions []Condition `json:"conditions,omitempty" maxItems:"8" doc:"Ready: no node reports a problem"`
}

// Problem is a message about a ClusterModule that one or more nodes report.
type Problem struct {
	Reason  string `json:"reason" doc:"Machine-readable reason, one CamelCase word"`
	Nodes   int    `json:"nodes" doc:"How many report it"`
	Node    string `json:"node,omitempty" doc:"Name of one of them"`
	Message string `json:"message" doc:"The problem, and what to do"`
}

// maxProblems is how many different ones a status has.
const maxProblems = 10

// Begun reports whether the node has started to switch to a new version. It runs this version if it reports no problem.
func (n KerbNode) Begun(module, version string) bool {
	return n.Status != nil && slices.Contains(n.Status.Updated, NodeVersion{module, version})
}

// Could reports whether the node can run a new version, or has started to switch to it.
func (n KerbNode) Could(module, version string) bool {
	return n.Begun(module, version) || n.Status != nil && slices.Contains(n.Status.Checked, NodeVersion{module, version})
}

// Problem returns the node's report about a ClusterModule, or nil.
func (n KerbNode) Problem(module string) *ModuleReport {
	if n.Status != nil {
		for _, r := range n.Status.Modules {
			if r.Name == module {
				return &r
			}
		}
	}
	return nil
}

// Count counts the reports of nodes about a ClusterModule.
func Count(m Module, nodes []KerbNode) ClusterModuleStatus {
	name, version := m.Metadata.Name, m.Version()
	out, division := ClusterModuleStatus{Generation: m.Metadata.Generation}, m.Division()
	problems := map[Problem][]string{}
	for _, n := range nodes {
		desired := m.Spec.Rollout == nil || division.Has(n.Metadata.Name)
		problem := n.Problem(name)
		if desired {
			out.Desired++
		}
		if desired && problem == nil && (m.Spec.Rollout == nil || n.Begun(name, version)) {
			out.Ready++
		}
		if problem != nil {
			out.Failed++
			of := Problem{Reason: problem.Reason, Message: problem.Message}
			problems[of] = append(problems[of], n.Metadata.Name)
			if problem.Reason == RolledBack {
				out.RolledBack++
			}
		}
	}
	out.Problems = most(problems)
	return out
}

// most returns the problems that most nodes have, of those with their names.
func most(problems map[Problem][]string) (out []Problem) {
	for p, nodes := range problems {
		p.Nodes, p.Node = len(nodes), slices.Min(nodes)
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b Problem) int {
		return cmp.Or(b.Nodes-a.Nodes, strings.Compare(a.Reason, b.Reason), strings.Compare(a.Message, b.Message))
	})
	return out[:min(maxProblems, len(out))]
}

// String returns the message with the number of nodes.
func (p Problem) String() string {
	if p.Nodes == 1 {
		return p.Node + ": " + p.Message
	}
	return fmt.Sprintf("%d nodes, one of them %s: %s", p.Nodes, p.Node, p.Message)
}
