// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kerb-edge/kerb/api/v1alpha1"
)

func virtualServiceKind() kind[v1alpha1.VirtualService] {
	return kind[v1alpha1.VirtualService]{
		name:     v1alpha1.KindVirtualService,
		noun:     "virtualservice",
		path:     "/v1/virtualservices",
		header:   []any{"NAME", "SOURCE", "ADDRESSES", "READY", "INSTANCES", "MODULES"},
		row:      virtualServiceRow,
		describe: describeVirtualService,
		id:       func(s v1alpha1.VirtualService) string { return s.Metadata.Name },
	}
}

func (a *app) virtualServiceCommand() *cobra.Command {
	k := virtualServiceKind()
	c := noun("virtualservice", "Addresses that stand for groups of instances", k.list(a), k.get(a), k.delete(a))
	c.Aliases = []string{"vs"}
	return c
}

func virtualStatus(s v1alpha1.VirtualService) v1alpha1.VirtualServiceStatus {
	if s.Status == nil {
		return v1alpha1.VirtualServiceStatus{}
	}
	return *s.Status
}

func virtualServiceRow(s v1alpha1.VirtualService) []any {
	status := virtualStatus(s)
	var addresses []string
	for _, a := range s.Spec.Addresses {
		addresses = append(addresses, a.Address)
	}
	return []any{s.Metadata.Name, status.Source, strings.Join(addresses, ","), ready(status.Conditions), len(s.Spec.Instances), strings.Join(status.Modules, ",")}
}

func describeVirtualService(w io.Writer, s v1alpha1.VirtualService) {
	status := virtualStatus(s)
	field(w, "Name", s.Metadata.Name)
	field(w, "Labels", printLabels(s.Metadata.Labels))
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
	for _, i := range status.Instances {
		field(w, "Instance", i.Name+": "+whereabouts(i))
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

func whereabouts(i v1alpha1.VirtualInstanceStatus) string {
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
	if i.Draining {
		parts = append(parts, "draining")
	}
	if i.Ejected != "" {
		parts = append(parts, "ejected by "+i.Ejected)
	}
	return strings.Join(parts, "; ")
}
