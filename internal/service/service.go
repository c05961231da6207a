// SPDX-License-Identifier: Apache-2.0

// Package service finds the services of a node in the kernel and watches them:
// from a network namespace, a process or an interface to the host-side links
// that carry a service's traffic, without entering a namespace and without
// keeping one alive. It also parses the selectors that name services by label.
package service

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/sdk"
)

// What can be wrong with a service. A service without a veth is not an error:
// it has no links yet.
var (
	// ErrSpec: not exactly one of netns, pid and interface is set.
	ErrSpec = errors.New("a service needs exactly one of netns, pid and interface")
	// ErrNamespaceGone: nothing is at the path of the namespace.
	ErrNamespaceGone = errors.New("no such network namespace")
	// ErrNotNamespace: what is at the path is not a network namespace.
	ErrNotNamespace = errors.New("not a network namespace")
	// ErrOwnNamespace: the namespace is the one the agent runs in.
	ErrOwnNamespace = errors.New("this is the network namespace of the node itself")
	// ErrProcessGone: no process has the id, or the one that had it ended.
	ErrProcessGone = errors.New("no such process")
	// ErrInterfaceGone: the node has no interface of the name.
	ErrInterfaceGone = errors.New("the node has no such interface")
)

// IsServiceError reports whether an error is one of the above, which are about
// the service itself. Other errors are about the lookup, which may succeed when
// it is repeated.
func IsServiceError(err error) bool {
	for _, kind := range []error{ErrSpec, ErrNamespaceGone, ErrNotNamespace, ErrOwnNamespace, ErrProcessGone,
		ErrInterfaceGone} {
		if errors.Is(err, kind) {
			return true
		}
	}
	return false
}

// Link is an interface of the node.
type Link struct {
	Name    string
	Ifindex int
	Kind    string           // rtnetlink's kind, such as veth or bridge; empty for hardware
	Type    uint16           // ARPHRD_ number: see LinkType; 0 is unknown
	Peer    string           // name of the other end inside the service; empty if unknown
	MTU     int              // bytes
	MAC     net.HardwareAddr // of this end
	// Left: the link is bound to the service, but its other end is no longer where the service is registered.
	Left bool
	// Addresses of this end, sorted; only HostInterfaces has them.
	Addresses []netip.Prefix
	// IPsec lists the node's IPsec policies; only HostInterfaces has them.
	IPsec *sdk.IPsec

	// What follows is about the other end, and zero if that is unknown.
	PeerIndex     int
	PeerMAC       net.HardwareAddr
	PeerMTU       int            // bytes
	PeerAddresses []netip.Prefix // sorted, without loopback and link-local ones
	PeerLinkLocal []netip.Prefix // sorted
}

// State is what is known of a service at one moment.
type State struct {
	// Links are the host-side veth ends, by ifindex; empty while the service
	// is not there.
	Links []Link
	// Addresses are those inside the service with their prefix length, sorted,
	// without loopback and link-local ones. For a service given by its
	// interface they are those of that interface's other end.
	Addresses []netip.Prefix
	// Err says why the service cannot be found, in a Watcher's answers.
	Err error
}

// Validate reports whether a spec names one way to find the service.
func Validate(spec v1alpha1.ServiceSpec) error {
	set := 0
	for _, given := range []bool{spec.Netns != "", spec.PID != 0, spec.Interface != ""} {
		if given {
			set++
		}
	}
	if set != 1 || spec.PID < 0 {
		return ErrSpec
	}
	return nil
}

// ResolveAll looks services up once, as seen from the network namespace of the
// calling thread. What is wrong with one of them is its State's Err, which wraps
// one of this package's errors.
func ResolveAll(specs map[string]v1alpha1.ServiceSpec) (map[string]State, error) {
	states := make(map[string]State, len(specs))
	if len(specs) == 0 {
		return states, nil
	}
	s, err := openScanner()
	if err != nil {
		return nil, fmt.Errorf("look up services: %w", err)
	}
	defer s.close()
	return states, s.resolveAll(specs, states)
}

// ResolveAlone is ResolveAll without a dump of all links of the node. It leaves out services that are not found so.
func ResolveAlone(specs map[string]v1alpha1.ServiceSpec) (map[string]State, error) {
	s, err := openScanner()
	if err != nil {
		return nil, fmt.Errorf("look up services: %w", err)
	}
	defer s.close()
	states := make(map[string]State, len(specs))
	s.resolveFound(specs, states)
	return states, nil
}

// lookups is how many services are looked up at once. Each waits several times for the kernel's lock of network
// configuration, behind all processes that wait already, and there are a hundred while many pods start.
const lookups = 16

// resolveAll looks services up by their namespaces, and those that are not found so among all links of the node.
func (s *scanner) resolveAll(specs map[string]v1alpha1.ServiceSpec, into map[string]State) error {
	left := s.resolveFound(specs, into)
	if len(left) == 0 {
		return nil
	}
	if err := s.refresh(); err != nil {
		return err
	}
	for name, spec := range left {
		state, err := s.resolve(spec)
		state.Err = err
		into[name] = state
	}
	return nil
}

// resolveFound looks services up by their namespaces, and returns those that are not found so.
func (s *scanner) resolveFound(specs map[string]v1alpha1.ServiceSpec,
	into map[string]State) (left map[string]v1alpha1.ServiceSpec) {
	left = map[string]v1alpha1.ServiceSpec{}
	names := slices.Collect(maps.Keys(specs))
	for i, one := range s.resolveEach(names, specs) {
		if one.known {
			into[names[i]] = one.State
		} else {
			left[names[i]] = specs[names[i]]
		}
	}
	return left
}

// resolved is what resolveAlone returns of a service.
type resolved struct {
	State
	known bool
}

// resolveEach looks services up by their namespaces, several at once, and returns them in the order of the names.
func (s *scanner) resolveEach(names []string, specs map[string]v1alpha1.ServiceSpec) []resolved {
	out := make([]resolved, len(names))
	var next atomic.Int64
	work := func(s *scanner) {
		for i := int(next.Add(1)) - 1; i < len(names); i = int(next.Add(1)) - 1 {
			spec := specs[names[i]]
			one := resolved{known: true}
			err := Validate(spec)
			if err == nil {
				one.State, one.known, err = s.resolveAlone(spec)
			}
			one.Err = err
			out[i] = one
		}
	}
	var others sync.WaitGroup
	for range min(len(names), lookups) - 1 {
		other, err := s.another()
		if err != nil {
			break // for lack of file descriptors, for example: fewer at once
		}
		others.Go(func() {
			defer other.conn.close()
			work(other)
		})
	}
	work(s)
	others.Wait()
	return out
}
