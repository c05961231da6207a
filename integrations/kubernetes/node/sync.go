// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
	"github.com/kerb-edge/kerb/integrations/kubernetes/names"
)

// Intervals of synchronisation with the agent, in addition to after each change.
const (
	awaitEvery    = 200 * time.Millisecond // while pods start: kerb-cni may apply a service at any moment
	awaitFor      = 2 * time.Minute        // a pod without a service by then uses the host network, or does not start
	evaluateEvery = 2 * time.Second        // new versions in a rollout
	idleEvery     = 5 * time.Second        // a pod's sandbox may be replaced without an event of the API server
	fullEvery     = time.Minute            // apply all modules and read their status: another client may have changed them
)

// syncer synchronises the agent with the state.
type syncer struct {
	state   *state
	agent   agent
	confirm *confirmer // nil in tests without an API server
	virtual *virtual   // nil in tests of modules alone
	guard   *guard     // nil in tests without rollouts
	ready   *readiness // nil in tests without an API server
	puller  *puller    // nil in tests without packages of registries
	events  *podEvents // nil in tests without an API server
	log     *slog.Logger
	figures roundStats
	// connect is called once, when the agent has its modules: a container runtime that connects earlier would wait for
	// them, and time out. If no modules are known, it is called immediately. It is nil without NRI, and after the call.
	connect func()

	applied      int                  // value of rules whose modules the agent has
	pruned       bool                 // all other modules were deleted with that
	lastApply    time.Time            // time of the last complete apply and read of modules
	info         v1.NodeStatus        // of the agent
	refused      []api.ModuleReport   // modules that were not applied
	reports      []api.ModuleReport   // refused, and modules that do not run
	failed       error                // of the agent itself with one module: a retry may succeed
	absentClosed []api.Module         // refused modules without an earlier version in the agent: their pods are held
	absentOpen   []api.Module         // as absentClosed, but with failurePolicy open: pods start without them
	fullNames    map[string]string    // NAMESPACE/NAME of namespaced Modules, by names on the node
	generations  map[string]int64     // metadata.generation of modules
	await        map[string]time.Time // pods without an admitted service, and since when

	adopting map[string]adoptAttempt // sandboxes that are not adopted yet, by ID

	have   map[string]v1.Package // usable packages of the node, by reference with digest
	owned  []string              // references of packages that this program had pulled
	listed time.Time             // time of the last list of packages
	pulled int                   // the puller's count at that time
}

// reconcile runs one round. It returns the longest time until the next one.
func (s *syncer) reconcile(ctx context.Context, v view) (time.Duration, error) {
	if !v.known {
		return idleEvery, nil // pods wait: before the first list it is unknown which modules select them
	}
	if v.rules != s.applied || v.complete && !s.pruned || s.state.clock.since(s.lastApply) >= fullEvery {
		if err := s.beginTrials(ctx, v); err != nil {
			return 0, err
		}
		if err := s.syncModules(ctx, v); err != nil {
			s.applied = -1
			return 0, err
		}
		s.applied, s.pruned = v.rules, v.complete && s.failed == nil
	} else if len(s.reports) > len(s.refused) { // check whether they run by now
		if err := s.examine(ctx); err != nil {
			return 0, err
		}
	}
	watched, err := s.evaluateTrials(ctx, v)
	if err != nil {
		return 0, err
	}
	if err := s.syncServices(ctx, v); err != nil {
		return 0, err
	}
	s.check(ctx, v)
	if s.virtual != nil {
		s.virtual.setNeeded(ctx, v)
	}
	if s.failed != nil {
		s.applied = -1 // apply all modules again after a backoff
		return 0, s.failed
	}
	for _, since := range s.await {
		if time.Since(since) < awaitFor {
			return awaitEvery, nil
		}
	}
	if watched {
		return evaluateEvery, nil
	}
	return idleEvery, nil
}

// syncModules applies all modules in one request. If the agent rejects it, or fails, each module is applied on its own,
// so that an invalid one does not block others. The running version of a rejected module keeps running.
func (s *syncer) syncModules(ctx context.Context, v view) error {
	if err := s.pullMissing(ctx, v); err != nil {
		return err
	}
	want := s.wanted(v)
	reports := want.rejected
	s.failed = nil
	err := s.agent.applyModules(ctx, want.modules, v.complete && len(reports) == 0)
	if answered(err) {
		var more []api.ModuleReport
		if more, err = s.applyEach(ctx, want.modules, want.generations); err == nil {
			reports = append(reports, more...)
		}
	}
	if err == nil && v.complete && len(reports) > 0 {
		err = s.prune(ctx, want.generations)
	}
	if err != nil {
		return err
	}
	if v.complete {
		s.removeUnused(ctx, v)
	}
	s.refused, s.generations, s.fullNames, s.lastApply = reports, want.generations, want.fullNames, s.state.clock.now()
	s.absentClosed, s.absentOpen = nil, nil
	for _, m := range v.modules {
		switch refused := func(r api.ModuleReport) bool { return r.Name == nodeName(m) }; {
		case !slices.ContainsFunc(reports, refused):
		case m.Spec.FailurePolicy == v1.FailOpen:
			s.absentOpen = append(s.absentOpen, m)
		default:
			s.absentClosed = append(s.absentClosed, m)
		}
	}
	return s.examine(ctx)
}

