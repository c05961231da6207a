// SPDX-License-Identifier: Apache-2.0

package oakestra

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
)

// Modules on each worker of a cluster, by which its services reach virtual addresses and other workers.
const (
	proxyResource  = resourcePrefix + "proxy"
	tunnelResource = resourcePrefix + "tunnel"
)

// outermost is the priority of these modules: modules of users are nearer to services.
const outermost = 1_000_000

// plane returns the modules for a node that reaches others through an interface.
func (l *Listener) plane(underlay string) []v1.Module {
	ours := func(name, pkg string, config map[string]any, interfaces ...string) v1.Module {
		return v1.Module{
			TypeMeta: v1.TypeMeta{APIVersion: v1.APIVersion, Kind: v1.KindModule},
			Metadata: v1.ObjectMeta{Name: name},
			Spec: v1.ModuleSpec{
				Package: pkg, Hook: v1.HookAuto, Attach: v1.Attach{Services: labelService, Interfaces: interfaces},
				CommonModuleSpec: v1.CommonModuleSpec{Config: config, Order: v1.Order{Priority: outermost}},
			},
		}
	}
	return []v1.Module{ours(proxyResource, "proxy", map[string]any{"ranges": l.ranges, "source": "instance"}),
		ours(tunnelResource, "tunnel", map[string]any{"mode": "oakestra"}, underlay)}
}

// interfaceOf returns the interface of this node that has an address.
func interfaceOf(host netip.Addr) (string, error) {
	all, err := net.Interfaces()
	if err != nil {
		return "", err
	}
	for _, i := range all {
		addrs, _ := i.Addrs()
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Unmap() == host {
				return i.Name, nil
			}
		}
	}
	return "", fmt.Errorf("no interface has the address %s by which this node reaches the cluster", host)
}

// resolveTimeout is the timeout of resolving the cluster's name: deployments wait in the meantime.
const resolveTimeout = 2 * time.Second

// underlay returns the interface through which this node reaches the cluster, and other nodes. The caller holds l.mu.
func (l *Listener) underlay(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	host, err := l.session.source(ctx)
	if err != nil {
		return "", err
	}
	return interfaceOf(host)
}

// ensurePlane applies the modules if they have changed, or the agent lacks one. The caller holds l.mu.
func (l *Listener) ensurePlane(ctx context.Context) error {
	if l.session == nil || !l.net.assigned() {
		return nil
	}
	if reason, _ := l.session.describe(); reason == notConnected {
		return nil
	}
	underlay, err := l.underlay(ctx)
	if err != nil {
		return err
	}
	want := l.plane(underlay)
	there, err := l.agent.modules(ctx)
	if err != nil {
		return err
	}
	theirs := func(w v1.Module) bool { // a user has taken it over by force
		return slices.ContainsFunc(there, func(m v1.Module) bool {
			return m.Metadata.Name == w.Metadata.Name && m.Metadata.Owner != owner
		})
	}
	want = slices.DeleteFunc(want, theirs)
	lacks := slices.ContainsFunc(want, func(w v1.Module) bool {
		return !slices.ContainsFunc(there, func(m v1.Module) bool { return m.Metadata.Name == w.Metadata.Name })
	})
	if !lacks && reflect.DeepEqual(want, l.planeApplied) {
		return nil
	}
	limited, cancel := context.WithTimeout(ctx, prepareLimit)
	defer cancel()
	_, err = l.agent.apply(limited, nil, want)
	switch {
	case errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil:
		if !l.planeUnconfirmed { // the agent continues; the next sweep checks again
			l.log.Warn("the agent takes long to apply the modules for virtual addresses and other workers; services do not "+
				"reach other workers until it has", "limit", prepareLimit)
		}
		l.planeUnconfirmed = true
		return nil
	case err != nil:
		return fmt.Errorf("the modules for virtual addresses and other workers: %w", err)
	}
	l.planeApplied, l.planeUnconfirmed = want, false
	return nil
}

// linkTimeout is how long a registration waits until the agent has linked the modules of the worker: NodeEngine may
// deploy as soon as it has the response, and a deployment that includes linking may exceed its timeout.
const linkTimeout = 4 * time.Second

// connectTimeout is how long a registration waits for a connection, without which the modules are not applied.
const connectTimeout = time.Second

// errAgentSilent is returned if the agent's chains are unknown.
var errAgentSilent = errors.New("the agent does not answer")

// awaitChains waits until the agent has linked chains for future services, or runs some. Without a connection of the
// worker there may be no modules to wait for.
func (l *Listener) awaitChains(ctx context.Context, s *session) {
	tick, latest := time.NewTicker(linkTimeout/40), time.After(connectTimeout)
	defer tick.Stop()
	for problem := errAgentSilent; ; {
		has, err := l.hasChains(ctx)
		if has {
			return
		}
		if ctx.Err() == nil { // otherwise the end of the wait caused the error
			problem = err
		}
		select {
		case <-ctx.Done():
			l.warnEarlyAnswer(ctx, problem)
			return
		case <-latest:
			if !s.connected() {
				return
			}
		case <-tick.C:
		}
	}
}

// warnEarlyAnswer logs that a registration is answered too early, unless the client has disconnected.
func (l *Listener) warnEarlyAnswer(ctx context.Context, problem error) {
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
	case problem != nil:
		l.log.Warn("registered, and it is unknown whether the modules of the worker are linked; deployments may fail",
			"waited", linkTimeout, "error", problem)
	default:
		l.log.Warn("registered before the modules of the worker are linked: a deployment that comes first links them, "+
			"and fails if that takes longer than it may", "waited", linkTimeout, "limit", deployTimeout)
	}
}

// hasChains reports whether chains with the proxy are linked for both directions, so that services get them
// immediately.
func (l *Listener) hasChains(ctx context.Context) (bool, error) {
	chains, err := l.agent.chains(ctx)
	has := map[string]bool{}
	for _, c := range chains {
		if slices.Contains(c.Modules, proxyResource) && (c.Ready || len(c.Points) > 0) {
			has[c.Direction] = true
		}
	}
	return err == nil && len(has) == 2, err
}
