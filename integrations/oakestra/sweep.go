// SPDX-License-Identifier: Apache-2.0

package oakestra

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
)

// confirm completes a deployment by saving the state file; otherwise a sweep will remove it.
func (l *Listener) confirm(added []module, s *service) error {
	before := l.state.clone()
	l.state.confirmModules(added)
	if s != nil {
		l.state.service(s.Name, s.Instance).Ready = true
		l.state.dropJob(s.Name, s.Instance)
	}
	err := l.save()
	if err != nil {
		l.state = before
	}
	return err
}

// sweep releases services whose veth is gone with its namespace, and undoes deployments that were not confirmed because
// this process was killed, or the agent did not respond. For some time after those, and at the start, it also removes
// resources without a deployment.
func (l *Listener) sweep(ctx context.Context, start bool) error {
	if start && l.state.unconfirmed() {
		l.expectLateRequests()
	}
	if err := l.sweepServices(ctx); err != nil {
		return err
	}
	if err := l.settle(ctx); err != nil { // after the services, which must not run without them
		return err
	}
	// Services of firewalls flush the rule set when they start.
	if l.net.assigned() && (start || len(l.state.Services) > 0 && l.net.lostTable()) {
		if err := l.net.translate(l.state.Services); err != nil {
			l.log.Warn("ports of services are not open", "error", err)
		}
	}
	if start {
		if err := l.claim(ctx); err != nil {
			return err
		}
	}
	if err := acceptForwarded(l.net.group, l.net.bridge, len(l.state.Services) > 0); err != nil {
		l.log.Warn("services cannot reach destinations outside the node", "error", err)
	}
	if start || time.Now().Before(l.lateRequestsUntil) {
		if err := l.sweepResources(ctx, start); err != nil {
			return err
		}
	}
	if !start {
		return nil
	}
	return l.net.removeStale(&l.state)
}

// sweepServices releases services whose interface no longer exists, and those whose deployment was interrupted. It
// first stores the modules as jobs, in case NodeEngine repeats the deployment.
func (l *Listener) sweepServices(ctx context.Context) error {
	for _, s := range l.state.clone().Services {
		link, err := l.net.find(s.Number)
		if err != nil {
			return err
		}
		if link != nil && s.Ready {
			continue
		}
		if err := l.storeModulesAsJob(s); err != nil {
			return err
		}
		if err := l.releaseService(ctx, s); err != nil {
			return err
		}
		l.log.Info("a service is gone", "service", s.Name, "instance", s.Instance, "deployed", s.Ready)
	}
	return nil
}

// expectLateRequests makes sweeps search for resources created by a request that reaches the agent after its deployment
// was undone.
func (l *Listener) expectLateRequests() { l.lateRequestsUntil = time.Now().Add(workTimeout) }

// settle removes modules whose deployment was not confirmed or whose service is gone, and restores the config of
// others.
func (l *Listener) settle(ctx context.Context) error {
	now := time.Now()
	over := func(m module) bool {
		waits := m.Pending == pendingPrepared && now.Before(l.prepared[m.Service])
		return m.Pending == pendingCreate || m.Service != "" && !l.state.uses(m.Service) && !waits
	}
	if err := l.removePending(ctx, over); err != nil {
		return err
	}
	for _, m := range l.state.clone().Modules {
		if m.Pending != pendingUpdate {
			continue
		}
		if err := l.restore(ctx, m); err != nil {
			return err
		}
		l.state.confirmModules([]module{m})
		if err := l.save(); err != nil {
			return err
		}
	}
	return nil
}

// removePending removes modules that the agent has, may have, or is about to apply. The agent makes one change at a
// time: when it responds, the unconfirmed request has ended, unless it reaches the agent later (see
// expectLateRequests).
func (l *Listener) removePending(ctx context.Context, which func(module) bool) error {
	var refs []ref
	for _, m := range l.state.Modules {
		if which(m) {
			refs = append(refs, ref{v1.KindModule, resourceOf(m.ID)})
		}
	}
	if len(refs) == 0 {
		return nil
	}
	switch err := l.discard(ctx, refs); {
	case isMissing(err): // then none was removed
		return l.removeModules(ctx, which)
	case err != nil:
		return err
	}
	l.state.Modules = slices.DeleteFunc(l.state.Modules, which)
	return l.save()
}

// restore applies the config from before an update. It does not change a module that the agent rejects or lacks.
func (l *Listener) restore(ctx context.Context, m module) error {
	resource, err := m.resource(l.options)
	if err == nil {
		_, err = l.agent.module(ctx, resource.Metadata.Name)
	}
	if err == nil {
		_, err = l.agent.apply(ctx, nil, []v1.Module{resource})
	}
	var open *unconfirmed
	if err == nil || errors.As(err, &open) {
		return err
	}
	l.log.Warn("the config of a module cannot be restored", "module", resource.Metadata.Name, "error", err)
	return nil
}

// discard removes resources from the agent in one change, except those that a user has taken over by force.
func (l *Listener) discard(ctx context.Context, refs []ref) error {
	refused := l.agent.delete(ctx, refs)
	if !isConflict(refused) {
		return refused
	}
	services, modules, err := l.resources(ctx)
	if err != nil {
		return err
	}
	taken := map[ref]string{}
	for _, s := range services {
		taken[ref{v1.KindService, s.Metadata.Name}] = s.Metadata.Owner
	}
	for _, m := range modules {
		taken[ref{v1.KindModule, m.Metadata.Name}] = m.Metadata.Owner
	}
	ours := slices.DeleteFunc(slices.Clone(refs), func(r ref) bool {
		by, there := taken[r]
		if there && by != owner {
			l.log.Info("a resource stays: a user has taken it over", "kind", r.Kind, "name", r.Name, "owner", by)
		}
		return !there || by != owner
	})
	switch len(ours) {
	case 0:
		return nil
	case len(refs):
		return refused
	}
	return l.agent.delete(ctx, ours)
}