// desired has the modules that the agent should run, by name.
type desired struct {
	modules     []v1.Module
	rejected    []api.ModuleReport // modules that were rejected here
	generations map[string]int64   // metadata.generation, also of rejected modules that keep running
	fullNames   map[string]string  // NAMESPACE/NAME of namespaced Modules, by names on the node
}

// wanted translates the modules of a view whose packages the node has.
func (s *syncer) wanted(v view) desired {
	d := desired{modules: []v1.Module{names.PendingModule()}, generations: map[string]int64{names.Pending: 0},
		fullNames: map[string]string{}}
	inNamespace := map[string]int{}
	for _, m := range v.modules {
		name, namespace := nodeName(m), m.Metadata.Namespace
		d.generations[name] = m.Metadata.Generation
		module, reason, err := translate(m, v.namespaces)
		if err == nil && (namespace == "" || !onLoopback(m.Spec.Package.Image)) {
			reason, err = s.packageAvailable(v, m.Spec.Package.Image)
		}
		if namespace != "" {
			inNamespace[namespace]++
			d.fullNames[name] = namespace + "/" + m.Metadata.Name
			if err == nil {
				reason, err = allowed(m, s.have)
			}
			if n := inNamespace[namespace]; n > api.MaxModules {
				reason, err = api.TooMany, fmt.Errorf("a namespace has at most %d Modules, and this is number %d in the order "+
					"of creation: delete some, or use a ClusterModule", api.MaxModules, n)
				// It is removed from the agent, too. Otherwise maxModules would limit only changes, not running modules.
				delete(d.generations, name)
			}
		}
		if err != nil {
			d.rejected = append(d.rejected, api.ModuleReport{Name: name, Generation: m.Metadata.Generation, Reason: reason,
				Message: err.Error()})
			continue
		}
		d.modules = append(d.modules, module)
	}
	return d
}

func (s *syncer) applyEach(ctx context.Context, all []v1.Module, generations map[string]int64) ([]api.ModuleReport,
	error) {
	var reports []api.ModuleReport
	for _, m := range all {
		err := s.agent.applyModules(ctx, []v1.Module{m}, false)
		detail, refused := refusal(err)
		switch name := m.Metadata.Name; {
		case err == nil:
		case name == names.Pending, !answered(err): // pods would start unprotected, or the agent is unreachable
			return nil, err
		case refused:
			reports = append(reports, api.ModuleReport{Name: name, Generation: generations[name], Reason: api.Refused,
				Message: detail})
		default:
			s.failed = fmt.Errorf("module %s: %w", name, err)
			reports = append(reports, api.ModuleReport{Name: name, Generation: generations[name], Reason: api.AgentError,
				Message: s.failed.Error()})
		}
	}
	return reports, nil
}

// prune deletes modules without a ClusterModule or Module.
func (s *syncer) prune(ctx context.Context, keep map[string]int64) error {
	all, err := s.agent.modules(ctx)
	if err != nil {
		return err
	}
	var refs []ref
	for _, m := range all {
		if _, ok := keep[m.Metadata.Name]; m.Metadata.Owner == names.Owner && !ok {
			refs = append(refs, ref{Kind: v1.KindModule, Name: m.Metadata.Name})
		}
	}
	if len(refs) == 0 {
		return nil
	}
	return s.agent.delete(ctx, names.Owner, refs...)
}

