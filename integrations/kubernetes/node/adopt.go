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

// listed is a sandbox that the container runtime had when it was connected, until its pod is a service: kerb-cni makes
// none for a pod that is older than the plugin in its network.
type listed struct {
	names.Pod
	service, id, netns string
}

func listedOf(p nri.Pod) listed {
	of := names.Pod{Namespace: p.Namespace, Name: p.Name, UID: p.UID}
	return listed{of, of.Service(), p.ID, p.Netns}
}

// adopting is a sandbox that is not adopted yet.
type adopting struct {
	held string        // why its pod stays as it is, as logged
	wait time.Duration // after the agent has refused it
	next time.Time
}

// How long the adoption of a sandbox that the agent has refused waits.
const (
	adoptAgain = 5 * time.Second // doubled each time
	adoptRest  = 5 * time.Minute // at most
)

// candidate is a sandbox that is adopted in this round, with its pod.
type candidate struct {
	listed
	pod podService
}

// service returns the service of the sandbox. Unlike one of kerb-cni it has the labels of its pod at once: the pod has
// connections. Without these labels it is pending, since it is unknown which modules select it.
func (c candidate) service() v1.Service {
	labels := names.PodLabels(c.Pod, names.Adopted(c.id))
	if c.pod.held == nil {
		labels = names.Admit(labels, c.pod.labels.set())
	}
	return v1.Service{TypeMeta: v1.TypeMeta{APIVersion: v1.APIVersion, Kind: v1.KindService},
		Metadata: v1.ObjectMeta{Name: c.listed.service, Labels: labels}, Spec: v1.ServiceSpec{Netns: c.netns}}
}

// adoption finds the sandboxes that are to be adopted, in one comparison with the services of the agent.
type adoption struct {
	of   map[string][]listed // by services, without those of found
	done []string            // IDs of sandboxes whose pods are services, or that have ended
}

// adoption returns what the container runtime has listed. The caller holds mu.
func (s *state) adoption() *adoption {
	a := &adoption{of: map[string][]listed{}}
	for _, l := range s.runtime.listed {
		a.of[l.service] = append(a.of[l.service], l)
	}
	return a
}

// found notes a service of the agent, and reports whether it is to be deleted, because the agent does not find its
// network namespace: its sandbox has ended, or the namespace is the node's own. While the service has interfaces, it
// has chains. One of kerb-cni stays, unless the runtime lists another sandbox of the pod. Such another sandbox is
// adopted later, unless kerb-cni has made a service that exists.
func (a *adoption) found(s v1.Service) (stray bool) {
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

// candidates returns the sandboxes without a service that are to be adopted now. A pod that would be held stays as it
// is until then, but for one with too many labels: its author could keep it away from ClusterModules.
func (s *syncer) candidates(v view, pods podServices) (out []candidate) {
	before := s.adopting
	s.adopting = map[string]adopting{}
	for service, all := range pods.adoption.of {
		for _, l := range all {
			if tried, ok := before[l.id]; ok {
				s.adopting[l.id] = tried
			}
		}
		slices.SortFunc(all, func(a, b listed) int {
			return cmp.Or(s.adopting[a.id].next.Compare(s.adopting[b.id].next), cmp.Compare(a.id, b.id))
		})
		p, ok := pods.of(service, false)
		if ok && p.mirror && !p.named(all[0].Pod) {
			p, ok = pods.ofRuntime(service) // the mirror is another pod's
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
			out = append(out, candidate{l, p})
		}
	}
	return out
}

// unadopted logs and records once why a pod stays without modules, if that is for more than a moment.
func (s *syncer) unadopted(p podService, id string) {
	s.events.unadopted(p)
	tried := s.adopting[id]
	if why := p.held.Error(); p.held.lasting && tried.held != why {
		s.log.Warn("no module applies to a pod that ran before kerb-cni was in its network", "pod",
			p.namespace+"/"+p.name, "error", why)
		tried.held = why
		s.adopting[id] = tried
	}
}

// adopt adds services of sandboxes that have none, together, and one by one if the agent fails with one of them.
func (s *syncer) adopt(ctx context.Context, v view, all []candidate) error {
	for some := range slices.Chunk(all, changeAtOnce) {
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

// adopted logs the adoption of a sandbox, or why the agent refuses it, and until when it is not tried again.
func (s *syncer) adopted(v view, c candidate, err error) {
	pod := c.pod.namespace + "/" + c.pod.name
	switch {
	case err != nil:
		tried := s.adopting[c.id]
		tried.wait = min(max(adoptAgain, 2*tried.wait), adoptRest)
		tried.next = s.state.clock.now().Add(tried.wait)
		s.adopting[c.id] = tried
		s.log.Warn("the agent refuses to adopt a pod that ran before kerb-cni was in its network", "pod", pod, "error", err,
			"again", tried.wait)
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
