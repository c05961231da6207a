// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"strings"
	"testing"

	"github.com/kerb-edge/kerb/api/v1alpha1"
)

// Target ports that only one instance has, and ports that it does not serve, are listed with it.
func TestPortsOfInstances(t *testing.T) {
	s := v1alpha1.VirtualService{Spec: v1alpha1.VirtualServiceSpec{
		Ports: []v1alpha1.VirtualPort{{Port: 80, TargetPort: 8080}},
		Instances: []v1alpha1.VirtualInstance{{Name: "a", ExcludedPorts: []v1alpha1.ExcludedPort{{Port: 80},
			{Port: 53, Protocol: v1alpha1.ProtocolUDP, Draining: true}}}, {Name: "b",
			TargetPorts: []v1alpha1.VirtualPort{{Port: 80, TargetPort: 9090}}}}},
		Status: &v1alpha1.VirtualServiceStatus{Instances: []v1alpha1.VirtualInstanceStatus{
			{Name: "a", Addresses: []string{"10.1.0.1"}}, {Name: "b", Addresses: []string{"10.1.0.2"}, Draining: true}}}}
	var out bytes.Buffer
	describeVirtualService(&out, s)
	var got []string
	for line := range strings.Lines(out.String()) {
		if strings.HasPrefix(line, "Instance") {
			got = append(got, strings.Join(strings.Fields(line)[1:], " "))
		}
	}
	const want = "a: 10.1.0.1; tcp 80 not served; udp 53 draining | b: 10.1.0.2; tcp 80 to 9090; draining"
	if strings.Join(got, " | ") != want {
		t.Errorf("%q, want %q", got, want)
	}
}
