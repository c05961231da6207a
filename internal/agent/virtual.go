// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"net/netip"
	"os"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/resource"
	"github.com/kerb-edge/kerb/internal/service"
	"github.com/kerb-edge/kerb/internal/status"
	"github.com/kerb-edge/kerb/sdk"
)

func (a *Agent) virtualViews() func(string) resource.Object {
	a.mu.Lock()
	defer a.mu.Unlock()
	desired, ejected := a.now.Desired, a.now.Ejected()
	return func(name string) resource.Object {
		s, ok := a.now.VirtualService(name, desired)
		if !ok {
			return nil
		}
		return resource.ObjectOf(status.WithEjected(s, ejected))
	}
}

func (a *Agent) virtualCommitted(c resource.Changes) {
	a.virtual.Apply(resource.VirtualService.Of(c.Put), removed(c))
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
	s, _ := resource.Service.Get(a.now.Desired, name)
	return s.Spec, a.now.Services[name]
}
