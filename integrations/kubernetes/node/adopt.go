// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"slices"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/integrations/kubernetes/names"
	"github.com/kerb-edge/kerb/integrations/kubernetes/nri"
)

// listedSandbox is a sandbox that existed when the container runtime connected, and whose pod has no service yet:
// kerb-cni creates none for a pod that is older than the plugin in its network.
type listedSandbox struct {
	names.Pod
	service, id, netns string
}

func listedOf(p nri.Pod) listedSandbox {
	of := names.Pod{Namespace: p.Namespace, Name: p.Name, UID: p.UID}
	return listedSandbox{of, of.Service(), p.ID, p.Netns}
}

// adoptAttempt is the state of a sandbox that is not adopted yet.
type adoptAttempt struct {
	logged  string        // last logged reason why the pod has no modules
	backoff time.Duration // after the agent rejected the adoption
	next    time.Time
}

// Backoff of the adoption of a sandbox that the agent has rejected.
const (
	minAdoptBackoff = 5 * time.Second // doubles
	maxAdoptBackoff = 5 * time.Minute // upper limit
)

// adoptCandidate is a sandbox to adopt in this round, with its pod.
type adoptCandidate struct {
	listedSandbox
	pod podService
}

// service returns the service of the sandbox. In contrast to a service of kerb-cni it has the labels of its pod
// immediately, because the pod already has connections. If the pod is held, the service is pending, since it is unknown
// which modules select it.
func (c adoptCandidate) service() v1.Service {
	labels := names.PodLabels(c.Pod, names.Adopted(c.id))
	if c.pod.held == nil {
		labels = names.Admit(labels, c.pod.labels.set())
	}
	return v1.Service{TypeMeta: v1.TypeMeta{APIVersion: v1.APIVersion, Kind: v1.KindService},
		Metadata: v1.ObjectMeta{Name: c.listedSandbox.service, Labels: labels}, Spec: v1.ServiceSpec{Netns: c.netns}}
}

// adoption collects the sandboxes to adopt, in one pass over the services of the agent.
type adoption struct {
	of   map[string][]listedSandbox // by service name; observe removes those with a service
	done []string                   // IDs of sandboxes that have a service, or no longer exist
}

// adoption returns the sandboxes that the container runtime has listed. The caller holds mu.
func (s *state) adoption() *adoption {
	a := &adoption{of: map[string][]listedSandbox{}}
	for _, l := range s.runtime.listed {
		a.of[l.service] = append(a.of[l.service], l)
	}
	return a
}

// observe processes a service of the agent, and reports whether to delete it. That is so if the agent does not find its
// network namespace, because the sandbox has ended or the namespace is the node's own. A service with interfaces has
// chains, and stays. A service of kerb-cni stays, unless the runtime lists another sandbox of the pod. That other
// sandbox is adopted later, unless kerb-cni has created a service for it.
func (a *adoption) observe(s v1.Service) (stray bool) {
	all, of := a.of[s.Metadata.Name], s.Metadata.Labels[names.LabelAttachment]
	delete(a.of, s.Metadata.Name)
	gone, adopted, others := vanished(s), names.IsAdopted(of), false
	for _, l := range all {
		if names.OfSandbox(of, l.id) || !gone && !adopted {
			a.done = append(a.done, l.id)
		} else {
			others = true
		}
	}
	return gone && len(s.Status.Links) == 0 && (adopted || others)
}

// candidates returns the sandboxes without a service that are due for adoption. A pod that would be held is not adopted
// until the hold ends. The exception is a pod with too many labels, since its author could otherwise evade
// ClusterModules.
func (s *syncer) candidates(v view, pods podServices) (out []adoptCandidate) {
	before := s.adopting
	s.adopting = map[string]adoptAttempt{}
	for service, all := range pods.adoption.of {
		for _, l := range all {
			if tried, ok := before[l.id]; ok {
				s.adopting[l.id] = tried
			}
		}
		slices.SortFunc(all, func(a, b listedSandbox) int {
			return cmp.Or(s.adopting[a.id].next.Compare(s.adopting[b.id].next), cmp.Compare(a.id, b.id))
		})
		p, ok := pods.of(service, false)
		if ok && p.mirror && !p.named(all[0].Pod) {
			p, ok = pods.ofRuntime(service) // the API server's mirror belongs to another pod
		}
		if !ok {
			continue
		}
		if p.held == nil {
			p.held = s.holdOfRejected(v, p)
		}
		if p.held != nil && p.held != manyLabels {
			s.unadopted(p, all[0].id)
			continue
		}
		if l := all[0]; !s.adopting[l.id].next.After(s.state.clock.now()) {
			out = append(out, adoptCandidate{l, p})
		}
	}
	return out
}

// unadopted logs and records a lasting reason why a pod runs without modules, once for each reason.
func (s *syncer) unadopted(p podService, id string) {
	s.events.unadopted(p)
	tried := s.adopting[id]
	if why := p.held.Error(); p.held.lasting && tried.logged != why {
		s.log.Warn("no module applies to a pod that ran before kerb-cni was in its network", "pod",
			p.namespace+"/"+p.name, "error", why)
		tried.logged = why
		s.adopting[id] = tried
	}
}

// adopt applies services for sandboxes in batches. If the agent rejects a batch, each of its services is applied on its
// own.
func (s *syncer) adopt(ctx context.Context, v view, all []adoptCandidate) error {
	for some := range slices.Chunk(all, maxServicesPerRequest) {
		services := make([]v1.Service, len(some))
		for i, c := range some {
			services[i] = c.service()
		}
		err := s.agent.applyServices(ctx, services)
		for i, c := range some {
			alone := err
			if answered(err) && len(some) > 1 {
				alone = s.agent.applyServices(ctx, services[i:i+1])
			}
			if alone != nil && !answered(alone) {
				return alone
			}
			s.adopted(v, c, alone)
		}
	}
	return nil
}

// adopted logs the result of an adoption. If the agent has rejected it, the next attempt is delayed with exponential
// backoff.
func (s *syncer) adopted(v view, c adoptCandidate, err error) {
	pod := c.pod.namespace + "/" + c.pod.name
	switch {
	case err != nil:
		tried := s.adopting[c.id]
		tried.backoff = min(max(minAdoptBackoff, 2*tried.backoff), maxAdoptBackoff)
		tried.next = s.state.clock.now().Add(tried.backoff)
		s.adopting[c.id] = tried
		s.log.Warn("the agent refuses to adopt a pod that ran before kerb-cni was in its network", "pod", pod, "error", err,
			"again", tried.backoff)
		return
	case c.pod.held != nil:
		s.log.Warn("pod adopted, which ran before kerb-cni was in its network: all its packets are dropped", "pod", pod,
			"error", c.pod.held)
	default:
		s.log.Info("pod adopted, which ran before kerb-cni was in its network", "pod", pod)
		s.events.admitted(c.pod, s.missing(v, c.pod))
	}
	delete(s.adopting, c.id)
	delete(s.await, c.pod.uid)
}
