// SPDX-License-Identifier: Apache-2.0

package services

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
)

// sliceOf returns an EndpointSlice as the API server has it, with the ports and endpoints that are given as YAML.
func sliceOf(t *testing.T, name, family, ports string, endpoints ...string) *Slice {
	t.Helper()
	return read[Slice](t, fmt.Sprintf(`{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: %s,
  namespace: shop, labels: {kubernetes.io/service-name: web,
  endpointslice.kubernetes.io/managed-by: endpointslice-controller.k8s.io}}, addressType: %s, ports: %s,
  endpoints: [%s]}`, name, family, ports, strings.Join(endpoints, ", ")))
}

// Ports of slices.
const (
	onlyHTTP = "[{name: http, port: 8080, protocol: TCP}]"
	onlyDNS  = "[{name: dns, port: 5353, protocol: UDP}]"
	both     = "[{name: http, port: 8080, protocol: TCP}, {name: dns, port: 5353, protocol: UDP}]"
)

// pod is an endpoint as the EndpointSlice controller writes it.
func pod(n int, more string) string {
	conditions := "conditions: {ready: true, serving: true, terminating: false}"
	if strings.Contains(more, "conditions:") {
		conditions = ""
	}
	return fmt.Sprintf("{addresses: [10.1.0.%d], nodeName: n%d, targetRef: {kind: Pod, namespace: shop, name: web-%d, "+
		"uid: u%d}, %s}", n, n, n, n, strings.Trim(conditions+", "+more, ", "))
}

func pod6(n int, more string) string {
	return strings.Replace(pod(n, more), fmt.Sprintf("10.1.0.%d", n), fmt.Sprintf("'fd00::%d'", n), 1)
}

const (
	terminating = "conditions: {ready: false, serving: true, terminating: true}"
	unready     = "conditions: {ready: false, serving: false, terminating: false}"
)

// described returns instances by their first address, with a dash in front if they drain, their target ports, and the
// ports that they do not serve, with a dash in front if connections to these continue.
func described(v v1.VirtualService) string {
	var out []string
	for _, i := range v.Spec.Instances {
		text := strings.Join(i.Addresses, "+")
		if i.Draining {
			text = "-" + text
		}
		for _, p := range i.TargetPorts {
			text += fmt.Sprint(" to ", p.TargetPort)
		}
		for _, p := range i.ExcludedPorts {
			text += " not "
			if p.Draining {
				text += "-"
			}
			text += fmt.Sprint(p.Protocol, p.Port)
		}
		out = append(out, text)
	}
	slices.Sort(out)
	return strings.Join(out, "; ")
}

