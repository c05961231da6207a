// SPDX-License-Identifier: Apache-2.0

package api

import "slices"

// NodesPath is the collection of Nodes in an API server.
const NodesPath = "/api/v1/nodes"

// Node is what is used of a Node of the cluster.
type Node struct {
	Metadata ObjectMeta `json:"metadata"`
	Status   struct {
		Conditions []NodeCondition `json:"conditions"`
	} `json:"status"`
}

// NodeCondition is a condition of a Node, without the time of its last heartbeat.
type NodeCondition struct {
	Type   string `json:"type"`
	Status string `json:"status"`
}

// Meta returns the metadata.
func (n *Node) Meta() *ObjectMeta { return &n.Metadata }

// ready is the condition that the kubelet keeps True. Kubernetes sets it to Unknown when the kubelet does not renew
// its Lease, within a minute.
var ready = NodeCondition{"Ready", "True"}

// Lost reports whether the Node is not Ready: what it has said of rollouts may no longer be so.
func (n *Node) Lost() bool { return !slices.Contains(n.Status.Conditions, ready) }

// Silence returns the nodes as if those that are lost had not said that they run new versions, or could run them. What
// they have said of problems remains. A KerbNode has no heartbeat: it stays as it is when its node is lost. Names of
// which there is no Node are of no lost one.
func Silence(nodes []KerbNode, lost map[string]bool) []KerbNode {
	out := slices.Clone(nodes)
	for i, n := range out {
		if lost[n.Metadata.Name] && n.Status != nil {
			status := *n.Status
			status.Updated, status.Checked = nil, nil
			out[i].Status = &status
		}
	}
	return out
}
