// SPDX-License-Identifier: Apache-2.0

package api

import (
	"hash/fnv"
	"slices"
)

// Rollout divides the nodes between two versions of a ClusterModule. Every node computes its side itself, so one write
// moves a whole wave, and nothing in the object grows with the nodes.
type Rollout struct {
	Percent  int      `json:"percent" doc:"Percentage of nodes that run package and config of the spec: a larger one only adds nodes"`
	Nodes    []string `json:"nodes,omitempty" maxItems:"50" doc:"Canaries: names of nodes that run them at any percentage"`
	Previous Previous `json:"previous" doc:"What the other nodes run"`
}

// Previous is the part of a ClusterModule that nodes outside of the rollout keep.
type Previous struct {
	Package Package        `json:"package" doc:"The package to deploy"`
	Config  map[string]any `json:"config,omitempty" doc:"Configuration, checked against the schema in the package's manifest"`
}

// OnNode returns the version of a ClusterModule that a node runs.
func (m Module) OnNode(node string) Module {
	r := m.Spec.Rollout
	if r == nil || m.Metadata.Namespace != "" {
		return m
	}
	if !slices.Contains(r.Nodes, node) && cohort(m.Metadata.Name, node) >= r.Percent {
		m.Spec.Package, m.Spec.Config = r.Previous.Package, r.Previous.Config
	}
	m.Spec.Rollout = nil
	return m
}

// cohort is a number from 0 to 99. The name of the module is in it, so that modules do not all try their new versions
// on the same nodes first.
func cohort(module, node string) int {
	h := fnv.New64a()
	_, _ = h.Write([]byte(module + "/" + node)) // cannot fail
	return int(h.Sum64() % 100)
}