// examine adds reports about accepted modules that do not run. A module that selects no pod of the node is not
// reported.
func (s *syncer) examine(ctx context.Context) error {
	all, err := s.agent.modules(ctx)
	if err != nil {
		return err
	}
	if s.info, err = s.agent.status(ctx); err != nil {
		return err
	}
	s.guard.sample(all)
	reports := slices.Clone(s.refused)
	runs := func(b api.Module) bool {
		return slices.ContainsFunc(all, func(m v1.Module) bool {
			return m.Metadata.Owner == names.Owner && m.Metadata.Name == nodeName(b)
		})
	}
	s.absentClosed, s.absentOpen = slices.DeleteFunc(s.absentClosed, runs), slices.DeleteFunc(s.absentOpen, runs)
	for _, m := range all {
		name := m.Metadata.Name
		reported := slices.ContainsFunc(reports, func(r api.ModuleReport) bool { return r.Name == name })
		if m.Metadata.Owner != names.Owner || reported || m.Status == nil {
			continue
		}
		for _, c := range m.Status.Conditions {
			if isFailure(c) {
				reports = append(reports, api.ModuleReport{Name: name, Generation: s.generations[name], Reason: c.Reason,
					Message: c.Message})
			}
		}
	}
	s.reports = reports
	return nil
}

// isFailure reports whether a condition of a module means that it does not work on this node. A module without a pod to
// attach to does not count as failed.
func isFailure(c v1.Condition) bool {
	return c.Status == "False" && (c.Type == "Ready" && c.Reason != "NoAttachPoint" ||
		c.Type == "Placed" && c.Reason == api.OwnCgroupsOnly)
}

// maxServicesPerRequest limits the services in one request. At the start on a node with thousands of pods, one request
// for all of them would take more memory than everything else.
const maxServicesPerRequest = 250

// batch collects services up to the size of one request.
type batch struct {
	services []v1.Service
	apply    func([]v1.Service) error
}

func (b *batch) add(s v1.Service) error {
	if b.services = append(b.services, s); len(b.services) < maxServicesPerRequest {
		return nil
	}
	return b.flush()
}

func (b *batch) flush() error {
	all := b.services
	b.services = nil
	return b.apply(all)
}

// serviceSync is one pass over the services of pods.
type serviceSync struct {
	view
	starts    starts
	admitted  map[string]bool   // UIDs of pods
	sandboxes map[string]string // by service, sandbox IDs of admitted pods that the container runtime has reported
	change    batch
}

// syncServices gives services the labels of their pods, adopts pods without a service, and deletes services whose pod
// and network namespace no longer exist.
func (s *syncer) syncServices(ctx context.Context, v view) error {
	c := serviceSync{view: v, starts: s.state.currentStarts()} // later starts are for the next round
	pods, current := s.state.podServices(v.rules)
	if !current {
		return nil // the next round is due, and applies the modules first
	}
	c.admitted, c.sandboxes = make(map[string]bool, len(pods.aliases.uids)), map[string]string{}
	c.change.apply = func(all []v1.Service) error { return s.change(ctx, all, c.starts) }
	var gone []ref
	var unconfirmed []podService
	s.events.begin()
	err := s.agent.eachService(ctx, func(service v1.Service) error {
		pending := names.IsPending(service.Metadata.Labels)
		p, ok := pods.of(service.Metadata.Name, pending)
		ok = ok && (!p.mirror || p.isOf(service))
		if ok && p.held == nil {
			p.held = s.holdOfRejected(v, p)
		}
		switch stray := pods.adoption.observe(service); {
		case stray || !ok:
			if v.complete && (stray || vanished(service)) {
				gone = append(gone, ref{v1.KindService, service.Metadata.Name, service.Metadata.ResourceVersion})
			}
		case p.held != nil:
			c.starts.hold(service.Metadata.Name, p.held)
			s.events.held(p, pending)
		case p.unconfirmed && s.confirm != nil && pending:
			unconfirmed = append(unconfirmed, p)
		default:
			return s.admit(&c, p, service)
		}
		return nil
	})
	if err != nil {
		return err
	}
	adopt := s.candidates(v, pods)
	s.events.end(c.admitted)
	if len(unconfirmed) > 0 {
		s.confirm.start(ctx, s.state, v, unconfirmed)
	}
	pods.updateWaiting(s.await, c.admitted)
	s.state.forget(c.sandboxes, pods.adoption.done)
	if err := c.change.flush(); err != nil {
		return err
	}
	c.starts.releaseOthers()
	if err := s.remove(ctx, gone); err != nil {
		return err
	}
	return s.adopt(ctx, v, adopt) // last: a failed adoption must not delay the rest
}

// admit gives a service the labels of its pod.
func (s *syncer) admit(c *serviceSync, p podService, service v1.Service) error {
	c.admitted[p.uid] = true
	labels := names.Admit(service.Metadata.Labels, p.labels.set())
	if !p.pending && p.sandbox != "" {
		c.sandboxes[service.Metadata.Name] = p.sandbox
	}
	if maps.Equal(labels, service.Metadata.Labels) || p.runtimeOnly && !p.pending {
		c.starts.admitted(service)
		return nil
	}
	if p.pending {
		s.log.Info("pod admitted", "pod", p.namespace+"/"+p.name, "reportedByRuntime", p.sandbox != "")
		s.events.admitted(p, s.missing(c.view, p))
	}
	service.Metadata.Labels, service.Status = labels, nil
	return c.change.add(service)
}