func (l *Listener) resources(ctx context.Context) (services []v1.Service, modules []v1.Module, err error) {
	if services, err = l.agent.services(ctx); err == nil {
		modules, err = l.agent.modules(ctx)
	}
	return services, modules, err
}

// claim sets the integration as the owner of resources that a version without owners has applied. It runs once, since
// afterwards a resource without an owner is a user's. Resources that are not in the file may already have been a
// user's, and stay.
func (l *Listener) claim(ctx context.Context) error {
	if l.state.Claimed {
		return nil
	}
	services, modules, err := l.resources(ctx)
	if err != nil {
		return err
	}
	ours := map[string]bool{proxyResource: l.state.Worker != "", tunnelResource: l.state.Worker != ""}
	for _, s := range l.state.Services {
		ours[s.resourceName()] = true
	}
	for _, m := range l.state.Modules {
		ours[resourceOf(m.ID)] = true
	}
	for _, s := range services {
		if ours[s.Metadata.Name] && s.Metadata.Owner == "" {
			s.Status, s.Metadata.Generation, s.Metadata.ResourceVersion = nil, 0, ""
			l.claimOne(ctx, s.Metadata.Name, []v1.Service{s}, nil)
		}
	}
	for _, m := range modules {
		if ours[m.Metadata.Name] && m.Metadata.Owner == "" {
			m.Status, m.Metadata.Generation, m.Metadata.ResourceVersion = nil, 0, ""
			l.claimOne(ctx, m.Metadata.Name, nil, []v1.Module{m})
		}
	}
	l.state.Claimed = true
	return l.save()
}

// claimOne logs errors. The resource then remains without the owner, like one that a user has taken over.
func (l *Listener) claimOne(ctx context.Context, name string, services []v1.Service, modules []v1.Module) {
	if _, err := l.agent.applyBy(ctx, "force=true&owner="+owner, services, modules); err != nil {
		l.log.Warn("a resource of a version without owners stays without one", "name", name, "error", err)
	}
}

// sweepResources removes the agent's resources without a deployment: after the state file was lost, a removal was
// interrupted, or a request reached the agent late. At the start, it adopts modules for all services instead, since the
// file may have been lost.
func (l *Listener) sweepResources(ctx context.Context, start bool) error {
	services, modules, err := l.resources(ctx)
	if err != nil {
		return err
	}
	names, owners := map[string]bool{}, map[string]bool{"*": true}
	for _, s := range l.state.Services {
		names[s.resourceName()], owners[selector(s.Name)] = true, true
	}
	for _, m := range l.state.Modules {
		names[resourceOf(m.ID)], owners[selector(m.Service)] = true, true
	}
	var refs []ref
	for _, s := range services {
		if _, ours := s.Metadata.Labels[labelInstance]; ours && s.Metadata.Owner == owner && !names[s.Metadata.Name] {
			refs = append(refs, ref{v1.KindService, s.Metadata.Name})
		}
	}
	for _, m := range modules {
		lost := !owners[m.Spec.Attach.Services] || !start && !names[m.Metadata.Name]
		if _, ours := m.Metadata.Labels[labelModule]; ours && m.Metadata.Owner == owner && lost {
			refs = append(refs, ref{v1.KindModule, m.Metadata.Name})
		}
	}
	if len(refs) > 0 {
		if err := l.discard(ctx, refs); err != nil {
			return err
		}
	}
	if !start {
		return nil
	}
	return l.adopt(ctx)
}

// adopt makes the state match the agent: it removes modules that were never applied, and adds those that are missing
// because the file was lost.
func (l *Listener) adopt(ctx context.Context) error {
	known, err := l.presentLocked(ctx)
	if err != nil {
		return err
	}
	there, err := l.agent.modules(ctx)
	if err != nil {
		return err
	}
	for _, r := range there {
		m, ours := fromResource(r)
		if ours {
			l.state.NextID = max(l.state.NextID, m.ID+1) // also past a name that a user has taken over
		}
		if ours && r.Metadata.Owner == owner && !slices.ContainsFunc(known, func(k module) bool { return k.ID == m.ID }) {
			known = append(known, m)
		}
	}
	sort.Slice(known, func(i, j int) bool { return known[i].ID < known[j].ID })
	for _, m := range known {
		l.state.NextID = max(l.state.NextID, m.ID+1)
		l.state.Priority = max(l.state.Priority, m.Priority+1)
	}
	l.state.Modules = known
	return l.save()
}

func fromResource(r v1.Module) (module, bool) {
	name, ours := r.Metadata.Labels[labelModule]
	var id int
	if n, err := fmt.Sscanf(r.Metadata.Name, resourcePrefix+"%d", &id); !ours || n != 1 || err != nil {
		return module{}, false
	}
	if labelValue(r.Spec.Package) == name { // a label cannot contain a reference
		name = r.Spec.Package
	}
	var config any
	if r.Spec.Config != nil {
		config = r.Spec.Config
	}
	return module{ID: id, Name: name, Priority: r.Spec.Order.Priority, Config: config}, r.Spec.Attach.Services == "*"
}
