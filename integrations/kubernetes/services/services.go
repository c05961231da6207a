// SPDX-License-Identifier: Apache-2.0

// Package services translates Services and EndpointSlices of a Kubernetes cluster to virtual services of the agent, for
// connections of pods to cluster addresses. kube-proxy keeps serving Services that a virtual service cannot express.
package services

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
	"github.com/kerb-edge/kerb/integrations/kubernetes/names"
)

// Paths of the collections, and labels that relate objects.
const (
	ServicesPath = "/api/v1/services"
	SlicesPath   = "/apis/discovery.k8s.io/v1/endpointslices"
	labelOf      = "kubernetes.io/service-name"
	labelProxy   = "service.kubernetes.io/service-proxy-name" // another proxy than kube-proxy serves it
)

// Off is the value of the annotation kerb.dev/proxy for a Service that kube-proxy keeps serving.
const Off = "off"

// clientIP is the value of sessionAffinity by which clients keep their endpoint.
const clientIP = "ClientIP"

// Limits of a Service, since the time to process one delays all Services of the node.
const (
	MaxEndpoints = 1000
	maxPorts     = 256
)

// Service has the used fields of a Service.
type Service struct {
	Metadata api.ObjectMeta `json:"metadata"`
	Spec     struct {
		Type       string        `json:"type"`
		ClusterIPs []string      `json:"clusterIPs"`
		Ports      []ServicePort `json:"ports"`
		Affinity   string        `json:"sessionAffinity"`
		Config     struct {
			ClientIP struct {
				Timeout *int `json:"timeoutSeconds"`
			} `json:"clientIP"`
		} `json:"sessionAffinityConfig"`
		Traffic string `json:"internalTrafficPolicy"`
	} `json:"spec"`

	Omitted int `json:"-"` // ports, if Omit was called
}

// ServicePort is a port of a Service.
type ServicePort struct {
	Name     string `json:"name"`
	Protocol string `json:"protocol"`
	Port     uint16 `json:"port"`
}

// Slice has the used fields of an EndpointSlice.
type Slice struct {
	Metadata  api.ObjectMeta `json:"metadata"`
	Type      string         `json:"addressType"`
	Endpoints []Endpoint     `json:"endpoints"`
	Ports     []SlicePort    `json:"ports"`

	Omitted struct{ Endpoints, Ports int } `json:"-"` // if Omit was called

	service string // its name, if Compact was called
}

// SlicePort is a port that all endpoints of a slice have.
type SlicePort struct {
	Name     string `json:"name"`
	Protocol string `json:"protocol"`
	Port     uint16 `json:"port"`
}

// Endpoint is an instance of a Service.
type Endpoint struct {
	Addresses  []string `json:"addresses"`
	Conditions struct {
		Ready       *bool `json:"ready"`
		Serving     *bool `json:"serving"`
		Terminating *bool `json:"terminating"`
	} `json:"conditions"`
	Node   string `json:"nodeName"`
	Target struct {
		UID string `json:"uid"`
	} `json:"targetRef"`
	Hints *struct {
		Nodes []Hint `json:"forNodes"`
		Zones []Hint `json:"forZones"`
	} `json:"hints"`
}

// Hint is a node or a zone whose clients an endpoint should serve.
type Hint struct {
	Name string `json:"name"`
}

// Meta returns the metadata.
func (s *Service) Meta() *api.ObjectMeta { return &s.Metadata }

// Meta returns the metadata.
func (s *Slice) Meta() *api.ObjectMeta { return &s.Metadata }

// Compact removes unused data, and ports beyond the limit of Translate, so that authors of Services cannot exhaust the
// memory of all nodes. One port remains of a Service that Kerb does not serve.
func (s *Service) Compact() {
	s.Metadata.Labels = only(s.Metadata.Labels, labelProxy)
	if a := s.Metadata.Annotations; a != nil && a.Proxy != Off {
		s.Metadata.Annotations = nil
	}
	if s.Spec.Ports = firstPorts(s.Spec.Ports); !s.Wanted() {
		s.Spec.Ports = slices.Clone(s.Spec.Ports[:min(1, len(s.Spec.Ports))])
	}
}

