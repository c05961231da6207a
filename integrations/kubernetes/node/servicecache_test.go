// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
	"github.com/kerb-edge/kerb/integrations/kubernetes/services"
)

// taken returns the result of takeChanges with decoded virtual services.
func (s *serviceCache) taken(node services.Node, full bool) (map[services.Key]v1.VirtualService, []services.Key, bool) {
	all, gone, ok := s.takeChanges(node, full)
	out := map[services.Key]v1.VirtualService{}
	for _, key := range all {
		var v v1.VirtualService
		if err := json.Unmarshal(s.text(key, node), &v); err != nil {
			panic(err)
		}
		out[key] = v
	}
	return out, gone, ok
}

func wantedService(name string) services.Service {
	s := services.Service{Metadata: api.ObjectMeta{Name: name, Namespace: "shop"}}
	s.Spec.ClusterIPs, s.Spec.Ports = []string{"10.96.0.1"}, []services.ServicePort{{Port: 80}}
	return s
}

func sliceOf(service, name string, endpoints int) services.Slice {
	s := services.Slice{Metadata: api.ObjectMeta{Name: name, Namespace: "shop",
		Labels: map[string]string{"kubernetes.io/service-name": service}}, Ports: []services.SlicePort{{Port: 8080}}}
	for i := range endpoints {
		s.Endpoints = append(s.Endpoints, services.Endpoint{Addresses: []string{fmt.Sprintf("10.1.%d.%d", i/250, i%250)}})
	}
	return s
}

// Slices and their Service arrive in any order, and nothing is served before both lists are complete.
func TestOrderOfServices(t *testing.T) {
	s := newServiceCache()
	slice, service := s.sliceHandler(), s.serviceHandler()
	slice.Replace([]services.Slice{sliceOf("web", "web-1", 2)})
	if _, _, ok := s.taken(services.Node{}, true); ok || s.condition() != nil {
		t.Error("virtual services without a list of Services")
	}
	service.Replace(nil)
	if desired, _, ok := s.taken(services.Node{}, true); !ok || len(desired) != 0 {
		t.Errorf("without the Service: %v", desired)
	}
	key := services.Key{Namespace: "shop", Name: "web"}
	for _, step := range []struct {
		what   string
		change func()
		want   int // number of instances; -1: the virtual service was deleted
	}{
		{"the Service comes", func() { service.Set(wantedService("web")) }, 2},
		{"a second slice", func() { slice.Set(sliceOf("web", "web-2", 1)) }, 2}, // the same address as the first of web-1
		{"the first grows", func() { slice.Set(sliceOf("web", "web-1", 7)) }, 7},
		{"the first goes", func() { slice.Delete(sliceOf("web", "web-1", 0)) }, 1},
		{"the Service goes", func() { service.Delete(wantedService("web")) }, -1},
		{"and comes", func() { service.Set(wantedService("web")) }, 1},
		{"a list without slices", func() { slice.Replace(nil) }, 0},
		{"a list without Services", func() { service.Replace(nil) }, -1},
	} {
		step.change()
		desired, gone, _ := s.taken(services.Node{}, false)
		v, ok := desired[key]
		if ok != (step.want >= 0) || ok && len(v.Spec.Instances) != step.want || !ok && (len(gone) != 1 || gone[0] != key) {
			t.Errorf("%s: %+v, gone %v", step.what, desired, gone)
		}
	}
	if len(s.all) != 0 || s.total != (usage{}) || len(s.byNamespace)+len(s.addresses) != 0 {
		t.Errorf("%d entries, %+v and addresses %v are left", len(s.all), s.total, s.addresses)
	}
}

