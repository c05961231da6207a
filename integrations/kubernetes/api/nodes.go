// SPDX-License-Identifier: Apache-2.0

package api

import "slices"

// NodesPath is the collection of Nodes in an API server.
const NodesPath = "/api/v1/nodes"

// Node has the used fields of a Node of the cluster.
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

// Lost reports whether the Node is not Ready, so that its reports about rollouts may be outdated.
func (n *Node) Lost() bool { return !slices.Contains(n.Status.Conditions, ready) }

// Silence returns the nodes without the reports of lost nodes that they run, or can run, new versions. Their reports of
// problems remain. A KerbNode has no heartbeat and does not change when its node is lost. A KerbNode without a Node
// does not count as lost.
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
