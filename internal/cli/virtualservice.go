// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"fmt"
	"io"
	"strings"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/resource"
)

func describeVirtualService(w io.Writer, s v1alpha1.VirtualService) {
	status := resource.Status(s.Status)
	field(w, "Name", s.Metadata.Name)
	field(w, "Labels", resource.Labels(s.Metadata.Labels))
	field(w, "Source", status.Source)
	field(w, "Modules", strings.Join(status.Modules, ", "))
	printConditions(w, status.Conditions)
	fmt.Fprintln(w)
	for _, a := range s.Spec.Addresses {
		field(w, "Address", a.Address+": "+meaning(a))
	}
	for _, p := range s.Spec.Ports {
		field(w, "Port", portText(p))
	}
	own := map[string]v1alpha1.VirtualInstance{}
	for _, i := range s.Spec.Instances {
		own[i.Name] = i
	}
	for _, i := range status.Instances {
		field(w, "Instance", i.Name+": "+instanceLocation(i, own[i.Name]))
	}
}

func meaning(a v1alpha1.VirtualAddress) string {
	switch {
	case a.Instance != "":
		return "instance " + a.Instance
	case a.Policy != "":
		return string(a.Policy)
	}
	return string(v1alpha1.PolicyRoundRobin)
}

func portText(p v1alpha1.VirtualPort) string {
	protocol, target := p.Protocol, p.TargetPort
	if protocol == "" {
		protocol = v1alpha1.ProtocolTCP
	}
	if target == 0 {
		target = p.Port
	}
	return fmt.Sprintf("%s %d to %d", protocol, p.Port, target)
}

func excludedText(p v1alpha1.ExcludedPort) string {
	protocol, how := cmp.Or(p.Protocol, v1alpha1.ProtocolTCP), "not served"
	if p.Draining {
		how = "draining"
	}
	return fmt.Sprintf("%s %d %s", protocol, p.Port, how)
}

func instanceLocation(i v1alpha1.VirtualInstanceStatus, own v1alpha1.VirtualInstance) string {
	parts := []string{strings.Join(i.Addresses, ", ")}
	if i.Reason != "" {
		parts[0] = i.Reason
	}
	if i.Service != "" {
		parts = append(parts, "service "+i.Service)
	}
	if i.Node != "" {
		parts = append(parts, "node "+i.Node)
	}
	for _, p := range own.TargetPorts {
		parts = append(parts, portText(p))
	}
	for _, p := range own.ExcludedPorts {
		parts = append(parts, excludedText(p))
	}
	if i.Draining {
		parts = append(parts, "draining")
	}
	if i.Ejected != "" {
		parts = append(parts, "ejected by "+i.Ejected)
	}
	return strings.Join(parts, "; ")
}
