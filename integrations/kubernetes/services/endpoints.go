// SPDX-License-Identifier: Apache-2.0

package services

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/integrations/kubernetes/names"
)

// Limits of ports that differ between endpoints: the proxy's tables are shared by all Services of the node.
const (
	maxSplit   = 16 // ports of a Service that not all its endpoints serve
	maxTargets = 64 // target ports that an endpoint has of its own, as in the agent's API
)

// endpoint is one with the addresses of all families, and how it is in the slices that it is in, by their index. A pod
// with two families is in a slice of each, and in others if its ports are in several slices.
type endpoint struct {
	v1.VirtualInstance
	in []membership
}

// membership is an endpoint in a slice.
type membership struct {
	slice int
	of    *Endpoint
}

// endpoints returns the serving endpoints.
func endpoints(s *Service, of []sliceView, usual []v1.VirtualPort) ([]*endpoint, error) {
	found := map[string]*endpoint{}
	var out []*endpoint
	for n, slice := range of {
		for i := range slice.serving {
			e := &slice.serving[i]
			if slice.Type == "FQDN" || len(e.Addresses) == 0 {
				continue
			}
			identity := cmp.Or(e.Target.UID, e.Addresses[0])
			have, ok := found[identity]
			if !ok {
				have = &endpoint{}
				have.Name = names.Pod{UID: identity}.Service()
				found[identity], out = have, append(out, have)
			}
			have.in = append(have.in, membership{n, e})
			have.Addresses = append(have.Addresses, e.Addresses[0])
		}
	}
	if len(out) > MaxEndpoints {
		return nil, fmt.Errorf("it has %d endpoints, over %d", len(out), MaxEndpoints)
	}
	for _, e := range out {
		slices.Sort(e.Addresses)
		e.Addresses = slices.Compact(e.Addresses) // a pod may be in two slices of a family while they are rebalanced
		if len(e.Addresses) > 2 {
			return nil, errors.New("an endpoint has more than two addresses")
		}
	}
	slices.SortFunc(out, func(a, b *endpoint) int { return strings.Compare(a.Name, b.Name) })
	return out, setTargetPorts(out, s, of, usual)
}

// setTargetPorts gives endpoints the target ports that are not the usual ones of the Service. They are the same for
// all endpoints that are in the same slices.
func setTargetPorts(all []*endpoint, s *Service, of []sliceView, usual []v1.VirtualPort) error {
	known := map[string][]v1.VirtualPort{}
	var key []byte
	for _, e := range all {
		key = key[:0]
		for _, m := range e.in {
			key = binary.AppendUvarint(key, uint64(m.slice))
		}
		own, ok := known[string(key)]
		if !ok {
			for i, p := range s.Spec.Ports {
				target, err := e.target(p, of)
				if err != nil {
					return err
				}
				if target != 0 && target != usual[i].TargetPort {
					own = append(own, v1.VirtualPort{Port: p.Port, Protocol: usual[i].Protocol, TargetPort: target})
				}
			}
			if len(own) > maxTargets {
				return fmt.Errorf("an endpoint has %d target ports that others have not, over %d", len(own), maxTargets)
			}
			known[string(key)] = own
		}
		e.TargetPorts = own
	}
	return nil
}

// target returns the target port that the slices of the endpoint have for a port of their Service, 0 for none.
func (e *endpoint) target(p ServicePort, of []sliceView) (uint16, error) {
	out := uint16(0)
	for _, m := range e.in {
		target, ok := of[m.slice].target(p)
		if ok && out != 0 && target != out {
			return 0, fmt.Errorf("the endpoint %s has other target ports in another slice", m.of.Addresses[0])
		}
		if ok {
			out = target
		}
	}
	return out, nil
}

// portGroup is ports whose targets are in the same slices, and so have the same endpoints.
type portGroup struct {
	ports []v1.VirtualPort
	in    []bool // by the index of the slice
}

// groupPorts groups the ports of a virtual service, which are those of the Service in the same order.
func groupPorts(all []v1.VirtualPort, s *Service, of []sliceView) (out []*portGroup) {
	in := make([]bool, len(of))
	for i, p := range s.Spec.Ports {
		for n, slice := range of {
			_, in[n] = slice.target(p)
		}
		at := slices.IndexFunc(out, func(g *portGroup) bool { return slices.Equal(g.in, in) })
		if at < 0 {
			at, out = len(out), append(out, &portGroup{in: slices.Clone(in)})
		}
		out[at].ports = append(out[at].ports, all[i])
	}
	return out
}

