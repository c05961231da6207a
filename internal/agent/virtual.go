// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"net/netip"
	"os"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/fault"
	"github.com/kerb-edge/kerb/internal/service"
	"github.com/kerb-edge/kerb/sdk"
)

// VirtualServices lists the virtual services, those that resolvers found included.
func (a *Agent) VirtualServices(context.Context) ([]v1.VirtualService, error) {
	desired := a.desiredVirtual()
	var out []v1.VirtualService
	for _, name := range a.virtual.Names() {
		if s, ok := a.virtual.View(name); ok {
			out = append(out, withOwn(s, desired))
		}
	}
	return out, nil
}

// VirtualService returns one.
func (a *Agent) VirtualService(_ context.Context, name string) (v1.VirtualService, error) {
	s, ok := a.virtual.View(name)
	if !ok {
		return s, &fault.NotFound{Kind: v1.KindVirtualService, Name: name}
	}
	return withOwn(s, a.desiredVirtual()), nil
}

func (a *Agent) desiredVirtual() map[string]v1.VirtualService {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.desired.VirtualServices
}

// withOwn shows what was applied as it was applied.
func withOwn(s v1.VirtualService, desired map[string]v1.VirtualService) v1.VirtualService {
	if own, ok := desired[s.Metadata.Name]; ok && s.Status.Source == v1.SourceStatic {
		s.Metadata, s.Spec = own.Metadata, own.Spec
	}
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
	return service.Ended(look)
}

func (a *Agent) serviceOf(name string) (v1.ServiceSpec, service.State) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.desired.Services[name].Spec, a.states[name]
}
