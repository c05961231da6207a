// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
	"github.com/kerb-edge/kerb/integrations/kubernetes/services"
)

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

// Slices and their Service come in any order, and nothing is served before both lists are complete.
func TestOrderOfServices(t *testing.T) {
	s := newServiceState()
	slice, service := s.sliceHandler(), s.serviceHandler()
	slice.Replace([]services.Slice{sliceOf("web", "web-1", 2)})
	if _, _, ok := s.take(services.Node{}, true); ok || s.condition() != nil {
		t.Error("virtual services without a list of Services")
	}
	service.Replace(nil)
	if desired, _, ok := s.take(services.Node{}, true); !ok || len(desired) != 0 {
		t.Errorf("without the Service: %v", desired)
	}
	key := services.Key{Namespace: "shop", Name: "web"}
	for _, step := range []struct {
		what   string
		change func()
		want   int // instances; -1: the virtual service is gone
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
		desired, gone, _ := s.take(services.Node{}, false)
		v, ok := desired[key]
		if ok != (step.want >= 0) || ok && len(v.Spec.Instances) != step.want || !ok && (len(gone) != 1 || gone[0] != key) {
			t.Errorf("%s: %+v, gone %v", step.what, desired, gone)
		}
	}
	if len(s.all) != 0 || s.endpoints != 0 || s.services != 0 {
		t.Errorf("%d entries, %d endpoints and %d Services are left", len(s.all), s.endpoints, s.services)
	}
}

// What is kept of Services is bounded. One that would be served in part stays with kube-proxy, and the node says so.
func TestServicesAreBounded(t *testing.T) {
	s := newServiceState()
	slice, service := s.sliceHandler(), s.serviceHandler()
	var all []services.Service
	var slices []services.Slice
	for i := range maxServices + 10 {
		name := fmt.Sprintf("s%04d", i)
		all = append(all, wantedService(name))
		if i < 30 {
			slices = append(slices, sliceOf(name, name, services.MaxEndpoints))
		}
	}
	service.Replace(all)
	slice.Replace(slices)
	desired, _, _ := s.take(services.Node{}, true)
	if len(desired) != maxServices-10 || s.endpoints != maxEndpoints || s.services != maxServices {
		t.Errorf("%d virtual services, %d endpoints, %d Services", len(desired), s.endpoints, s.services)
	}
	c := s.condition()
	if c.Status != "False" || !strings.Contains(c.Message, "20 Services with kube-proxy: shop/s0020: over") ||
		len(c.Message) > maxMessage {
		t.Errorf("the node reports %+v", c)
	}
	slice.Replace(nil)
	service.Replace(all[:5])
	if desired, _, _ := s.take(services.Node{}, false); len(desired) != 5 || s.condition().Status != "True" {
		t.Errorf("with fewer Services: %d, %+v", len(desired), s.condition())
	}
}
