// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"github.com/kerb-edge/kerb/integrations/kubernetes/metrics"
	"github.com/kerb-edge/kerb/internal/promtext"
)

// lead records whether this process holds the Lease.
func (s *state) lead(leads bool) {
	s.mu.Lock()
	s.leads = leads
	s.mu.Unlock()
}

// collect adds the metrics of the program. Only the leader exports those of ClusterModules, so that sums over processes
// count each once. The number of series does not grow with the nodes.
func (s *state) collect(out *promtext.Set) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out.Gauge("kerb_kube_leader", "1 if this process holds the Lease.", metrics.Is(s.leads))
	out.Gauge("kerb_kube_synced", "1 if all lists have come since the start: no status is written before.",
		metrics.Is(s.synced(ofAll)))
	if !s.leads || !s.synced(ofAll) {
		return
	}
	lost := 0
	for name := range s.nodes {
		if n, there := s.hosts[name]; there && n.Lost() {
			lost++
		}
	}
	const nodes = "KerbNodes, by whether Kubernetes has lost the node."
	out.Gauge("kerb_kube_nodes", nodes, float64(len(s.nodes)-lost), "state", "ready")
	out.Gauge("kerb_kube_nodes", nodes, float64(lost), "state", "lost")
	for name, m := range s.modules {
		is := m.Status
		if is == nil {
			continue
		}
		for state, n := range map[string]int{"desired": is.Desired, "ready": is.Ready, "failed": is.Failed,
			"rolled_back": is.RolledBack} {
			out.Gauge("kerb_kube_module_nodes", "Nodes of a ClusterModule, as in its status.", float64(n), "module", name,
				"state", state)
		}
		if c := rolledOut(is); c.Type != "" && is.Rollout != nil {
			out.Gauge("kerb_kube_rollout", "Rollouts in waves, by the reason of the condition RolledOut.", 1, "module", name,
				"reason", c.Reason)
			out.Gauge("kerb_kube_rollout_percent", "Percentage of nodes that a rollout in waves gives the new version.",
				float64(is.Rollout.Percent), "module", name)
		}
	}
}