// The ports of a Service have endpoints each, as their slices say: an instance of the virtual service does not serve
// the others. Each port is treated by itself, as kube-proxy does.
func TestPortsWithEndpointsOfTheirOwn(t *testing.T) {
	of := func(name, ports string, endpoints ...string) *Slice {
		return sliceOf(t, name, "IPv4", ports, endpoints...)
	}
	of6 := func(name, ports string, endpoints ...string) *Slice {
		return sliceOf(t, name, "IPv6", ports, endpoints...)
	}
	node, zone := "hints: {forNodes: [{name: n1}]}", "hints: {forZones: [{name: z2}]}"
	for what, c := range map[string]struct {
		spec   string
		slices []*Slice
		want   string
	}{
		"all have both": {"", []*Slice{of("a", both, pod(1, "")), of("b", both, pod(2, ""))}, "10.1.0.1; 10.1.0.2"},
		"one lacks a port, as in a rollout that adds one": {"", []*Slice{of("a", both, pod(1, "")),
			of("b", onlyHTTP, pod(2, ""))}, "10.1.0.1; 10.1.0.2 not udp53"},
		"each has a port": {"", []*Slice{of("a", onlyDNS, pod(1, "")), of("b", onlyHTTP, pod(2, ""))},
			"10.1.0.1 not tcp80; 10.1.0.2 not udp53"},
		"both are in slices of one port each": {"", []*Slice{of("a", onlyDNS, pod(1, ""), pod(2, "")),
			of("b", onlyHTTP, pod(2, ""), pod(1, ""))}, "10.1.0.1; 10.1.0.2"},
		"one is ready for one port only": {"", []*Slice{of("a", onlyDNS, pod(1, ""), pod(2, unready)),
			of("b", onlyHTTP, pod(1, ""), pod(2, ""))}, "10.1.0.1; 10.1.0.2 not udp53"},
		"one terminates, and is the only one of a port": {"", []*Slice{of("a", both, pod(1, terminating)),
			of("b", onlyHTTP, pod(2, ""))}, "10.1.0.1 not -tcp80; 10.1.0.2 not udp53"},
		"one terminates": {"", []*Slice{of("a", both, pod(1, ""), pod(3, terminating)), of("b", onlyHTTP, pod(2, ""))},
			"-10.1.0.3; 10.1.0.1; 10.1.0.2 not udp53"},
		"one terminates that lacks a port": {"", []*Slice{of("a", both, pod(1, "")), of("b", onlyHTTP, pod(2, terminating))},
			"-10.1.0.2 not udp53; 10.1.0.1"},
		"hints are for one port": {"", []*Slice{
			of("a", onlyHTTP, pod(1, node), pod(2, strings.Replace(node, "n1", "n2", 1))),
			of("b", onlyDNS, pod(1, ""), pod(2, ""))}, "10.1.0.1; 10.1.0.2 not -tcp80"},
		"hints are for another zone, but for one port": {"", []*Slice{of("a", both, pod(1, zone)),
			of("b", onlyHTTP, pod(2, strings.Replace(zone, "z2", "z1", 1)))}, "10.1.0.1 not -tcp80; 10.1.0.2 not udp53"},
		"local traffic, and a port is elsewhere only": {"internalTrafficPolicy: Local,", []*Slice{
			of("a", onlyHTTP, pod(1, "")), of("b", both, pod(2, ""))}, "10.1.0.1 not udp53"},
		"target ports differ, too": {"", []*Slice{of("a", both, pod(1, ""), pod(3, "")),
			of("b", strings.Replace(onlyHTTP, "8080", "9090", 1), pod(2, ""))},
			"10.1.0.1; 10.1.0.2 to 9090 not udp53; 10.1.0.3"},
		"target ports differ, in slices of one port each": {"", []*Slice{of("a", onlyHTTP, pod(1, ""), pod(3, "")),
			of("b", strings.Replace(onlyHTTP, "8080", "9090", 1), pod(2, "")), of("c", onlyDNS, pod(2, ""))},
			"10.1.0.1 not udp53; 10.1.0.2 to 9090; 10.1.0.3 not udp53"},
		"two families": {"", []*Slice{of("a", both, pod(1, "")), of6("b", both, pod6(1, "")),
			of("c", onlyHTTP, pod(2, "")), of6("d", onlyHTTP, pod6(2, ""))},
			"10.1.0.1+fd00::1; 10.1.0.2+fd00::2 not udp53"},
		"two families, of which one has the port already": {"", []*Slice{of("a", both, pod(1, "")),
			of6("b", onlyHTTP, pod6(1, ""))}, "10.1.0.1+fd00::1"},
		"two families, and one of them says that the pod terminates": {"", []*Slice{of("a", both, pod(1, terminating)),
			of6("b", both, pod6(1, "")), of("c", both, pod(2, ""))}, "-10.1.0.1+fd00::1; 10.1.0.2"},
		"another family by itself": {"", []*Slice{of("a", both, pod(1, "")),
			of6("b", onlyHTTP, "{addresses: ['fd00::1']}")}, "10.1.0.1; fd00::1 not udp53"},
		"one of no port": {"", []*Slice{of("a", both, pod(1, "")), of("b", "[]", pod(2, ""))}, "10.1.0.1"},
	} {
		v, err := Translate(read[Service](t, fmt.Sprintf(service, c.spec)), c.slices, Node{"n1", "z1"})
		if err != nil {
			t.Errorf("%s: %v", what, err)
			continue
		}
		if got := described(v); got != c.want || len(v.Spec.Ports) != 2 {
			t.Errorf("%s: %s with %v, want %s", what, got, v.Spec.Ports, c.want)
		}
	}
}

