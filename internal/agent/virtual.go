// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"net/netip"
	"os"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/fault"
	"github.com/kerb-edge/kerb/internal/resolve"
	"github.com/kerb-edge/kerb/internal/server"
	"github.com/kerb-edge/kerb/internal/service"
	"github.com/kerb-edge/kerb/internal/store"
	"github.com/kerb-edge/kerb/sdk"
)

// virtualChange is what becomes of the table when a change is committed.
type virtualChange struct {
	put    []v1.VirtualService
	remove []string
}

func (c *virtualChange) empty() bool { return len(c.put)+len(c.remove) == 0 }

// applyVirtual puts the virtual services of a request into the next desired state.
func applyVirtual(r server.Request, next store.Desired, result *v1.ApplyResult) (c virtualChange, err error) {
	for _, s := range r.VirtualServices {
		name := s.Metadata.Name
		old, exists := next.VirtualServices[name]
		change := changeOf(v1.KindVirtualService, name, exists, sum(old.Metadata, old.Spec), sum(s.Metadata, s.Spec))
		result.Changes = append(result.Changes, change)
		if change.Action == "unchanged" {
			continue
		}
		s.Metadata.Generation, s.Status = old.Metadata.Generation+1, nil
		next.VirtualServices[name] = s
		c.put = append(c.put, s)
	}
	if len(c.put) > 0 {
		err = resolve.CheckTogether(next.VirtualServices, c.put)
	}
	return c, err
}

// commitVirtual is a change of virtual services alone: nothing in the kernel is planned or loaded, control planes are told.
func (a *Agent) commitVirtual(next store.Desired, c virtualChange, dryRun bool) error {
	if dryRun || c.empty() {
		return nil
	}
	if err := a.store.CommitVirtualServices(c.put, c.remove); err != nil {
		return err
	}
	a.mu.Lock()
	a.desired = next
	a.mu.Unlock()
	a.virtual.Apply(c.put, c.remove)
	return nil
}

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

// Ended are the instances whose namespaces have ended but for packet sockets. Of services that are registered by path or
// process the end is seen otherwise.
func (a *Agent) Ended(list []sdk.Instance) []uint32 {
	var look []uint32
	for _, i := range list {
		if spec, _ := a.serviceOf(i.Service); spec.Interface != "" {
			look = append(look, i.Ifindex)
		}
	}
	return service.Ended(look)
}

func (a *Agent) serviceOf(name string) (v1.ServiceSpec, service.State) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.desired.Services[name].Spec, a.states[name]
}