// The node reports ports without a target at any endpoint, until one has it.
func TestPortsWithoutTargetAreNamed(t *testing.T) {
	s := newServiceCache()
	slice, service := s.sliceHandler(), s.serviceHandler()
	web := wantedService("web")
	for i := range 5 {
		web.Spec.Ports = append(web.Spec.Ports, services.ServicePort{Name: fmt.Sprint("p", i), Port: uint16(443 + i)})
	}
	web.Spec.Ports = append(web.Spec.Ports, services.ServicePort{Port: 80, Protocol: "UDP", Name: "u"})
	service.Replace([]services.Service{web})
	with := sliceOf("web", "web-1", 1)
	slice.Replace([]services.Slice{with})
	const all = "the proxy serves all Services of the cluster that it may serve"
	for _, want := range []string{"; 1 Service with ports refused, as no endpoint has a target: shop/web, 6 ports: 443, " +
		"444, 445", ""} {
		s.taken(services.Node{}, false)
		if c := s.condition(); c.Status != "True" || c.Message != all+want {
			t.Errorf("%+v, want %q", c, want)
		}
		for _, p := range web.Spec.Ports[1:] {
			with.Ports = append(with.Ports, services.SlicePort(p))
		}
		slice.Set(with)
	}
}

// The stored Services are limited. One that would be served only in part stays with kube-proxy, and the node reports
// it.
func TestServicesAreBounded(t *testing.T) {
	s := newServiceCache()
	slice, service := s.sliceHandler(), s.serviceHandler()
	var all []services.Service
	var slices []services.Slice
	for i := range maxServices + 10 {
		name := fmt.Sprintf("s%04d", i)
		service, namespace := wantedService(name), []string{"other", "shop"}[i%2]
		service.Metadata.Namespace = namespace
		all = append(all, service)
		if i < 30 {
			slice := sliceOf(name, name, services.MaxEndpoints)
			slice.Metadata.Namespace = namespace
			slices = append(slices, slice)
		}
	}
	service.Replace(all)
	slice.Replace(slices)
	desired, _, _ := s.taken(services.Node{}, true)
	const tooMany = (maxEndpoints - maxInstances) / services.MaxEndpoints
	if len(desired) != maxServices-10-tooMany || s.total[useServices] != maxServices ||
		s.total[useEndpoints] != maxEndpoints || s.total[useInstances] != maxInstances ||
		s.total[usePorts] != len(desired) {
		t.Errorf("%d virtual services, %+v", len(desired), s.total)
	}
	c := s.condition()
	if c.Status != "False" || !strings.Contains(c.Message, "28 Services with kube-proxy: other/s0012: endpoints that "+
		"serve are over 12000, or half of it in one namespace; ") ||
		len(c.Message) > maxMessage {
		t.Errorf("the node reports %+v", c)
	}
	slice.Replace(nil)
	service.Replace(all[:5])
	if desired, _, _ := s.taken(services.Node{}, false); len(desired) != 5 || s.condition().Status != "True" {
		t.Errorf("with fewer Services: %d, %+v", len(desired), s.condition())
	}
}

// A namespace uses at most half of the limits of Services. When others are deleted, omitted objects are listed again.
func TestServiceLimitsOfNamespaces(t *testing.T) {
	s := newServiceCache()
	slice, service := s.sliceHandler(), s.serviceHandler()
	var all []services.Service
	for i := range maxServices {
		all = append(all, wantedService(fmt.Sprintf("s%04d", i)))
	}
	other := wantedService("other")
	other.Metadata.Namespace = "other"
	service.Replace(append(all, other))
	slice.Replace(nil)
	desired, _, _ := s.taken(services.Node{}, true)
	if len(desired) != maxServices/2+1 {
		t.Errorf("%d virtual services", len(desired))
	}
	if s.needsRelist() {
		t.Error("a relist is due beyond the limits")
	}
	served := all[0]
	for _, o := range all {
		if _, ok := desired[o.Key()]; ok {
			served = o
		}
	}
	service.Delete(served)
	if !s.needsRelist() {
		t.Error("a Service would fit, and no relist is due")
	}
	slice.Set(sliceOf("s0001", "a", maxEndpoints/2+1))
	if s.taken(services.Node{}, false); s.notServed[services.Key{Namespace: "shop", Name: "s0001"}] == "" {
		t.Error("a Service is served without its endpoints")
	}
	slice.Set(sliceOf("s0001", "a", 1))
	if desired, _, _ := s.taken(services.Node{}, false); len(desired) != 1 {
		t.Errorf("with fewer endpoints: %v, %v", desired, s.condition())
	}
	for _, o := range all {
		service.Delete(o)
	}
	slice.Delete(sliceOf("s0001", "a", 1))
	s.taken(services.Node{}, false)
	if len(s.all) != 1 || s.total != (usage{useServices: 1, useStoredPorts: 1, useSlots: 1, usePorts: 1}) ||
		len(s.byNamespace) != 1 || len(s.notServed) != 0 || s.needsRelist() {
		t.Errorf("%d entries, %+v, %+v, kept %v", len(s.all), s.total, s.byNamespace, s.notServed)
	}
}

