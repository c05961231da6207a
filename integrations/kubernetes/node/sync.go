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
	awaitEvery = 200 * time.Millisecond // while pods start: kerb-cni may apply a service at any moment
	awaitFor   = 2 * time.Minute        // a pod that has no service by then is on the host network, or does not start
	judgeEvery = 2 * time.Second        // new versions in a rollout
	idleEvery  = 5 * time.Second        // a pod's sandbox may be replaced without an event of the API server
	fullEvery  = time.Minute            // modules: whether they run, and whether another client has changed them
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
	figures figures
	// connect is called once, when the agent has its modules: a container runtime that connects earlier would wait for
	// them, and fail. If no modules are known, it is called immediately. It is nil without NRI, and after the call.
	connect func()

	applied int                  // rules of the state whose modules the agent has
	pruned  bool                 // that was with everything else deleted
	full    time.Time            // when modules were applied and read last
	info    v1.NodeStatus        // of the agent
	refused []api.ModuleReport   // modules that were not applied
	reports []api.ModuleReport   // those, and modules that do not run
	failed  error                // of the agent itself with one of them: it may succeed later
	barred  []api.Module         // refused modules without an earlier version in the agent
	absent  []api.Module         // the same, with failurePolicy open: pods start without them
	titles  map[string]string    // NAMESPACE/NAME of modules of namespaces
	numbers map[string]int64     // metadata.generation of modules
	await   map[string]time.Time // pods without an admitted service, and since when

	adopting map[string]adopting // sandboxes that are not adopted yet, by their IDs

	have   map[string]v1.Package // of the node, that can be used, by references with digests
	owned  []string              // references of packages that this program pulled
	listed time.Time             // when the agent has listed them last
	pulled int                   // how many the puller had pulled then
}

// roundOf makes one comparison. It returns when the next one is due at the latest.
func (s *syncer) roundOf(ctx context.Context, v view) (time.Duration, error) {
	if !v.known {
		return idleEvery, nil // pods wait: before the first list it is unknown which modules apply to them
	}
	if v.rules != s.applied || v.complete && !s.pruned || s.state.clock.since(s.full) >= fullEvery {
		if err := s.begin(ctx, v); err != nil {
			return 0, err
		}
		if err := s.syncModules(ctx, v); err != nil {
			s.applied = -1
			return 0, err
		}
		s.applied, s.pruned = v.rules, v.complete && s.failed == nil
	} else if len(s.reports) > len(s.refused) { // does it still not run?
		if err := s.examine(ctx); err != nil {
			return 0, err
		}
	}
	watched, err := s.judge(ctx, v)
	if err != nil {
		return 0, err
	}
	if err := s.syncServices(ctx, v); err != nil {
		return 0, err
	}
	s.check(ctx, v)
	if s.virtual != nil {
		s.virtual.need(ctx, v)
	}
	if s.failed != nil {
		s.applied = -1 // all modules again, after a pause
		return 0, s.failed
	}
	for _, since := range s.await {
		if time.Since(since) < awaitFor {
			return awaitEvery, nil
		}
	}
	if watched {
		return judgeEvery, nil
	}
	return idleEvery, nil
}

// syncModules applies all modules together. If the agent refuses that, or fails, it applies them one by one, so that a
// wrong one keeps no other away; what runs of a refused one keeps running.
func (s *syncer) syncModules(ctx context.Context, v view) error {
	if err := s.pullMissing(ctx, v); err != nil {
		return err
	}
	want := s.wanted(v)
	reports := want.wrong
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
		s.dispose(ctx, v)
	}
	s.refused, s.numbers, s.titles, s.full = reports, want.generations, want.titles, s.state.clock.now()
	s.barred, s.absent = nil, nil
	for _, m := range v.modules {
		switch refused := func(r api.ModuleReport) bool { return r.Name == nodeName(m) }; {
		case !slices.ContainsFunc(reports, refused):
		case m.Spec.FailurePolicy == v1.FailOpen:
			s.absent = append(s.absent, m)
		default:
			s.barred = append(s.barred, m)
		}
	}
	return s.examine(ctx)
}

