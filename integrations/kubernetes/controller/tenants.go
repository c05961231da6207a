// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"reflect"
	"time"

	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
	"github.com/kerb-edge/kerb/integrations/kubernetes/watch"
)

// maxTenantWrites limits the status writes of namespaced Modules per comparison to five per second, since every write
// is sent to all nodes.
const maxTenantWrites = 10

// tenant has the used fields of a namespaced Module, without the spec, which may be large.
type tenant struct {
	Metadata api.ObjectMeta              `json:"metadata"`
	Status   *api.NamespacedModuleStatus `json:"status"`
}

// Meta returns the metadata.
func (t *tenant) Meta() *api.ObjectMeta { return &t.Metadata }

// tenantChange is a Module with the status that it should have.
type tenantChange struct {
	tenant
	before api.NamespacedModuleStatus
}

// dueTenants returns the first Modules that should have another status, by NAMESPACE/NAME.
func (s *state) dueTenants(now time.Time) map[string]tenantChange {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.synced(ofAll|ofTenants) || !s.tenantsChanged {
		return nil
	}
	s.tenantsChanged = false
	reporting := map[string][]api.KerbNode{}
	for _, n := range s.nodes {
		if n.Status == nil {
			continue
		}
		for _, r := range n.Status.Modules {
			if _, there := s.tenants[r.Name]; there {
				reporting[r.Name] = append(reporting[r.Name], n)
			}
		}
	}
	out := map[string]tenantChange{}
	for name, m := range s.tenants {
		before := api.NamespacedModuleStatus{}
		if m.Status != nil {
			before = *m.Status
		}
		is := tenantStatus(name, m, reporting[name], len(s.nodes), now)
		if m.Status != nil && reflect.DeepEqual(before, is) {
			continue
		}
		if len(out) == maxTenantWrites {
			s.tenantsChanged = true
			break
		}
		m.Status = &is
		out[name] = tenantChange{m, before}
	}
	return out
}

// tenantStatus returns the status of a Module from the nodes that report a problem with it. It does not depend on
// reports about other Modules: a problem in one namespace must not cause writes of all Modules.
func tenantStatus(name string, m tenant, reporting []api.KerbNode, nodes int,
	now time.Time) api.NamespacedModuleStatus {
	counted := api.Count(api.Module{Metadata: api.ObjectMeta{Name: name}}, reporting)
	c := api.Condition{Type: conditionReady, Status: "True", Reason: reasonNoProblem,
		Message: "no node reports a problem; a node reports at most ten modules"}
	switch {
	case counted.Failed > 0:
		c.Status, c.Reason = "False", reasonFailed
		c.Message = truncate(fmt.Sprintf("%s; correct the Module, or ask an administrator of the cluster about the node",
			counted.Problems[0]), maxMessage)
	case nodes == 0:
		c.Status, c.Reason = "Unknown", reasonNoNodes
		c.Message = "no node has a KerbNode: ask an administrator of the cluster to install kerb-kube-node"
	}
	var before []api.Condition
	if m.Status != nil {
		before = m.Status.Conditions
	}
	return api.NamespacedModuleStatus{Generation: m.Metadata.Generation, Failed: counted.Failed,
		Problems: counted.Problems, Conditions: settle(before, m.Metadata, now, c)}
}

// writeTenants writes the statuses of Modules that are due, and records what nodes report. What fails is due again.
func (s *state) writeTenants(ctx context.Context, c *watch.Client, e *elector, recorder recorders,
	log *slog.Logger) {
	for name, due := range s.dueTenants(time.Now()) {
		written, err := due.tenant, ctx.Err()
		of := due.Metadata
		if err == nil && e.leads() {
			is := due.Status
			err = c.Merge(ctx, basePath+"namespaces/"+url.PathEscape(of.Namespace)+"/"+api.Modules+"/"+url.PathEscape(of.Name)+
				"/status", patch(of, map[string]any{"observedGeneration": is.Generation, "failed": is.Failed,
				"problems": is.Problems, "conditions": is.Conditions}), &written)
			conflict := watch.IsStatus(err, http.StatusConflict) // the event of another change is on its way
			if err != nil && !conflict && !errors.Is(ctx.Err(), context.Canceled) {
				log.Warn("the status of a Module is not written", "name", name, "error", err)
			}
		}
		if err == nil && e.leads() {
			for _, happened := range newReasons(objectOf("Module", of), due.before.Problems, due.Status.Problems) {
				recorder.problems.Record(happened)
			}
		}
		s.mu.Lock()
		switch m, there := s.tenants[name]; {
		case !there:
		case watch.IsStatus(err, http.StatusNotFound): // an earlier definition has no status: not again until it changes
			m.Status = due.Status
			s.tenants[name] = m
		case err == nil && e.leads() && m.Metadata.ResourceVersion == of.ResourceVersion:
			m.Status, m.Metadata.ResourceVersion = due.Status, written.Metadata.ResourceVersion
			s.tenants[name] = m
		default:
			s.tenantsChanged = true
		}
		s.mu.Unlock()
	}
}