// What changes for one port leaves the virtual service, the other ports and the names of instances as they are: the
// agent's sessions are those of the name of a virtual service and an instance, and of a port.
func TestOtherPortsStay(t *testing.T) {
	names := func(v v1.VirtualService) map[string]string {
		out := map[string]string{"": v.Metadata.Name}
		for _, i := range v.Spec.Instances {
			out[i.Addresses[0]] = i.Name
		}
		return out
	}
	s := read[Service](t, fmt.Sprintf(service, ""))
	a := sliceOf(t, "a", "IPv4", both, pod(1, ""))
	var before map[string]string
	for _, other := range []string{both, onlyHTTP, "[]", both} {
		v, err := Translate(s, []*Slice{a, sliceOf(t, "b", "IPv4", other, pod(2, ""))}, Node{})
		if err != nil {
			t.Fatal(err)
		}
		got := names(v)
		for address, name := range before {
			if now, ok := got[address]; ok && now != name {
				t.Errorf("with ports %s, %s is %s and was %s", other, address, now, name)
			}
		}
		if fmt.Sprint(v.Spec.Ports) != "[{80 8080 tcp} {53 5353 udp}]" || len(v.Spec.Addresses) != 2 {
			t.Errorf("with ports %s: %v, %v", other, v.Spec.Ports, v.Spec.Addresses)
		}
		before = got
	}
}

// manyPorts returns a Service with a number of ports, and a slice of one endpoint with as many, from a number on.
func manyPorts(n, number int, address string) (*Service, *Slice) {
	s, slice := &Service{}, &Slice{Endpoints: []Endpoint{{Addresses: []string{address}}}}
	s.Spec.ClusterIPs = []string{"10.96.0.1"}
	for i := range n {
		s.Spec.Ports = append(s.Spec.Ports, ServicePort{Name: fmt.Sprint("p", i), Port: uint16(1 + i)})
		slice.Ports = append(slice.Ports, SlicePort{Name: fmt.Sprint("p", i), Port: uint16(number + i)})
	}
	return s, slice
}

// A Service has few ports that not all its endpoints serve, and none if clients have affinity: each port has a run of
// slots in tables that all Services share.
func TestSplitPortsAreBounded(t *testing.T) {
	const many = "not all its endpoints serve %d of its ports, over 16"
	const affinity = "it has session affinity, and not all its endpoints serve all its ports"
	for _, c := range []struct {
		ports, lacking int
		affinity, want string
	}{
		{20, 16, "None", ""}, {20, 17, "None", fmt.Sprintf(many, 17)}, {256, 255, "", fmt.Sprintf(many, 255)},
		{20, 0, "ClientIP", ""}, {20, 1, "ClientIP", affinity}, {256, 255, "ClientIP", affinity},
	} {
		s, all := manyPorts(c.ports, 1001, "10.1.0.1")
		_, some := manyPorts(c.ports-c.lacking, 1001, "10.1.0.2")
		s.Spec.Affinity = c.affinity
		v, err := Translate(s, []*Slice{all, some}, Node{})
		if err != nil {
			if err.Error() != c.want {
				t.Errorf("%+v: %v", c, err)
			}
			continue
		}
		excluded := 0
		for _, i := range v.Spec.Instances {
			excluded += len(i.ExcludedPorts)
		}
		if c.want != "" || excluded != c.lacking || len(v.Spec.Ports) != c.ports {
			t.Errorf("%+v: %d excluded ports of %d", c, excluded, len(v.Spec.Ports))
		}
	}
}

// An endpoint has as many target ports of its own as the agent accepts: one more would have it refuse the others, too.
func TestTargetPortsAreBounded(t *testing.T) {
	for n, want := range map[int]string{64: "<nil>", 65: "an endpoint has 65 target ports that others have not, over 64"} {
		s, one := manyPorts(n, 1001, "10.1.0.1")
		_, other := manyPorts(n, 2001, "10.1.0.2")
		if _, err := Translate(s, []*Slice{one, other}, Node{}); fmt.Sprint(err) != want {
			t.Errorf("%d ports: %v", n, err)
		}
	}
}