// named reports whether the pod has this name.
func (p podService) named(of names.Pod) bool { return of.Namespace == p.namespace && of.Name == p.name }

// isOf reports whether the service's labels, which come from the container runtime, name this pod.
func (p podService) isOf(s v1.Service) bool {
	of := s.Metadata.Labels
	return of[names.LabelNamespace] == p.namespace && of[names.LabelPod] == p.name
}

// vanished reports whether the network namespace of a service no longer exists. A service without interfaces does not
// suffice: the agent may not have observed it since its start, and its processes may send packets.
func vanished(s v1.Service) bool {
	return s.Status != nil && slices.ContainsFunc(s.Status.Conditions, func(c v1.Condition) bool {
		return c.Type == "Ready" && c.Reason == "NotFound"
	})
}

// holdOfRejected returns the hold of a pod that a rejected module would select: all packets of the pod stay dropped. A
// selector that cannot be parsed may select any pod, and so may a Module beyond the limits. A running pod keeps its
// labels. Namespaced Modules do not hold running pods: their authors could otherwise evade ClusterModules.
func (s *syncer) holdOfRejected(v view, p podService) *hold {
	if p.pending && v.truncated[p.namespace] {
		return manyModules
	}
	if err := s.selectedByAny(s.absentClosed, v, p); err != nil {
		return &hold{err, true}
	}
	return nil
}

// missing returns an error if a pod is admitted without a module that selects it.
func (s *syncer) missing(v view, p podService) error { return s.selectedByAny(s.absentOpen, v, p) }

// selectedByAny returns an error that names the first module that selects a pod, or nil if none does.
func (s *syncer) selectedByAny(modules []api.Module, v view, p podService) error {
	for _, m := range modules {
		if (p.pending || m.Metadata.Namespace == "") && selects(m, v.namespaces, p.namespace, p.labels.set) {
			return fmt.Errorf("module %s, which selects it, does not run on this node: see the KerbNode %s",
				strings.TrimPrefix(m.Metadata.Namespace+"/"+m.Metadata.Name, "/"), s.state.node)
		}
	}
	return nil
}

// selects reports whether a module selects a pod, or may do so because its selector is invalid or the namespace
// unknown.
func selects(m api.Module, namespaces map[string]labels, namespace string, set func() map[string]string) bool {
	of := m.Spec.Attach.Pods
	if m.Metadata.Namespace != "" {
		if m.Metadata.Namespace != namespace {
			return false
		}
		of.Namespaces = nil
	}
	if _, err := selector(m, namespaces); err != nil {
		return true
	}
	in, known := namespaces[namespace]
	return (of.Namespaces == nil || !known || matches(*of.Namespaces, in.set())) &&
		(of.Pods == nil || matches(*of.Pods, set()))
}

// change applies services in one request, and one by one if the agent rejects it: a service may have changed since it
// was read.
func (s *syncer) change(ctx context.Context, services []v1.Service, starts starts) error {
	if len(services) == 0 {
		return nil
	}
	err := s.agent.applyServices(ctx, services)
	if _, refused := refusal(err); err != nil && !refused {
		return err
	}
	for _, service := range services {
		if err == nil {
			starts.admitted(service)
			continue
		}
		alone := s.agent.applyServices(ctx, []v1.Service{service})
		if detail, refused := refusal(alone); refused {
			s.log.Warn("the agent refuses the labels of a pod", "service", service.Metadata.Name, "error", detail)
			starts.hold(service.Metadata.Name, &hold{fmt.Errorf("the agent refuses its labels: %s", detail), true})
		} else if alone != nil {
			return alone
		} else {
			starts.admitted(service)
		}
	}
	return nil
}

// remove deletes services one by one: each may have been replaced since it was read.
func (s *syncer) remove(ctx context.Context, gone []ref) error {
	for _, of := range gone {
		err := s.agent.delete(ctx, names.OwnerPods, of)
		if detail, refused := refusal(err); refused {
			s.log.Info("the service of a deleted pod stays", "service", of.Name, "error", detail)
		} else if err != nil {
			return err
		}
	}
	return nil
}

// problem summarizes the reports, naming at most three modules.
func problem(reports []api.ModuleReport) string {
	var all []string
	for _, r := range reports[:min(3, len(reports))] {
		all = append(all, r.Name+": "+r.Message)
	}
	if more := len(reports) - len(all); more > 0 {
		all = append(all, "and "+plural(more, "more module"))
	}
	return strings.Join(all, "; ")
}
