// SPDX-License-Identifier: Apache-2.0

package services

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/kerb-edge/kerb/integrations/kubernetes/names"
)

// read decodes YAML by the tags of JSON.
func read[T any](t *testing.T, text string) *T {
	t.Helper()
	var plain any
	if err := yaml.Unmarshal([]byte(text), &plain); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	data, err := json.Marshal(plain)
	if err != nil {
		t.Fatal(err)
	}
	out := new(T)
	if err := json.Unmarshal(data, out); err != nil {
		t.Fatal(err)
	}
	return out
}

const (
	service = `{metadata: {name: web, namespace: shop}, spec: {clusterIPs: [10.96.0.7, "fd00::7"], %s
  ports: [{name: http, port: 80, protocol: TCP}, {name: dns, port: 53, protocol: UDP}]}}`
	slice = `{metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}, addressType: IPv4,
  ports: [{name: http, port: 8080, protocol: TCP}, {name: dns, port: 5353, protocol: UDP}], endpoints: [%s]}`
)

// state describes instances: their addresses, with a dash in front if they get no new connections.
func state(t *testing.T, spec string, slicesOf ...string) string {
	t.Helper()
	var of []*Slice
	for _, s := range slicesOf {
		of = append(of, read[Slice](t, s))
	}
	v, err := Translate(read[Service](t, fmt.Sprintf(service, spec)), of, Node{"n1", "z1"})
	if err != nil {
		return err.Error()
	}
	var out []string
	for _, i := range v.Spec.Instances {
		text := strings.Join(i.Addresses, "+")
		if i.Draining {
			text = "-" + text
		}
		out = append(out, text)
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func TestEndpoints(t *testing.T) {
	at := func(address, more string) string {
		return fmt.Sprintf("{addresses: ['%s'], targetRef: {uid: u%s}, %s}", address, address, more)
	}
	ready, draining := "conditions: {ready: true}", "conditions: {ready: false, serving: true, terminating: true}"
	const local = "internalTrafficPolicy: Local,"
	notReady := "conditions: {ready: false, serving: false}"
	nodes := func(more ...string) string {
		return "hints: {forNodes: [{name: " + strings.Join(more, "}], forZones: [{name: ") + "}]}"
	}
	zone := func(z string) string { return "hints: {forZones: [{name: " + z + "}]}" }
	for what, c := range map[string]struct {
		spec, endpoints, want string
	}{
		"ready":         {"", at("10.1.0.1", ready) + "," + at("10.1.0.2", ""), "10.1.0.1 10.1.0.2"},
		"not ready":     {"", at("10.1.0.1", ready) + "," + at("10.1.0.2", notReady), "10.1.0.1"},
		"terminating":   {"", at("10.1.0.1", ready) + "," + at("10.1.0.2", draining), "-10.1.0.2 10.1.0.1"},
		"all terminate": {"", at("10.1.0.1", draining) + "," + at("10.1.0.2", notReady), "10.1.0.1"},
		"none":          {"", at("10.1.0.2", notReady), ""},
		"local":         {local, at("10.1.0.1", "nodeName: n1") + "," + at("10.1.0.2", "nodeName: n2"), "10.1.0.1"},
		"local, here it drains": {local, at("10.1.0.1", "nodeName: n1, "+draining) + "," +
			at("10.1.0.2", "nodeName: n2"), "10.1.0.1"},
		"zones":                  {"", at("10.1.0.1", zone("z1")) + "," + at("10.1.0.2", zone("z2")), "-10.1.0.2 10.1.0.1"},
		"zones, one has no hint": {"", at("10.1.0.1", zone("z1")) + "," + at("10.1.0.2", ""), "10.1.0.1 10.1.0.2"},
		"node":                   {"", at("10.1.0.1", nodes("n1")) + "," + at("10.1.0.2", nodes("n2")), "-10.1.0.2 10.1.0.1"},
		"node, one has no hint":  {"", at("10.1.0.1", nodes("n1")) + "," + at("10.1.0.2", ""), "10.1.0.1 10.1.0.2"},
		"node before zone": {"", at("10.1.0.1", nodes("n1", "z1")) + "," + at("10.1.0.2", nodes("n2", "z1")),
			"-10.1.0.2 10.1.0.1"},
		"no endpoint of the node": {"", at("10.1.0.1", nodes("n2", "z1")) + "," + at("10.1.0.2", nodes("n3", "z2")),
			"-10.1.0.2 10.1.0.1"},
		"nodes, one has a hint for a zone only": {"", at("10.1.0.1", nodes("n1", "z2")) + "," + at("10.1.0.2", zone("z1")),
			"-10.1.0.1 10.1.0.2"},
		"the endpoint of the node terminates": {"", at("10.1.0.1", nodes("n1")+", "+draining) + "," +
			at("10.1.0.2", nodes("n2")), "-10.1.0.1 10.1.0.2"},
		"one that terminates needs no hint": {"", at("10.1.0.1", nodes("n1")) + "," + at("10.1.0.2", draining),
			"-10.1.0.2 10.1.0.1"},
		"all terminate, hints are for another node": {"", at("10.1.0.1", nodes("n2")+", "+draining), "10.1.0.1"},
		"local, with hints for another node": {local, at("10.1.0.1", "nodeName: n1, "+nodes("n2")) + "," +
			at("10.1.0.2", "nodeName: n2, "+nodes("n1")), "10.1.0.1"},
		"serving, and neither ready nor terminating": {"", at("10.1.0.1", "conditions: {ready: false, serving: true}"), ""},
		"other zones": {"", at("10.1.0.1", zone("z2")) + "," + at("10.1.0.2", zone("z3")), "10.1.0.1 10.1.0.2"},
	} {
		if got := state(t, c.spec, fmt.Sprintf(slice, c.endpoints)); got != c.want {
			t.Errorf("%s: %q, want %q", what, got, c.want)
		}
	}
	four := fmt.Sprintf(slice, "{addresses: [10.1.0.1], targetRef: {uid: u1}}")
	six := strings.Replace(fmt.Sprintf(slice, "{addresses: ['fd00::1'], targetRef: {uid: u1}}"), "IPv4", "IPv6", 1)
	if got := state(t, "", four, six); got != "10.1.0.1+fd00::1" {
		t.Errorf("a pod with two families is %q", got)
	}
	for _, twice := range [][]string{{four, four}, {four, six, strings.Replace(four, "web-1", "web-2", 1)}} {
		if got, want := state(t, "", twice...), state(t, "", twice[:len(twice)-1]...); got != want {
			t.Errorf("a pod that is in two slices of a family is %q, want %q", got, want)
		}
	}
	// What the agent cannot express stays with kube-proxy.
	moved := strings.Replace(six, "8080", "9090", 1)
	if got := state(t, "", four, moved); !strings.Contains(got, "other target ports in another slice") {
		t.Errorf("a pod whose target port is another one in IPv6: %q", got)
	}
	sctp := func(target string) string {
		spec := strings.ReplaceAll(fmt.Sprintf(service, ""), "TCP", "SCTP")
		of := strings.NewReplacer("TCP", "SCTP", "8080", target).Replace(fmt.Sprintf(slice, "{addresses: [10.1.0.1]}"))
		_, err := Translate(read[Service](t, spec), []*Slice{read[Slice](t, of)}, Node{})
		return fmt.Sprint(err)
	}
	if got := sctp("8080"); got != "the target of port 80 is 8080, and SCTP ports are not translated" {
		t.Errorf("another target port of SCTP: %s", got)
	}
	if got := sctp("80"); got != "<nil>" {
		t.Errorf("the same target port of SCTP: %s", got)
	}
	many := strings.Repeat("{addresses: [10.1.0.1], targetRef: {uid: u%d}},", MaxEndpoints+1)
	var numbers []any
	for i := range MaxEndpoints + 1 {
		numbers = append(numbers, i)
	}
	if got := state(t, "", fmt.Sprintf(slice, fmt.Sprintf(many, numbers...))); !strings.Contains(got, "over 1000") {
		t.Errorf("too many endpoints: %q", got)
	}
}

// Target ports may differ between endpoints: the ports of the virtual service have those of most endpoints.
func TestTargetPorts(t *testing.T) {
	with := func(port int, addresses ...string) *Slice {
		endpoints := make([]string, len(addresses))
		for i, a := range addresses {
			endpoints[i] = "{addresses: [" + a + "]}"
		}
		text := fmt.Sprintf(slice, strings.Join(endpoints, ","))
		return read[Slice](t, strings.Replace(text, "8080", fmt.Sprint(port), 1))
	}
	without := func(ready string, s *Slice) *Slice {
		for i := range s.Endpoints {
			s.Endpoints[i].Conditions = read[Endpoint](t, "conditions: {ready: false, "+ready+"}").Conditions
		}
		return s
	}
	for what, c := range map[string]struct {
		slices []*Slice
		want   string
	}{
		"most are not ready": {[]*Slice{with(8080, "10.1.0.1"),
			without("serving: false", with(9090, "10.1.0.2", "10.1.0.3"))},
			"8080: [10.1.0.1 []]"},
		"most terminate": {[]*Slice{with(8080, "10.1.0.1"),
			without("serving: true, terminating: true", with(9090, "10.1.0.2", "10.1.0.3"))},
			"9090: [10.1.0.1 [{80 8080 tcp}]] [10.1.0.2 []] [10.1.0.3 []]"},
		"none is ready": {[]*Slice{without("serving: false", with(8080, "10.1.0.1"))}, "8080:"},
		"one":           {[]*Slice{with(8080, "10.1.0.1")}, "8080: [10.1.0.1 []]"},
		"none":          {nil, "80:"},
		"empty":         {[]*Slice{with(8080, "10.1.0.1"), with(9090)}, "8080: [10.1.0.1 []]"},
		"most": {[]*Slice{with(8080, "10.1.0.1"), with(9090, "10.1.0.2", "10.1.0.3")},
			"9090: [10.1.0.1 [{80 8080 tcp}]] [10.1.0.2 []] [10.1.0.3 []]"},
		"as many": {[]*Slice{with(9090, "10.1.0.2"), with(8080, "10.1.0.1")},
			"8080: [10.1.0.1 []] [10.1.0.2 [{80 9090 tcp}]]"},
		"three": {[]*Slice{with(1, "10.1.0.1"), with(2, "10.1.0.2"), with(3, "10.1.0.3")},
			"1: [10.1.0.1 []] [10.1.0.2 [{80 2 tcp}]] [10.1.0.3 [{80 3 tcp}]]"},
	} {
		v, err := Translate(read[Service](t, fmt.Sprintf(service, "")), c.slices, Node{})
		if err != nil {
			t.Fatal(err)
		}
		var instances []string
		for _, i := range v.Spec.Instances {
			instances = append(instances, fmt.Sprint(" [", i.Addresses[0], " ", i.TargetPorts, "]"))
		}
		slices.Sort(instances)
		if got := fmt.Sprint(v.Spec.Ports[0].TargetPort, ":") + strings.Join(instances, ""); got != c.want {
			t.Errorf("%s: %s, want %s", what, got, c.want)
		}
	}
}

// A port of which no endpoint that serves has a target is not one of the virtual service, and endpoints that do not
// serve need none. A virtual service has a port in any case: without, it would serve all.
func TestPortsWithoutTarget(t *testing.T) {
	ready, gone := "{addresses: [10.1.0.1]}", "{addresses: [10.1.0.2], conditions: {ready: false}}"
	of := func(names, endpoint string) *Slice {
		text := fmt.Sprintf(slice, endpoint)
		if !strings.Contains(names, "http") {
			text = strings.Replace(text, "name: http", "name: x", 1)
		}
		if !strings.Contains(names, "dns") {
			text = strings.Replace(text, "name: dns", "name: y", 1)
		}
		return read[Slice](t, text)
	}
	for what, c := range map[string]struct {
		slices []*Slice
		want   string
	}{
		"one lacks http": {[]*Slice{of("dns", ready)}, "[{53 5353 udp}] [10.1.0.1]"},
		"one lacks dns":  {[]*Slice{of("http", ready)}, "[{80 8080 tcp}] [10.1.0.1]"},
		"one that does not serve": {[]*Slice{of("http dns", ready), of("dns", gone)},
			"[{80 8080 tcp} {53 5353 udp}] [10.1.0.1]"},
		"the other does not serve":  {[]*Slice{of("dns", ready), of("http dns", gone)}, "[{53 5353 udp}] [10.1.0.1]"},
		"none serves":               {[]*Slice{of("dns", gone)}, "[{80 80 tcp} {53 5353 udp}]"},
		"none has a target":         {[]*Slice{of("", ready)}, "no endpoint has the target of any port"},
		"none has one, none serves": {[]*Slice{of("", gone)}, "[{80 80 tcp} {53 53 udp}]"},
	} {
		v, err := Translate(read[Service](t, fmt.Sprintf(service, "")), c.slices, Node{})
		got := fmt.Sprint(v.Spec.Ports)
		if err != nil {
			got = err.Error()
		}
		for _, i := range v.Spec.Instances {
			got += fmt.Sprint(" ", i.Addresses)
		}
		if got != c.want {
			t.Errorf("%s: %s, want %s", what, got, c.want)
		}
	}
}

// What a Service costs is bounded: it has a number of ports, as its slices, and endpoints are not looked at for each.
func TestManyPorts(t *testing.T) {
	service := func(ports, sliceports int) (*Service, []*Slice) {
		s, slice := &Service{}, &Slice{}
		s.Spec.ClusterIPs = []string{"10.96.0.1"}
		for i := range ports {
			s.Spec.Ports = append(s.Spec.Ports, ServicePort{Name: fmt.Sprint("p", i), Port: uint16(1 + i)})
		}
		for i := range sliceports {
			slice.Ports = append(slice.Ports, SlicePort{Name: fmt.Sprint("p", i), Port: uint16(1001 + i)})
		}
		for i := range 100 {
			slice.Endpoints = append(slice.Endpoints, Endpoint{Addresses: []string{fmt.Sprint("10.1.0.", i+1)}})
		}
		return s, []*Slice{slice}
	}
	for _, c := range []struct {
		ports, sliceports int
		want              string
	}{
		{256, 256, ""}, {1, 256, ""},
		{257, 257, "it has over 256 ports"},
		{1, 5000, "a slice of its endpoints has over 256 ports"},
	} {
		s, of := service(c.ports, c.sliceports)
		v, err := Translate(s, of, Node{})
		if got := fmt.Sprint(err); got != c.want && (c.want != "" || err != nil) {
			t.Errorf("%d ports: %s, want %q", c.ports, got, c.want)
		}
		if err == nil && (len(v.Spec.Ports) != c.ports || v.Spec.Ports[c.ports-1].TargetPort != uint16(1000+c.ports)) {
			t.Errorf("%d ports: %v", c.ports, v.Spec.Ports)
		}
	}
	allocated := func(ports int) float64 {
		s, of := service(ports, 256)
		return testing.AllocsPerRun(5, func() { _, _ = Translate(s, of, Node{}) })
	}
	if one, all := allocated(1), allocated(256); all-one > 400 {
		t.Errorf("%v allocations with 256 ports, %v with one", all, one)
	}
}

func TestSessionAffinity(t *testing.T) {
	for spec, want := range map[string]string{
		"": "[{10.96.0.7   } {fd00::7   }]",
		"sessionAffinity: None, sessionAffinityConfig: {clientIP: {timeoutSeconds: 5}},": "[{10.96.0.7   } {fd00::7   }]",
		"sessionAffinity: ClientIP, sessionAffinityConfig: {},": "[{10.96.0.7 sourceAffinity  10800s} " +
			"{fd00::7 sourceAffinity  10800s}]",
		"sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: {timeoutSeconds: 1}},": "[{10.96.0.7 " +
			"sourceAffinity  1s} {fd00::7 sourceAffinity  1s}]",
		"sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: {timeoutSeconds: 86400}},": "[{10.96.0.7 " +
			"sourceAffinity  86400s} {fd00::7 sourceAffinity  86400s}]",
		"sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: {timeoutSeconds: 0}},":     "affinity is 0 s",
		"sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: {timeoutSeconds: 86401}},": "affinity is 86401 s",
	} {
		v, err := Translate(read[Service](t, fmt.Sprintf(service, spec)),
			[]*Slice{read[Slice](t, fmt.Sprintf(slice, "{addresses: [10.1.0.1]}"))}, Node{})
		if err != nil {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v", spec, err)
			}
			continue
		}
		if got := fmt.Sprint(v.Spec.Addresses); got != want {
			t.Errorf("%s: %s, want %s", spec, got, want)
		}
	}
}

func TestServices(t *testing.T) {
	v, err := Translate(read[Service](t, fmt.Sprintf(service, "sessionAffinity: ClientIP,")),
		[]*Slice{read[Slice](t, fmt.Sprintf(slice, "{addresses: [10.1.0.1]}"))}, Node{})
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(v.Spec.Addresses, v.Spec.Ports); v.Metadata.Name != names.VirtualService("shop", "web") ||
		got != "[{10.96.0.7 sourceAffinity  10800s} {fd00::7 sourceAffinity  10800s}] [{80 8080 tcp} {53 5353 udp}]" {
		t.Errorf("%s: %s", v.Metadata.Name, got)
	}
	for _, more := range []string{"type: ExternalName,", "clusterIPs: [None],", "ports: [],"} {
		if read[Service](t, "{metadata: {name: a}, spec: {"+more+"x: 1}}").Wanted() {
			t.Errorf("%s is wanted", more)
		}
	}
	if !read[Service](t, fmt.Sprintf(service, "")).Wanted() {
		t.Error("an ordinary Service is not wanted")
	}
	for _, more := range []string{"annotations: {kerb.dev/proxy: 'off'}",
		"labels: {service.kubernetes.io/service-proxy-name: other}"} {
		text := strings.Replace(fmt.Sprintf(service, ""), "name: web,", "name: web, "+more+",", 1)
		if read[Service](t, text).Wanted() {
			t.Errorf("a Service with %s is wanted", more)
		}
	}
}