// use is what kube-proxy would do with an endpoint for a port.
type use uint8

const (
	unused   use = iota // no connection
	draining            // connections that there are continue
	serving             // gets new connections
)

// instances returns the endpoints as instances, with the ports for which each gets new connections. Like kube-proxy, it
// treats each group of ports separately.
func instances(all []*endpoint, groups []*portGroup, s *Service, node Node) (out []v1.VirtualInstance, err error) {
	local := s.Spec.Traffic == "Local"
	uses := make([][]use, len(groups)) // by group and endpoint
	for i, g := range groups {
		uses[i] = g.choose(all, local, node)
	}
	most := make([]use, len(all))
	for n := range all {
		for i := range groups {
			most[n] = max(most[n], uses[i][n])
		}
	}
	if err := checkSplit(s, groups, uses, most); err != nil {
		return nil, err
	}
	for n, e := range all {
		if most[n] == unused {
			continue
		}
		e.Draining = most[n] == draining
		for i, g := range groups {
			if uses[i][n] < most[n] {
				e.exclude(g.ports, uses[i][n] == draining)
			}
		}
		out = append(out, e.VirtualInstance)
	}
	return out, nil
}

// checkSplit returns an error if the proxy should not serve the ports that not all endpoints serve. Each of them has a
// run of slots, which is long where clients have affinity.
func checkSplit(s *Service, groups []*portGroup, uses [][]use, most []use) error {
	split := 0
	for i, g := range groups {
		for n := range most {
			if uses[i][n] < most[n] {
				split += len(g.ports)
				break
			}
		}
	}
	switch {
	case split > 0 && s.Spec.Affinity == clientIP:
		return errors.New("it has session affinity, and not all its endpoints serve all its ports")
	case split > maxSplit:
		return fmt.Errorf("not all its endpoints serve %d of its ports, over %d", split, maxSplit)
	}
	return nil
}

func (e *endpoint) exclude(ports []v1.VirtualPort, drain bool) {
	for _, p := range ports {
		e.ExcludedPorts = append(e.ExcludedPorts, v1.ExcludedPort{Port: p.Port, Protocol: p.Protocol, Draining: drain})
	}
}

// candidate is an endpoint that has the targets of a group of ports.
type candidate struct {
	of    *Endpoint
	at    int // index of the endpoint
	ready bool
}

// choose selects endpoints like kube-proxy: ready ones, with local traffic only those of this node, otherwise those
// with hints for this node, or for its zone. Terminating endpoints that still serve keep their connections, and get new
// ones only if there are no others.
func (g *portGroup) choose(all []*endpoint, local bool, node Node) []use {
	var found []candidate
	for n, e := range all {
		c := candidate{at: n, ready: true}
		for _, m := range e.in {
			if g.in[m.slice] {
				c.of, c.ready = cmp.Or(c.of, m.of), c.ready && m.of.ready()
			}
		}
		if c.of != nil && (!local || c.of.Node == node.Name) {
			found = append(found, c)
		}
	}
	ready := slices.ContainsFunc(found, func(c candidate) bool { return c.ready })
	preferred := func(candidate) bool { return true }
	if !local {
		preferred = byHints(found, node)
	}
	out := make([]use, len(all))
	for _, c := range found {
		out[c.at] = serving
		if ready && !c.ready || !preferred(c) {
			out[c.at] = draining
		}
	}
	return out
}

// byHints returns which endpoints should get new connections from the node: those with hints for it, or else for its
// zone. Hints count if all ready endpoints have some of that kind, and one of them is for the node, or the zone.
func byHints(all []candidate, node Node) func(candidate) bool {
	for _, by := range []struct {
		name string
		of   func(candidate) []Hint
	}{{node.Name, candidate.nodes}, {node.Zone, candidate.zones}} {
		forUs := func(c candidate) bool { return slices.Contains(by.of(c), Hint{by.name}) }
		missing := func(c candidate) bool { return c.ready && len(by.of(c)) == 0 }
		some := func(c candidate) bool { return c.ready && forUs(c) }
		if by.name != "" && !slices.ContainsFunc(all, missing) && slices.ContainsFunc(all, some) {
			return forUs
		}
	}
	return func(candidate) bool { return true }
}

func (c candidate) nodes() []Hint {
	if c.of.Hints == nil {
		return nil
	}
	return c.of.Hints.Nodes
}

func (c candidate) zones() []Hint {
	if c.of.Hints == nil {
		return nil
	}
	return c.of.Hints.Zones
}