// Omit leaves only the identity and how much there was, of what there is no room for.
func (s *Service) Omit() {
	s.Omitted = len(s.Spec.Ports)
	s.Spec.Ports = slices.Clone(s.Spec.Ports[:min(1, s.Omitted)]) // without, it would not be wanted
}

// Compact removes unused data, and the spare capacity that the JSON decoder allocated, which is most of the memory of
// endpoints.
func (s *Slice) Compact() {
	s.service = s.Of().Name // a map of one label takes 300 bytes
	s.Metadata.Labels, s.Metadata.Annotations = nil, nil
	s.Ports, s.Endpoints = firstPorts(s.Ports), slices.Clone(s.Endpoints)
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		e.Addresses = slices.Clone(e.Addresses[:min(1, len(e.Addresses))]) // kube-proxy uses no others
	}
}

// Omit leaves only the identity and how much there was, of what there is no room for.
func (s *Slice) Omit() {
	s.Omitted.Endpoints, s.Omitted.Ports = len(s.Endpoints), len(s.Ports)
	s.Endpoints, s.Ports = nil, nil
}

// only returns a map with just one label.
func only(labels map[string]string, key string) map[string]string {
	if value, ok := labels[key]; ok {
		return map[string]string{key: value}
	}
	return nil
}

// firstPorts returns the ports that Translate accepts, and one more if there are.
func firstPorts[P any](all []P) []P { return slices.Clone(all[:min(len(all), maxPorts+1)]) }

// Key identifies a Service.
type Key struct{ Namespace, Name string }

func (k Key) String() string { return k.Namespace + "/" + k.Name }

// Key returns the identity of the Service.
func (s *Service) Key() Key { return Key{s.Metadata.Namespace, s.Metadata.Name} }

// Of returns the key of the slice's Service.
func (s *Slice) Of() Key {
	return Key{s.Metadata.Namespace, cmp.Or(s.Metadata.Labels[labelOf], s.service)}
}

// Wanted reports whether pods reach the Service by a cluster address that Kerb may serve.
func (s *Service) Wanted() bool {
	off := s.Metadata.Annotations != nil && s.Metadata.Annotations.Proxy == Off
	return !off && s.Metadata.Labels[labelProxy] == "" && s.Spec.Type != "ExternalName" && len(s.Spec.Ports) > 0 &&
		len(s.Spec.ClusterIPs) > 0 && s.Spec.ClusterIPs[0] != "None"
}

// Node is the location of the clients.
type Node struct{ Name, Zone string }

// Translate returns the virtual service for a Service with all its slices, or an error with the reason why kube-proxy
// keeps serving it.
func Translate(s *Service, slicesOf []*Slice, node Node) (v1.VirtualService, error) {
	out := v1.VirtualService{TypeMeta: v1.TypeMeta{APIVersion: v1.APIVersion, Kind: v1.KindVirtualService},
		Metadata: v1.ObjectMeta{Name: names.VirtualService(s.Metadata.Namespace, s.Metadata.Name)}}
	of, err := view(s, slicesOf)
	if err != nil {
		return out, err
	}
	if s, err = s.withTargets(of); err != nil {
		return out, err
	}
	if out.Spec.Ports, err = ports(s, of); err != nil {
		return out, err
	}
	affinity, err := affinityOf(s)
	if err != nil {
		return out, err
	}
	for _, address := range s.Spec.ClusterIPs {
		affinity.Address = address
		out.Spec.Addresses = append(out.Spec.Addresses, affinity)
	}
	all, err := endpoints(s, of, out.Spec.Ports)
	if err != nil {
		return out, err
	}
	out.Spec.Instances, err = instances(all, groupPorts(out.Spec.Ports, s, of), s, node)
	return out, err
}

// sliceView is an EndpointSlice with what Translate uses for each port.
type sliceView struct {
	*Slice
	serving []Endpoint
	targets map[portName]uint16
}

// portName is how ports of a Service and of its slices correspond.
type portName struct{ name, protocol string }

