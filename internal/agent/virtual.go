// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/resource"
	"github.com/kerb-edge/kerb/internal/service"
	"github.com/kerb-edge/kerb/sdk"
)

func (a *Agent) virtualViews() func(string) resource.Object {
	desired, ejected := a.present(), a.ejected()
	return func(name string) resource.Object {
		s, ok := a.virtualView(name, desired)
		if !ok {
			return nil
		}
		return resource.ObjectOf(withEjected(s, ejected))
	}
}

// virtualView returns one as it was applied or found, with the times of its conditions.
func (a *Agent) virtualView(name string, desired resource.Set) (v1.VirtualService, bool) {
	s, ok := a.virtual.View(name)
	if !ok {
		return s, false
	}
	s = withOwn(s, desired)
	s.Status.Conditions = a.record(v1.KindVirtualService, s.Metadata, s.Status.Conditions)
	return s, true
}

func (a *Agent) virtualCommitted(c resource.Changes) {
	a.virtual.Apply(resource.VirtualService.Of(c.Put), removed(c))
}

// withOwn shows what was applied as it was applied.
func withOwn(s v1.VirtualService, desired resource.Set) v1.VirtualService {
	own, ok := resource.VirtualService.Get(desired, s.Metadata.Name)
	if ok && s.Status.Source == v1.SourceStatic {
		s.Metadata, s.Spec = own.Metadata, own.Spec
	}
	return s
}

// ejected is why modules give instances no new connections, by virtual service and instance.
func (a *Agent) ejected() map[[2]string]string {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := map[[2]string]string{}
	for name, d := range a.modules {
		if d == nil || d.Plane == nil {
			continue
		}
		for _, e := range d.Plane.State().Ejected {
			out[[2]string{e.Service, e.Instance}] = "module " + name + ": " + e.Reason
		}
	}
	return out
}

// withEjected shows which instances get no new connections, in their status and in the condition Ready.
func withEjected(s v1.VirtualService, ejected map[[2]string]string) v1.VirtualService {
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

// addresses are those of all services, for the table.
func addresses(states map[string]service.State) map[string][]netip.Prefix {
	out := make(map[string][]netip.Prefix, len(states))
	for name, s := range states {
		out[name] = s.Addresses
	}
	return out
}

// Open opens a packet socket inside the service of an instance.
func (a *Agent) Open(i sdk.Instance) (*os.File, error) {
	spec, state := a.serviceOf(i.Service)
	for _, l := range state.Links {
		if l.Ifindex == int(i.Ifindex) {
			return service.OpenPacket(spec, l)
		}
	}
	return nil, errors.New("the interface has just gone")
}

// Ended are the instances whose namespaces have ended but for packet sockets.
func (a *Agent) Ended(list []sdk.Instance) []uint32 {
	var look []uint32
	for _, i := range list {
		look = append(look, i.Ifindex)
	}
	return service.OrphanedNamespaces(look)
}

func (a *Agent) serviceOf(name string) (v1.ServiceSpec, service.State) {
	a.mu.Lock()
	defer a.mu.Unlock()
	s, _ := resource.Service.Get(a.desired, name)
	return s.Spec, a.states[name]
}
