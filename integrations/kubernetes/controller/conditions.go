// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"time"

	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
)

// Reasons of the condition Ready, in addition to NodesFailed.
const (
	conditionReady    = "Ready"
	reasonNoProblem   = "NoProblem"
	reasonProgressing = "Progressing"
	reasonNoNodes     = "NoNodes"
	reasonFull        = "ReportsFull"
)

// clusterReady returns the condition Ready of a ClusterModule for the counts of a status. Except in rollouts, nodes do
// not report that they have applied a change: nodes without a problem count as ready.
func clusterReady(m api.ClusterModule, is api.ClusterModuleStatus, nodes []api.KerbNode) api.Condition {
	c := api.Condition{Type: conditionReady, Status: "True", Reason: reasonNoProblem,
		Message: fmt.Sprintf("none of %d nodes reports a problem", len(nodes))}
	full := fullReport(nodes)
	switch {
	case is.Failed > 0:
		c.Status, c.Reason = "False", reasonFailed
		c.Message = fmt.Sprintf("%d of %d nodes report a problem: %s; kubectl get kerbnode %s -o yaml has all of it",
			is.Failed, len(nodes), is.Problems[0], is.Problems[0].Node)
	case len(nodes) == 0:
		c.Status, c.Reason = "Unknown", reasonNoNodes
		c.Message = "no node has a KerbNode: install kerb-kube-node on the nodes, or see its log"
	case full != "":
		c.Status, c.Reason = "Unknown", reasonFull
		c.Message = "node " + full + " reports other modules, and no more than ten: correct those first"
	case m.Spec.Rollout != nil && is.Ready < is.Desired:
		c.Status, c.Reason = "False", reasonProgressing
		c.Message = fmt.Sprintf("%d of %d nodes have not reported that they run the new version: kubectl kerb rollout "+
			"status %s names them", is.Desired-is.Ready, is.Desired, m.Metadata.Name)
	}
	c.Message = truncate(c.Message, maxMessage)
	return c
}

// fullReport returns the first node whose list of modules is full, or "".
func fullReport(nodes []api.KerbNode) (first string) {
	for _, n := range nodes {
		if name := n.Metadata.Name; n.Status != nil && len(n.Status.Modules) >= api.MaxReports &&
			(first == "" || name < first) {
			first = name
		}
	}
	return first
}

// settle gives conditions the generation of their object, and the time of their last transition.
func settle(before []api.Condition, m api.ObjectMeta, now time.Time, conditions ...api.Condition) []api.Condition {
	for i := range conditions {
		c := &conditions[i]
		c.Generation, c.Transition = m.Generation, now.UTC().Truncate(time.Second)
		for _, b := range before {
			if b.Type == c.Type && b.Status == c.Status {
				c.Transition = b.Transition
			}
		}
	}
	return conditions
}