var affinity = map[bool]string{true: "ClientIP", false: "None"}

// unequal returns Services of a namespace, and their slices: one slice of one endpoint, whose target ports start at
// 1000, and one of more endpoints, which lacks some ports and has other target ports.
func unequal(namespace string, n, endpoints, ports, lacking, first int) (all []services.Service, of []services.Slice) {
	for i := range n {
		name := fmt.Sprintf("s%04d", i)
		s, one, others := wantedService(name), sliceOf(name, name+"-1", 1), sliceOf(name, name+"-2", endpoints)
		one.Endpoints[0].Addresses = []string{"10.2.0.1"}
		s.Spec.Ports, one.Ports, others.Ports = nil, nil, nil
		for j := range ports {
			p := services.ServicePort{Name: fmt.Sprint("p", j), Port: uint16(1 + j)}
			s.Spec.Ports = append(s.Spec.Ports, p)
			one.Ports = append(one.Ports, services.SlicePort{Name: p.Name, Port: uint16(1000 + j)})
			if j >= lacking {
				others.Ports = append(others.Ports, services.SlicePort{Name: p.Name, Port: uint16(first + j)})
			}
		}
		s.Metadata.Namespace, one.Metadata.Namespace, others.Metadata.Namespace = namespace, namespace, namespace
		if first != 1000 { // the usual target port is that of most endpoints
			one, others = others, one
		}
		all, of = append(all, s), append(of, one, others)
	}
	return all, of
}

