// SPDX-License-Identifier: Apache-2.0

package status

import (
	"fmt"
	"slices"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/resource"
)

// VirtualService returns a virtual service as it was applied or found, with the transition times of its conditions.
func (nd *Node) VirtualService(name string, desired resource.State) (v1.VirtualService, bool) {
	s, ok := nd.Virtual.View(name)
	if !ok {
		return s, false
	}
	s = withOwn(s, desired)
	s.Status.Conditions = nd.Record(v1.KindVirtualService, s.Metadata, s.Status.Conditions)
	return s, true
}

// withOwn returns applied virtual services as they were applied.
func withOwn(s v1.VirtualService, desired resource.State) v1.VirtualService {
	own, ok := resource.VirtualService.Get(desired, s.Metadata.Name)
	if ok && s.Status.Source == v1.SourceStatic {
		s.Metadata, s.Spec = own.Metadata, own.Spec
	}
	return s
}

// Ejected returns why modules send no new connections to instances, by virtual service and instance.
func (nd *Node) Ejected() map[[2]string]string {
	out := map[[2]string]string{}
	for name, d := range nd.Modules {
		if d == nil || d.Control == nil {
			continue
		}
		for _, e := range d.Control.State().Ejected {
			out[[2]string{e.Service, e.Instance}] = "module " + name + ": " + e.Reason
		}
	}
	return out
}

// WithEjected shows the instances that get no new connections, in their status and in the condition Ready.
func WithEjected(s v1.VirtualService, ejected map[[2]string]string) v1.VirtualService {
	status := *s.Status
	status.Instances = slices.Clone(status.Instances)
	n, takes := 0, 0
	for i := range status.Instances {
		one := &status.Instances[i]
		one.Ejected = ejected[[2]string{s.Metadata.Name, one.Name}]
		switch {
		case one.Ejected != "":
			n++
		case len(one.Addresses) > 0 && !one.Draining:
			takes++
		}
	}
	if n == 0 {
		return s
	}
	status.Conditions = slices.Clone(status.Conditions)
	for i := range status.Conditions {
		if c := &status.Conditions[i]; c.Type == "Ready" && c.Status == "True" {
			c.Message = fmt.Sprintf("%d of %d instances take connections; %d ejected", takes, len(status.Instances), n)
		}
	}
	s.Status = &status
	return s
}
