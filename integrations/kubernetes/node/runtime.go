// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"slices"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
	"github.com/kerb-edge/kerb/integrations/kubernetes/names"
	"github.com/kerb-edge/kerb/integrations/kubernetes/nri"
)

// containerRuntime has the reports of the container runtime through NRI. It is part of the state.
type containerRuntime struct {
	enabled bool
	name    string                   // of the runtime; empty while it is not connected
	problem string                   // why it is not connected
	pods    map[string]sandbox       // by service name, until admitted
	listed  map[string]listedSandbox // by ID: sandboxes with a network namespace when the runtime connected
	starts  []*start
}

// sandbox is a pod as the runtime reports it. Its labels admit the pod. Labels of the API server, which may have
// changed since, have precedence, and only they change an admitted pod.
type sandbox struct {
	pod
	uid, id string
}

// start is a new sandbox whose containers wait until the modules of its pod are attached.
type start struct {
	service, sandbox string
	decided          chan error // receives one value
	reason           error      // why it waits
}

// hold is the reason why a pod stays pending, so that all its packets are dropped.
type hold struct {
	error
	lasting bool // not expected to change soon
}

// Holds that do not depend on a pod.
var (
	noNamespace     = &hold{errors.New("the labels of its namespace are not known yet"), false}
	modulesChanging = &hold{errors.New("modules of its namespace are being changed"), false}
	notInSnapshot   = &hold{errors.New("kerb-kube-node has not reached the API server since its start: there may be " +
		"modules that it does not know"), true}
	manyLabels = &hold{fmt.Errorf("it has over %d labels, or %d bytes of them: remove some", maxLabels, maxLabelBytes),
		true}
	manyModules = &hold{fmt.Errorf("its namespace has over %d Modules, of which only the first are read: delete some, "+
		"and wait for up to %.0f minutes", maxModulesKept, relistEvery.Minutes()), true}
	noService = &hold{errors.New("it is no service of the agent: kerb-cni has to be a plugin of the node's network; see " +
		"kerb-cni install"), true}
	sandboxReplaced = &hold{errors.New("a later sandbox of the pod has replaced it"), true}
)

// runtimePods updates a state with the runtime's events.
type runtimePods struct {
	*state
	log *slog.Logger
}

var _ nri.Pods = runtimePods{}

func serviceOf(p nri.Pod) string {
	return names.Pod{Namespace: p.Namespace, Name: p.Name, UID: p.UID}.Service()
}

func sandboxOf(p nri.Pod) sandbox {
	return sandbox{podOf(api.ObjectMeta{Namespace: p.Namespace, Name: p.Name, Labels: p.Labels}), p.UID, p.ID}
}

// Replace replaces all reports of the runtime.
func (r runtimePods) Replace(name string, all iter.Seq[nri.Pod]) {
	pods, there := map[string]sandbox{}, map[string]listedSandbox{}
	for p := range all {
		pods[serviceOf(p)] = sandboxOf(p)
		if p.Netns != "" {
			there[p.ID] = listedOf(p)
		}
	}
	r.log.Info("labels of new pods come from the container runtime", "runtime", name, "pods", len(pods))
	r.change(func(now *containerRuntime) { now.name, now.problem, now.pods, now.listed = name, "", pods, there })
}

// Start returns when the modules of a new sandbox's pod are attached. Until the context ends, it waits only for
// conditions that are expected to change soon, since the runtime reports no other pods in the meantime.
func (r runtimePods) Start(ctx context.Context, p nri.Pod) error {
	s := &start{serviceOf(p), p.ID, make(chan error, 1), errors.New("kerb-kube-node has not synchronized yet, or waits " +
		"for the agent")}
	r.change(func(now *containerRuntime) {
		now.pods[s.service] = sandboxOf(p)
		now.starts = append(now.starts, s)
	})
	select {
	case err := <-s.decided:
		return err
	case <-ctx.Done():
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.runtime.end(s)
	return s.reason
}

// Stop removes a sandbox, unless another one of the pod has replaced it.
func (r runtimePods) Stop(p nri.Pod) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if service := serviceOf(p); r.runtime.pods[service].id == p.ID {
		delete(r.runtime.pods, service)
	}
	delete(r.runtime.listed, p.ID)
}