// Use of the proxy's tables is limited for each namespace and in total. A Service of another tenant still fits, served
// ones stay served, and omitted ones are served when others are deleted.
func TestProxyTableLimits(t *testing.T) {
	const ports = "ports, times addresses, and target ports that only some endpoints have are over 16000, or half of it " +
		"in one namespace"
	const slots = "slots of the proxy's table, of which an address with session affinity takes 256 or more, are over " +
		"131072, or half of it in one namespace"
	for what, c := range map[string]struct {
		services, endpoints, ports, lacking, first int
		serves                                     int // Services of one namespace
		each                                       usage
		reason                                     string
	}{
		"ports that not all serve": {240, 39, 17, 16, 1000, 15, usage{useInstances: 40, useSlots: 64 + 16,
			useSplitPorts: 16 * 40, usePorts: 17},
			"ports that not all endpoints serve, times endpoints, are over 20000, or half of it in one namespace"},
		"few endpoints": {100, 2, 17, 16, 1000, 39, usage{useInstances: 3, useSlots: 4 + 16, useSplitPorts: 16 * 16,
			usePorts: 17},
			"ports that not all endpoints serve, times endpoints, are over 20000, or half of it in one namespace"},
		"target ports": {80, 90, 64, 0, 2000, 62, usage{useInstances: 91, useSlots: 128, usePorts: 2 * 64}, ports},
		"ports":        {40, 0, 256, 0, 1000, 31, usage{useInstances: 1, useSlots: 1, usePorts: 256}, ports},
		"endpoints": {9, 999, 1, 0, 1000, 6, usage{useInstances: 1000, useSlots: 1024, usePorts: 1},
			"endpoints that serve are over 12000, or half of it in one namespace"},
		"affinity":         {300, 19, 1, 0, 1000, 256, usage{useInstances: 20, useSlots: 256, usePorts: 1}, slots},
		"affinity to more": {80, 25, 1, 0, 1000, 64, usage{useInstances: 26, useSlots: 1024, usePorts: 1}, slots},
		"affinity to many": {15, 599, 1, 0, 1000, 4, usage{useInstances: 600, useSlots: 16384, usePorts: 1}, slots},
	} {
		t.Run(what, func(t *testing.T) {
			s := newServiceCache()
			slice, service := s.sliceHandler(), s.serviceHandler()
			all, of := unequal("evil", c.services, c.endpoints, c.ports, c.lacking, c.first)
			own, slices := unequal("a", 1, 2, c.ports, c.lacking, c.first)
			for i := range all {
				all[i].Spec.Affinity = affinity[c.reason == slots]
			}
			own[0].Spec.Affinity = affinity[c.reason == slots]
			service.Replace(all)
			slice.Replace(of)
			first, _, _ := s.taken(services.Node{}, false)
			if len(first) != c.serves || len(s.notServed) != c.services-c.serves {
				t.Fatalf("%d are served, %d kept, want %d", len(first), len(s.notServed), c.serves)
			}
			for key, v := range first {
				if got := usageOfVirtual(&v); got != c.each {
					t.Fatalf("%s takes %+v", key, got)
				}
			}
			for key, reason := range s.notServed {
				if reason != c.reason {
					t.Fatalf("%s: %s", key, reason)
				}
			}
			// "a" sorts before "evil" in all orders.
			service.Set(own[0])
			for _, o := range slices {
				slice.Set(o)
			}
			if desired, _, _ := s.taken(services.Node{}, false); len(desired) != 1 || s.notServed[own[0].Key()] != "" {
				t.Errorf("of the other tenant are served: %d, %s", len(desired), s.notServed[own[0].Key()])
			}
			late := all[0]
			late.Metadata.Name = "a"
			ofLate := []services.Slice{of[0], of[1]}
			service.Set(late)
			for _, o := range ofLate {
				o.Metadata.Namespace, o.Metadata.Labels = "evil", map[string]string{"kubernetes.io/service-name": "a"}
				slice.Set(o)
			}
			second, _, _ := s.taken(services.Node{}, true)
			for key := range first {
				if _, ok := second[key]; !ok {
					t.Errorf("%s is no longer served", key)
				}
			}
			if _, ok := second[own[0].Key()]; !ok || len(second) != len(first)+1 {
				t.Errorf("%d are served after a Service more", len(second))
			}
			for key := range first {
				if key.Namespace == "evil" {
					gone := wantedService(key.Name)
					gone.Metadata.Namespace = "evil"
					service.Delete(gone)
					break
				}
			}
			s.taken(services.Node{}, false)
			third, _, _ := s.taken(services.Node{}, true)
			if _, ok := third[late.Key()]; !ok || len(third) != len(second) {
				t.Errorf("%d are served when one more fits", len(third))
			}
			service.Replace(nil)
			slice.Replace(nil)
			if s.taken(services.Node{}, false); s.total != (usage{}) || len(s.byNamespace) != 0 {
				t.Errorf("without Services, %+v and %+v are in use", s.total, s.byNamespace)
			}
		})
	}
}

// All namespaces together stay within the total limit. After a restart they are counted in round-robin order, so that a
// namespace with few Services gets its share.
func TestProxyTableTotals(t *testing.T) {
	s := newServiceCache()
	slice, service := s.sliceHandler(), s.serviceHandler()
	var all []services.Service
	var of []services.Slice
	for namespace, n := range map[string]int{"a": 16, "b": 16, "c": 16, "z": 2} {
		more, slices := unequal(namespace, n, 39, 17, 16, 1000)
		all, of = append(all, more...), append(of, slices...)
	}
	service.Replace(all)
	slice.Replace(of)
	desired, _, _ := s.taken(services.Node{}, true)
	served := map[string]int{}
	for key := range desired {
		served[key.Namespace]++
	}
	if len(desired) != 31 || s.total[useSplitPorts] != 31*640 ||
		!maps.Equal(served, map[string]int{"a": 10, "b": 10, "c": 9, "z": 2}) {
		t.Errorf("%v are served, %+v", served, s.total)
	}
}

