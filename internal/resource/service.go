// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apierrors"
)

// Service is the kind of workloads.
var Service = &Definition[v1alpha1.Service]{
	Name:     v1alpha1.KindService,
	Short:    "Workloads of the node",
	Aliases:  []string{"svc"},
	Kernel:   true,
	Complete: checkService,
	Columns: []Column[v1alpha1.Service]{
		{Header: "LABELS", Cell: func(s *v1alpha1.Service) any { return Labels(s.Metadata.Labels) }},
		{Header: "FOUND BY", Cell: func(s *v1alpha1.Service) any { return DiscoveryMethod(s.Spec) }},
		{Header: "READY", Cell: func(s *v1alpha1.Service) any { return Ready(Status(s.Status).Conditions) }},
		{Header: "INTERFACES", Cell: func(s *v1alpha1.Service) any { return strings.Join(interfaces(s), ",") }},
		{Header: "ADDRESSES", Cell: func(s *v1alpha1.Service) any { return strings.Join(Status(s.Status).Addresses, ",") }},
		{Header: "MODULES", Wide: true, Cell: func(s *v1alpha1.Service) any { return strings.Join(modulesOn(s), ",") }},
	},
}

func checkService(s *v1alpha1.Service, _ map[string]any) error {
	given := 0
	for _, set := range []bool{s.Spec.Netns != "", s.Spec.PID != 0, s.Spec.Interface != ""} {
		if set {
			given++
		}
	}
	if given != 1 {
		reason := "set exactly one of netns, pid and interface: that is how the service is found"
		return &apierrors.Invalid{Field: "spec", Reason: reason}
	}
	if s.Spec.Netns != "" && !filepath.IsAbs(s.Spec.Netns) {
		return &apierrors.Invalid{Field: "spec.netns", Reason: fmt.Sprintf("%q is not an absolute path", s.Spec.Netns)}
	}
	return nil
}

// DiscoveryMethod returns how the agent finds a service: by its pid, network namespace or interface.
func DiscoveryMethod(s v1alpha1.ServiceSpec) string {
	switch {
	case s.Netns != "":
		return s.Netns
	case s.PID != 0:
		return fmt.Sprintf("pid %d", s.PID)
	}
	return "interface " + s.Interface
}

func interfaces(s *v1alpha1.Service) (out []string) {
	for _, l := range Status(s.Status).Links {
		out = append(out, l.Interface)
	}
	return out
}

// modulesOn returns the modules on a service's interfaces and sockets.
func modulesOn(s *v1alpha1.Service) []string {
	status := Status(s.Status)
	all := slices.Clone(status.Sockets)
	for _, l := range status.Links {
		for _, h := range l.Hooks {
			all = append(all, h.Modules...)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}
