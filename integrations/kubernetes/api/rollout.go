// SPDX-License-Identifier: Apache-2.0

package api

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"hash/fnv"
	"slices"
)

// Rollout divides the nodes between two versions of a ClusterModule. Every node computes its side itself, so one write
// moves a whole wave, and nothing in the object grows with the nodes.
type Rollout struct {
	Percent  int      `json:"percent" doc:"Percentage of nodes that run package and config of the spec: a larger one only adds nodes"`
	Nodes    []string `json:"nodes,omitempty" maxItems:"50" doc:"Canaries: names of nodes that run them at any percentage"`
	Paused   bool     `json:"paused,omitempty" doc:"No node begins with the new version; those that run it keep it"`
	MaxDrops *int     `json:"maxDrops,omitempty" doc:"How many of 1,000 packets the new version may drop more than the module did before; beyond, a node returns to the previous version. Absent: any number"`
	Previous Previous `json:"previous" doc:"What the other nodes run"`
}

// Previous is the part of a ClusterModule that nodes outside of the rollout keep.
type Previous struct {
	Package Package        `json:"package" doc:"The package to deploy"`
	Config  map[string]any `json:"config,omitempty" doc:"Configuration, checked against the schema in the package's manifest"`
}

// Updated reports whether a rollout gives a node the new version of a ClusterModule.
func (m Module) Updated(node string) bool {
	r := m.Spec.Rollout
	return r != nil && m.Metadata.Namespace == "" &&
		(slices.Contains(r.Nodes, node) || cohort(m.Metadata.Name, node) < r.Percent)
}

// Side returns one version of a ClusterModule: the new one if updated, or that of the other nodes.
func (m Module) Side(updated bool) Module {
	r := m.Spec.Rollout
	if r == nil || m.Metadata.Namespace != "" {
		return m
	}
	if !updated {
		m.Spec.Package, m.Spec.Config = r.Previous.Package, r.Previous.Config
	}
	m.Spec.Rollout = nil
	return m
}

// Version identifies the new version of a ClusterModule.
func (m Module) Version() string {
	text, _ := json.Marshal([]any{m.Spec.Package, m.Spec.Config}) // decoded from JSON
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:10])
}

// cohort is a number from 0 to 99. The name of the module is in it, so that modules do not all try their new versions
// on the same nodes first.
func cohort(module, node string) int {
	h := fnv.New64a()
	_, _ = h.Write([]byte(module + "/" + node)) // cannot fail
	return int(h.Sum64() % 100)
}
