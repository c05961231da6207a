// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"maps"
	"strings"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/resolve"
)

// VirtualService is the kind of addresses that stand for groups of instances.
var VirtualService = &Definition[v1alpha1.VirtualService]{
	Name:     v1alpha1.KindVirtualService,
	Words:    "virtual service",
	Short:    "Addresses that stand for groups of instances",
	Aliases:  []string{"vs"},
	ListNote: "including those found by resolvers",
	Complete: func(s *v1alpha1.VirtualService, _ map[string]any) error { return resolve.Check(*s) },
	CheckAll: func(next State, _, changed []v1alpha1.VirtualService) ([]string, error) {
		if len(changed) == 0 {
			return nil, nil
		}
		services := maps.Collect(all[v1alpha1.VirtualService](next, v1alpha1.KindVirtualService))
		return nil, resolve.CheckTogether(services, changed)
	},
	IsApplied: func(s *v1alpha1.VirtualService) bool { return Status(s.Status).Source == v1alpha1.SourceStatic },
	Columns: []Column[v1alpha1.VirtualService]{
		{Header: "SOURCE", Cell: func(s *v1alpha1.VirtualService) any { return Status(s.Status).Source }},
		{Header: "ADDRESSES", Cell: func(s *v1alpha1.VirtualService) any { return strings.Join(virtualAddresses(s), ",") }},
		{Header: "READY", Cell: func(s *v1alpha1.VirtualService) any { return Ready(Status(s.Status).Conditions) }},
		{Header: "INSTANCES", Cell: func(s *v1alpha1.VirtualService) any { return len(s.Spec.Instances) }},
		{Header: "MODULES", Cell: func(s *v1alpha1.VirtualService) any {
			return strings.Join(Status(s.Status).Modules, ",")
		}},
	},
}

func virtualAddresses(s *v1alpha1.VirtualService) (out []string) {
	for _, a := range s.Spec.Addresses {
		out = append(out, a.Address)
	}
	return out
}