// Disconnected removes all reports: the runtime reports everything again after it has reconnected.
func (r runtimePods) Disconnected(err error) {
	r.change(func(now *containerRuntime) {
		if now.name != "" || now.problem == "" {
			r.log.Warn("labels of new pods come from the API server: the container runtime is not connected", "error", err)
		}
		now.name, now.problem, now.pods, now.listed = "", err.Error(), map[string]sandbox{}, nil
	})
}

// change updates the reports of the runtime, and triggers an immediate synchronisation.
func (s *state) change(f func(*containerRuntime)) {
	s.mu.Lock()
	f(&s.runtime)
	s.mu.Unlock()
	select {
	case s.urgent <- struct{}{}:
	default:
	}
}

// end removes a start that is decided or has timed out.
func (r *containerRuntime) end(s *start) {
	r.starts = slices.DeleteFunc(r.starts, func(other *start) bool { return other == s })
}

// forget removes admitted pods, by services and their sandbox IDs, and sandboxes that need no adoption, by ID. The
// runtime reports new ones.
func (s *state) forget(admitted map[string]string, done []string) {
	s.mu.Lock()
	for service, id := range admitted {
		if s.runtime.pods[service].id == id {
			delete(s.runtime.pods, service)
		}
	}
	if len(s.runtime.pods) == 0 {
		s.runtime.pods = map[string]sandbox{} // maps do not shrink
	}
	for _, id := range done {
		delete(s.runtime.listed, id)
	}
	if len(s.runtime.listed) == 0 {
		s.runtime.listed = nil
	}
	s.mu.Unlock()
	if len(admitted) > shrinkAbove {
		freeOSMemory()
	}
}

// shrinkAbove is the number of admitted pods above which memory is returned to the OS.
const shrinkAbove = 1000

// currentStarts returns the current starts.
func (s *state) currentStarts() starts {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := starts{state: s, of: map[string][]*start{}}
	for _, one := range s.runtime.starts {
		all.of[one.service] = append(all.of[one.service], one)
	}
	return all
}

// setStartReason sets the reason why starts wait.
func (s *state) setStartReason(reason error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range s.runtime.starts {
		one.reason = reason
	}
}

// starts are the waiting starts of one round, by service name.
type starts struct {
	state *state
	of    map[string][]*start
}

// admitted completes the starts of a service whose pod has its modules.
func (all starts) admitted(s v1.Service) {
	for _, one := range all.of[s.Metadata.Name] {
		if names.OfSandbox(s.Metadata.Labels[names.LabelAttachment], one.sandbox) {
			all.decide(one, nil)
		} else {
			all.decide(one, sandboxReplaced)
		}
	}
	delete(all.of, s.Metadata.Name)
}

// hold sets the reason why the pod of a service is held. If the hold is lasting, its starts fail.
func (all starts) hold(service string, why *hold) {
	for _, one := range all.of[service] {
		if why.lasting {
			all.decide(one, why)
			continue
		}
		all.state.mu.Lock()
		one.reason = why
		all.state.mu.Unlock()
	}
	delete(all.of, service)
}

// releaseOthers fails the starts of pods without a service.
func (all starts) releaseOthers() {
	for service := range all.of {
		all.hold(service, noService)
	}
}

func (all starts) decide(s *start, err error) {
	all.state.mu.Lock()
	all.state.runtime.end(s)
	all.state.mu.Unlock()
	s.decided <- err
}

// runtimeCondition returns the condition about the source of labels of new pods, or nil if NRI is disabled.
func (s *state) runtimeCondition() *api.Condition {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.runtime
	switch {
	case !r.enabled || r.name == "" && r.problem == "":
		return nil
	case r.name == "":
		return &api.Condition{Type: "RuntimeLabels", Status: "False", Reason: "NotConnected", Message: truncate(
			"labels of new pods come from the API server only: no container runtime with NRI: " + r.problem)}
	}
	return &api.Condition{Type: "RuntimeLabels", Status: "True", Reason: "Connected",
		Message: truncate("labels of new pods come from " + r.name + " before containers start")}
}