// desired has the modules that the agent should run, by name.
type desired struct {
	modules     []v1.Module
	wrong       []api.ModuleReport // of modules that are not among them
	generations map[string]int64   // metadata.generation, of the wrong ones, too, but for those that are too many
	titles      map[string]string  // NAMESPACE/NAME of modules of namespaces
}

// wanted translates the modules of a view whose packages the node has.
func (s *syncer) wanted(v view) desired {
	d := desired{modules: []v1.Module{names.PendingModule()}, generations: map[string]int64{names.Pending: 0},
		titles: map[string]string{}}
	inNamespace := map[string]int{}
	for _, m := range v.modules {
		name, namespace := nodeName(m), m.Metadata.Namespace
		d.generations[name] = m.Metadata.Generation
		module, reason, err := translate(m, v.namespaces)
		if err == nil && (namespace == "" || !onLoopback(m.Spec.Package.Image)) {
			reason, err = s.provided(v, m.Spec.Package.Image)
		}
		if namespace != "" {
			inNamespace[namespace]++
			d.titles[name] = namespace + "/" + m.Metadata.Name
			if err == nil {
				reason, err = allowed(m, s.have)
			}
			if n := inNamespace[namespace]; n > api.MaxModules {
				reason, err = api.TooMany, fmt.Errorf("a namespace has at most %d Modules, and this is number %d in the order "+
					"of creation: delete some, or use a ClusterModule", api.MaxModules, n)
				// What the node has of it is deleted: the limit would otherwise be one of changes, and not of modules that run.
				delete(d.generations, name)
			}
		}
		if err != nil {
			d.wrong = append(d.wrong, api.ModuleReport{Name: name, Generation: m.Metadata.Generation, Reason: reason,
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
		case name == names.Pending, !answered(err): // pods would start unprotected; the agent is away
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

// prune deletes modules that no ClusterModule or Module asks for.
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

// examine adds problems of modules that the agent has accepted. A module that selects no pod of the node has no
// problem.
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
	s.barred, s.absent = slices.DeleteFunc(s.barred, runs), slices.DeleteFunc(s.absent, runs)
	for _, m := range all {
		name := m.Metadata.Name
		reported := slices.ContainsFunc(reports, func(r api.ModuleReport) bool { return r.Name == name })
		if m.Metadata.Owner != names.Owner || reported || m.Status == nil {
			continue
		}
		for _, c := range m.Status.Conditions {
			if isFailure(c) {
				reports = append(reports, api.ModuleReport{Name: name, Generation: s.numbers[name], Reason: c.Reason,
					Message: c.Message})
			}
		}
	}
	s.reports = reports
	return nil
}

// isFailure reports whether a condition of a module means that it does not work on this node. A module without a pod to
// be attached to does not count as failed.
func isFailure(c v1.Condition) bool {
	return c.Status == "False" && (c.Type == "Ready" && c.Reason != "NoAttachPoint" ||
		c.Type == "Placed" && c.Reason == api.OwnCgroupsOnly)
}

// changeAtOnce limits the services in one request: at the start on a node with thousands of pods, one request for all
// of them would take more memory than everything else.
const changeAtOnce = 250

// batch collects services until there are as many as one request changes.
type batch struct {
	services []v1.Service
	apply    func([]v1.Service) error
}

func (b *batch) add(s v1.Service) error {
	if b.services = append(b.services, s); len(b.services) < changeAtOnce {
		return nil
	}
	return b.flush()
}

func (b *batch) flush() error {
	all := b.services
	b.services = nil
	return b.apply(all)
}

// comparison is one of the services of pods.
type comparison struct {
	view
	starts    starts
	admitted  map[string]bool   // UIDs of pods
	sandboxes map[string]string // of those, that the container runtime has reported, by services
	change    batch
}

// syncServices gives services the labels of their pods, adopts pods that have none, and deletes those whose pod and
// network namespace are gone.
func (s *syncer) syncServices(ctx context.Context, v view) error {
	c := comparison{view: v, starts: s.state.starting()} // those that come later are not among the pods
	pods, current := s.state.podServices(v.rules)
	if !current {
		return nil // the next round, which is due, applies the modules first
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
		switch stray := pods.adoption.found(service); {
		case stray || !ok:
			if v.complete && (stray || vanished(service)) {
				gone = append(gone, ref{v1.KindService, service.Metadata.Name, service.Metadata.ResourceVersion})
			}
		case p.held != nil:
			c.starts.held(service.Metadata.Name, p.held)
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
	pods.remember(s.await, c.admitted)
	s.state.forget(c.sandboxes, pods.adoption.done)
	if err := c.change.flush(); err != nil {
		return err
	}
	c.starts.rest()
	if err := s.remove(ctx, gone); err != nil {
		return err
	}
	return s.adopt(ctx, v, adopt) // last: a pod that cannot be adopted delays nothing else
}

// admit gives a service the labels of its pod.
func (s *syncer) admit(c *comparison, p podService, service v1.Service) error {
	c.admitted[p.uid] = true
	labels := names.Admit(service.Metadata.Labels, p.labels.set())
	if !p.pending && p.sandbox != "" {
		c.sandboxes[service.Metadata.Name] = p.sandbox
	}
	if maps.Equal(labels, service.Metadata.Labels) || p.unshown && !p.pending {
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

// named reports whether a pod has this one's name.
func (p podService) named(of names.Pod) bool { return of.Namespace == p.namespace && of.Name == p.name }

// isOf reports whether the container runtime has called the service's pod by the name of this one.
func (p podService) isOf(s v1.Service) bool {
	of := s.Metadata.Labels
	return of[names.LabelNamespace] == p.namespace && of[names.LabelPod] == p.name
}

// vanished reports whether the network namespace of a service is gone. A service without interfaces may be one that the
// agent has not observed since its start, whose processes can send packets.
func vanished(s v1.Service) bool {
	return s.Status != nil && slices.ContainsFunc(s.Status.Conditions, func(c v1.Condition) bool {
		return c.Type == "Ready" && c.Reason == "NotFound"
	})
}

// holdOfRejected returns the hold of a pod that a module would select which the agent has rejected: the pod keeps
// dropping everything. A selector that cannot be parsed may select any pod, and so may a Module that is not kept. A
// running pod keeps the labels that it had. Modules do not hold it: their authors could keep it away from
// ClusterModules.
func (s *syncer) holdOfRejected(v view, p podService) *hold {
	if p.pending && v.more[p.namespace] {
		return manyModules
	}
	if err := s.without(s.barred, v, p); err != nil {
		return &hold{err, true}
	}
	return nil
}

// missing returns an error if a pod is admitted without a module that selects it.
func (s *syncer) missing(v view, p podService) error { return s.without(s.absent, v, p) }

// without returns an error that names the first of some modules that selects a pod; nil if none does.
func (s *syncer) without(modules []api.Module, v view, p podService) error {
	for _, m := range modules {
		if (p.pending || m.Metadata.Namespace == "") && selects(m, v.namespaces, p.namespace, p.labels.set) {
			return fmt.Errorf("module %s, which selects it, does not run on this node: see the KerbNode %s",
				strings.TrimPrefix(m.Metadata.Namespace+"/"+m.Metadata.Name, "/"), s.state.node)
		}
	}
	return nil
}

// selects reports whether a module selects a pod, or may do so: its selector is wrong, or the namespace not known.
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

// change applies services together, and one by one if one of them has changed meanwhile.
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
			starts.held(service.Metadata.Name, &hold{fmt.Errorf("the agent refuses its labels: %s", detail), true})
		} else if alone != nil {
			return alone
		} else {
			starts.admitted(service)
		}
	}
	return nil
}

// remove deletes services one by one: each may have been replaced meanwhile.
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