// view returns the slices as Translate uses them, or an error if there are too many ports.
func view(s *Service, of []*Slice) (out []sliceView, err error) {
	if len(s.Spec.Ports) > maxPorts {
		return nil, fmt.Errorf("it has over %d ports", maxPorts)
	}
	for _, slice := range of {
		if len(slice.Ports) > maxPorts {
			return nil, fmt.Errorf("a slice of its endpoints has over %d ports", maxPorts)
		}
		v := sliceView{Slice: slice, targets: map[portName]uint16{}}
		for _, p := range slices.Backward(slice.Ports) { // the first one of a name counts
			v.targets[portName{p.Name, cmp.Or(p.Protocol, "TCP")}] = p.Port
		}
		v.serving = slices.DeleteFunc(slices.Clone(slice.Endpoints), func(e Endpoint) bool { return !e.serves() })
		out = append(out, v)
	}
	return out, nil
}

// Time-outs of session affinity, in seconds.
const (
	defaultAffinity = 10800
	maxAffinity     = 86400
)

// affinityOf returns an address with the policy for the Service's session affinity: with it, a client gets the same
// instance even if the session table is full, as long as the set of instances does not change.
func affinityOf(s *Service) (a v1.VirtualAddress, err error) {
	if s.Spec.Affinity != clientIP {
		return a, nil
	}
	timeout := defaultAffinity
	if t := s.Spec.Config.ClientIP.Timeout; t != nil {
		timeout = *t
	}
	if timeout < 1 || timeout > maxAffinity {
		return a, fmt.Errorf("its time-out of session affinity is %d s, and not from 1 to %d", timeout, maxAffinity)
	}
	return v1.VirtualAddress{Policy: v1.PolicySourceAffinity, AffinityTimeout: fmt.Sprintf("%ds", timeout)}, nil
}

// withTargets returns the Service without ports for which no serving endpoint has a target. Connections to them are
// rejected, as by kube-proxy. A virtual service without ports would serve all: if none remains, all are kept, unless
// there are endpoints.
func (s *Service) withTargets(of []sliceView) (*Service, error) {
	out := *s
	out.Spec.Ports = slices.DeleteFunc(slices.Clone(s.Spec.Ports), func(p ServicePort) bool {
		return !slices.ContainsFunc(of, func(slice sliceView) bool {
			_, ok := slice.target(p)
			return ok && len(slice.serving) > 0
		})
	})
	switch {
	case len(out.Spec.Ports) > 0:
		return &out, nil
	case slices.ContainsFunc(of, func(slice sliceView) bool { return len(slice.serving) > 0 }):
		return nil, errors.New("no endpoint has the target of any port")
	}
	return s, nil
}

// ports are those of the Service, each with the target port that most endpoints that serve have.
func ports(s *Service, of []sliceView) (out []v1.VirtualPort, err error) {
	for _, p := range s.Spec.Ports {
		port := v1.VirtualPort{Port: p.Port, Protocol: v1.Protocol(strings.ToLower(cmp.Or(p.Protocol, "TCP")))}
		endpoints := map[uint16]int{}
		for _, slice := range of {
			if len(slice.Endpoints) == 0 {
				continue
			}
			target, ok := slice.target(p)
			if !ok {
				continue
			}
			if port.Protocol == v1.ProtocolSCTP && target != p.Port {
				return nil, fmt.Errorf("the target of port %d is %d, and SCTP ports are not translated", p.Port, target)
			}
			endpoints[target] += len(slice.serving)
		}
		for target, n := range endpoints {
			if most := endpoints[port.TargetPort]; port.TargetPort == 0 || n > most || n == most && target < port.TargetPort {
				port.TargetPort = target
			}
		}
		port.TargetPort = cmp.Or(port.TargetPort, p.Port)
		out = append(out, port)
	}
	return out, nil
}

// target returns the target port that the endpoints of the slice have for a port of their Service.
func (s sliceView) target(p ServicePort) (uint16, bool) {
	target, ok := s.targets[portName{p.Name, cmp.Or(p.Protocol, "TCP")}]
	return target, ok
}

// serves reports whether the endpoint has connections, or may get some.
func (e *Endpoint) serves() bool { return e.ready() || e.drains() }

func (e *Endpoint) ready() bool { return isTrue(e.Conditions.Ready, true) }

// drains reports whether the endpoint terminates and still serves.
func (e *Endpoint) drains() bool {
	return isTrue(e.Conditions.Serving, false) && isTrue(e.Conditions.Terminating, false)
}

func isTrue(condition *bool, absent bool) bool {
	if condition == nil {
		return absent
	}
	return *condition
}