// Objects are counted against the limits from the oldest, regardless of their order in the list, and round-robin across
// namespaces.
func TestRoundRobin(t *testing.T) {
	var all []services.Service
	for i, name := range []string{"evil/a 3", "evil/b 2", "evil/c 1", "shop/y 9", "shop/x 9", "z/z 4"} {
		var o services.Service
		o.Metadata.Namespace, o.Metadata.Name, _ = strings.Cut(name, "/")
		o.Metadata.Name, o.Metadata.Created, _ = strings.Cut(o.Metadata.Name, " ")
		all = slices.Insert(all, rand.IntN(i+1), o)
	}
	var got []string
	for _, o := range roundRobin(all) {
		got = append(got, o.Key().String())
	}
	if want := []string{"evil/c", "shop/x", "z/z", "evil/b", "shop/y", "evil/a"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if got := roundRobin([]services.Service{}); len(got) != 0 {
		t.Errorf("of none: %v", got)
	}
}

// While Services and EndpointSlices are listed, no namespace takes more memory than its half of the limits. Omitted
// ones stay with kube-proxy.
func TestListsAreBounded(t *testing.T) {
	s := newServiceCache()
	slice, service := s.sliceHandler(), s.serviceHandler()
	share, shareSlice := service.Share(), slice.Share()
	var all []services.Service
	var of []services.Slice
	ports, endpoints := map[string]int{}, map[string]int{}
	add := func(namespace string, n, count, numbers int) {
		o, l := wantedService(fmt.Sprint("s", n)), sliceOf(fmt.Sprint("s", n), fmt.Sprint("l", n), count)
		o.Metadata.Namespace, o.Metadata.UID = namespace, fmt.Sprint(namespace, n)
		o.Metadata.Labels = map[string]string{"a": strings.Repeat("x", 60)}
		l.Metadata.Namespace, l.Metadata.UID = namespace, o.Metadata.UID
		for i := range numbers {
			o.Spec.Ports = append(o.Spec.Ports, services.ServicePort{Port: uint16(100 + i), Name: fmt.Sprint("p", i)})
			l.Ports = append(l.Ports, services.SlicePort{Port: uint16(100 + i), Name: fmt.Sprint("p", i)})
		}
		for range 3 { // changed between two pages of the list
			again, slice := o, l
			share(&again)
			shareSlice(&slice)
			if o, l = again, slice; o.Omitted > 0 || l.Omitted.Endpoints > 0 {
				break
			}
		}
		if len(o.Metadata.Labels) != 0 || len(l.Metadata.Labels) != 0 || len(o.Spec.Ports) > 257 || len(l.Ports) > 257 {
			t.Fatalf("labels %v, %v, %d and %d ports", o.Metadata.Labels, l.Metadata.Labels, len(o.Spec.Ports), len(l.Ports))
		}
		all, of = append(all, o), append(of, l)
		ports[namespace] += cap(o.Spec.Ports) + cap(l.Ports)
		endpoints[namespace] += cap(l.Endpoints)
	}
	for i := range 1000 {
		add("evil", i, 200, 1000)
	}
	add("shop", 0, 200, 200)
	if ports["evil"] > 2*(maxStoredPorts/2+1000) || endpoints["evil"] > maxEndpoints/2*5/4 || ports["shop"] < 400 ||
		endpoints["shop"] < 200 {
		t.Errorf("in memory are ports %v, endpoints %v", ports, endpoints)
	}
	service.Replace(all)
	slice.Replace(of)
	desired, _, _ := s.taken(services.Node{}, true)
	if _, ok := desired[services.Key{Namespace: "shop", Name: "s0"}]; !ok || len(desired) != 1 ||
		len(s.notServed) != 1000 || !s.total.withinFractionOf(1) {
		t.Errorf("%d are served, %d kept, %v", len(desired), len(s.notServed), s.total)
	}
	if s.needsRelist() {
		t.Error("a relist is due beyond the limits")
	}
	small := wantedService("s999") // omitted before
	small.Metadata.Namespace = "evil"
	service.Set(small)
	few := sliceOf("s999", "l999", 1)
	few.Metadata.Namespace = "evil"
	slice.Set(few)
	for i := range 300 {
		o := wantedService(fmt.Sprint("s", i))
		o.Metadata.Namespace = "evil"
		service.Delete(o)
	}
	if !s.needsRelist() {
		t.Error("omitted objects would fit, and no relist is due")
	}
	if desired, _, _ := s.taken(services.Node{}, false); len(desired) != 1 {
		t.Errorf("%d are served: %v", len(desired), s.condition())
	}
}

// Whatever one tenant does, all Services of another tenant within its half are served, and those of the first as long
// as they do not change.
func TestGreedyTenant(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	s := newServiceCache()
	slice, service := s.sliceHandler(), s.serviceHandler()
	service.Replace(nil)
	slice.Replace(nil)
	served, evilLeft, rounds := map[services.Key]bool{}, false, 600
	if testing.Short() {
		rounds = 200
	}
	for range rounds {
		namespace, endpoints, lacking := "evil", 1+r.IntN(800), 16
		if r.IntN(4) == 0 {
			namespace, endpoints, lacking = []string{"a", "shop"}[r.IntN(2)], 1+r.IntN(24), 8
		}
		ports := 1 + r.IntN(40)
		all, of := unequal(namespace, 1+r.IntN(20), endpoints, ports, r.IntN(min(ports, lacking)), 1000+1000*r.IntN(2))
		i := len(all) - 1
		o := all[i]
		if r.IntN(3) == 0 {
			o.Spec.Affinity, o.Spec.ClusterIPs = affinity[true], []string{"10.96.0.1", "fd00::1"}
		}
		before := maps.Clone(served)
		if r.IntN(5) == 0 {
			service.Delete(o)
		} else {
			service.Set(o)
			slice.Set(of[2*i])
			slice.Set(of[2*i+1])
		}
		delete(before, o.Key())
		desired, gone, _ := s.taken(services.Node{}, r.IntN(10) == 0)
		for key := range desired {
			served[key] = true
		}
		for _, key := range gone {
			delete(served, key)
		}
		for key := range before {
			if !served[key] {
				t.Fatalf("%s is not served any more: %s", key, s.notServed[key])
			}
		}
		for key, reason := range s.notServed {
			if full := strings.Contains(reason, "half of"); full && key.Namespace != "evil" {
				t.Fatalf("%s: %s", key, reason)
			} else if full {
				evilLeft = true
			}
		}
		sum := usage{}
		for namespace, u := range s.byNamespace {
			if sum = sum.plus(u); !u.withinFractionOf(2) {
				t.Fatalf("%s has %v", namespace, u)
			}
		}
		if sum != s.total || !sum.withinFractionOf(1) {
			t.Fatalf("all have %v, counted are %v", sum, s.total)
		}
	}
	if !evilLeft || len(served) < 20 {
		t.Errorf("the limits were not reached, or too few are served: %d", len(served))
	}
}

// A Service with an endpoint at a cluster address of another is left to kube-proxy, also if the other one is created
// later: the agent accepts only one of them.
func TestEndpointsAtClusterAddresses(t *testing.T) {
	s := newServiceCache()
	slice, service := s.sliceHandler(), s.serviceHandler()
	victim := wantedService("victim")
	victim.Spec.ClusterIPs = []string{"fd00::7", "10.96.0.7"}
	evil := sliceOf("evil", "a", 0)
	evil.Endpoints = []services.Endpoint{{Addresses: []string{"fd00:0::7"}}}
	slice.Replace([]services.Slice{evil})
	service.Replace([]services.Service{wantedService("evil")})
	key := services.Key{Namespace: "shop", Name: "evil"}
	if desired, _, _ := s.taken(services.Node{}, false); len(desired) != 1 {
		t.Errorf("before the other Service: %v", desired)
	}
	service.Set(victim)
	desired, gone, _ := s.taken(services.Node{}, false)
	if _, ok := desired[victim.Key()]; !ok || len(desired) != 1 || len(gone) != 1 || gone[0] != key {
		t.Errorf("virtual services %v, gone %v", desired, gone)
	}
	if c := s.condition(); !strings.Contains(c.Message, "shop/evil: the endpoint fd00:0::7 is a cluster address") {
		t.Errorf("the node reports %+v", c)
	}
}

// Changes between takeChanges and text are not sent if takeChanges would exclude them now.
func TestChangesBeforeText(t *testing.T) {
	others := usage{useInstances: maxInstances/2 - 2} // of the namespace
	loop := sliceOf("web", "a", 0)
	loop.Endpoints = []services.Endpoint{{Addresses: []string{"10.96.0.7"}}}
	victim := wantedService("victim")
	victim.Spec.ClusterIPs = []string{"10.96.0.7"}
	for name, c := range map[string]struct {
		first, then services.Slice
		later       bool // the other Service
		sent        bool
	}{
		"the same":                     {sliceOf("web", "a", 1), sliceOf("web", "a", 1), false, true},
		"more endpoints":               {sliceOf("web", "a", 1), sliceOf("web", "a", 2), true, true},
		"too many endpoints":           {sliceOf("web", "a", 1), sliceOf("web", "a", 3), false, false},
		"at a cluster address":         {sliceOf("web", "a", 1), loop, false, false},
		"a cluster address that comes": {loop, loop, true, false},
	} {
		s := newServiceCache()
		s.addUsage("shop", others)
		key := services.Key{Namespace: "shop", Name: "web"}
		all := []services.Service{wantedService("web"), victim}
		if c.later {
			all = all[:1]
		}
		s.sliceHandler().Replace([]services.Slice{c.first})
		s.serviceHandler().Replace(all)
		if desired, _, _ := s.takeChanges(services.Node{}, true); !slices.Contains(desired, key) {
			t.Fatalf("%s: take returns %v", name, desired)
		}
		s.sliceHandler().Set(c.then)
		s.serviceHandler().Set(victim)
		if text := s.text(key, services.Node{}); (text != nil) != c.sent {
			t.Errorf("%s: %d bytes are sent", name, len(text))
		}
		sum := others
		for _, e := range s.all {
			sum = sum.plus(e.reserved)
		}
		if sum[useInstances] != s.total[useInstances] || !s.byNamespace["shop"].withinFractionOf(2) {
			t.Errorf("%s: %v is reserved, %v accounted", name, sum, s.total)
		}
		desired, gone, _ := s.takeChanges(services.Node{}, false)
		if slices.Contains(desired, key) != c.sent || slices.Contains(gone, key) == c.sent {
			t.Errorf("%s: the next take returns %v, without %v", name, desired, gone)
		}
	}
}

// The zone of the node is read until it is known, and not in each round.
func TestZoneIsReadAgain(t *testing.T) {
	var asked atomic.Int32
	stored := map[string][]any{"=/api/v1/nodes/n1": {meta("n1", "u", nil)}}
	v := newVirtual(kubeServer(t, &asked, stored), agent{}, "n1", slog.New(slog.DiscardHandler))
	for i, c := range []struct {
		labels map[string]string
		due    bool
		zone   string
		asked  int32
	}{
		{nil, true, "", 1},
		{map[string]string{"topology.kubernetes.io/zone": "z1"}, false, "", 1},
		{map[string]string{"topology.kubernetes.io/zone": "z1"}, true, "z1", 2},
		{nil, true, "z1", 2},
	} {
		stored["=/api/v1/nodes/n1"] = []any{meta("n1", "u", c.labels)}
		if c.due {
			v.zoneDue = time.Time{}
		}
		if err := v.sync(t.Context()); err != nil || v.zone != c.zone || asked.Load() != c.asked {
			t.Errorf("case %d: zone %q after %d requests, %v", i, v.zone, asked.Load(), err)
		}
	}
}

// However many namespaces exceed their limits, a list takes at most twice the limits. A later namespace in the list is
// still served.
func TestListsOfManyNamespacesAreBounded(t *testing.T) {
	s := newServiceCache()
	slice, service := s.sliceHandler(), s.serviceHandler()
	share, shareSlice := service.Share(), slice.Share()
	var all []services.Service
	var of []services.Slice
	ports, slicePorts, endpoints := 0, 0, 0
	add := func(namespace string, n, count, numbers int) {
		o, l := wantedService(fmt.Sprint("s", n)), sliceOf(fmt.Sprint("s", n), fmt.Sprint("l", n), count)
		o.Metadata.Namespace, o.Metadata.UID = namespace, fmt.Sprint(namespace, n)
		l.Metadata.Namespace, l.Metadata.UID = namespace, o.Metadata.UID
		for i := range numbers {
			o.Spec.Ports = append(o.Spec.Ports, services.ServicePort{Port: uint16(100 + i), Name: fmt.Sprint("p", i)})
			l.Ports = append(l.Ports, services.SlicePort{Port: uint16(100 + i), Name: fmt.Sprint("p", i)})
		}
		share(&o)
		shareSlice(&l)
		all, of = append(all, o), append(of, l)
		ports, slicePorts, endpoints = ports+cap(o.Spec.Ports), slicePorts+cap(l.Ports), endpoints+cap(l.Endpoints)
	}
	for i := range 30 {
		for n := range 250 {
			add(fmt.Sprintf("evil-%02d", i), n, 100, 255)
		}
	}
	for n := range 40 { // less than the slack of a full list
		add("evil-29", 1000+n, 1, 1)
	}
	add("shop", 0, 5, 1)
	if ports > 2*maxStoredPorts+30*250 || slicePorts > 2*maxStoredPorts || endpoints > 2*maxEndpoints {
		t.Errorf("in memory are %d and %d ports, %d endpoints", ports, slicePorts, endpoints)
	}
	service.Replace(all)
	slice.Replace(of)
	desired, _, _ := s.taken(services.Node{}, true)
	if _, ok := desired[services.Key{Namespace: "shop", Name: "s0"}]; !ok || !s.total.withinFractionOf(1) {
		t.Errorf("%d are served, %v", len(desired), s.total)
	}
	if s.needsRelist() {
		t.Errorf("a relist is due beyond the limits: %v", s.total)
	}
}

// Services that the proxy does not serve take nothing from the limits of those after them in a list.
func TestServicesOfOthersCountNothing(t *testing.T) {
	off := &api.Annotations{Proxy: services.Off}
	for what, change := range map[string]func(o *services.Service){
		"headless":     func(o *services.Service) { o.Spec.ClusterIPs = []string{"None"} },
		"ExternalName": func(o *services.Service) { o.Spec.Type, o.Spec.ClusterIPs = "ExternalName", nil },
		"off":          func(o *services.Service) { o.Metadata.Annotations = off },
		"another proxy": func(o *services.Service) {
			o.Metadata.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": "x"}
		},
	} {
		s := newServiceCache()
		slice, service := s.sliceHandler(), s.serviceHandler()
		share := service.Share()
		var all []services.Service
		for i := range maxServices + 1 {
			o := wantedService(fmt.Sprintf("s%04d", i))
			o.Metadata.UID = o.Metadata.Name
			if i < maxServices {
				change(&o)
				o.Spec.Ports = append(o.Spec.Ports, make([]services.ServicePort, 200)...)
			}
			if share(&o); o.Omitted > 0 || cap(o.Spec.Ports) > 1 {
				t.Fatalf("%s: %d: %d ports omitted, %d in memory", what, i, o.Omitted, cap(o.Spec.Ports))
			}
			all = append(all, o)
		}
		service.Replace(all)
		slice.Replace(nil)
		if desired, _, _ := s.taken(services.Node{}, true); len(desired) != 1 || s.needsRelist() {
			t.Errorf("%s: %d are served; relist due: %t", what, len(desired), s.needsRelist())
		}
	}
}
