// SPDX-License-Identifier: Apache-2.0

package node

import (
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

// adopted returns the service of a sandbox whose pod has these labels. Unlike one of kerb-cni it is never pending: the
// pod has connections.
func (l listed) adopted(labels map[string]string) v1.Service {
	return v1.Service{TypeMeta: v1.TypeMeta{APIVersion: v1.APIVersion, Kind: v1.KindService},
		Metadata: v1.ObjectMeta{Name: l.service,
			Labels: names.Admit(names.PodLabels(l.Pod, names.Adopted(l.id)), labels)},
		Spec: v1.ServiceSpec{Netns: l.netns}}
}

// isStray reports whether a service is that of an adopted sandbox whose network namespace the agent does not find: it
// has ended, or the namespace is the node's own. While the service has interfaces, it has chains.
func isStray(s v1.Service) bool {
	return names.IsAdopted(s.Metadata.Labels[names.LabelAttachment]) && vanished(s) && len(s.Status.Links) == 0
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

// found notes a service of the agent, and reports whether it is to be deleted. Where the runtime lists two sandboxes of
// a pod, of which one has ended, the other one is adopted later.
func (a *adoption) found(s v1.Service) (stray bool) {
	all := a.of[s.Metadata.Name]
	delete(a.of, s.Metadata.Name)
	stray = isStray(s)
	for _, l := range all {
		if !stray || names.Adopted(l.id).String() == s.Metadata.Labels[names.LabelAttachment] {
			a.done = append(a.done, l.id)
		}
	}
	return stray
}

// adopt adds services of sandboxes that have none. A pod that would be held stays as it is until then.
func (s *syncer) adopt(c *comparison, pods podServices) error {
	for service, all := range pods.adoption.of {
		p, ok := pods.of(service, false)
		if !ok {
			continue
		}
		made := all[0].adopted(p.labels.set())
		if p.held == nil {
			p.held = s.holdOfRejected(c.view, p)
		}
		if p.held != nil || p.mirror && !p.isOf(made) {
			continue
		}
		c.admitted[p.uid] = true
		s.log.Info("pod adopted, which ran before kerb-cni was in its network", "pod", p.namespace+"/"+p.name)
		s.events.admitted(p, s.missing(c.view, p))
		if err := c.change.add(made); err != nil {
			return err
		}
	}
	return nil
}
