// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"slices"
	"strings"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
)

// packages returns the pulled packages of the node by their references, if a Module of a namespace names one.
func (s *syncer) packages(ctx context.Context, modules []api.Module) (map[string]v1.Package, error) {
	pulled := func(m api.Module) bool { return m.Metadata.Namespace != "" && m.Spec.Package.Image != "" }
	if !slices.ContainsFunc(modules, pulled) {
		return nil, nil
	}
	all, err := s.agent.packages(ctx)
	if err != nil {
		return nil, err
	}
	out := map[string]v1.Package{}
	for _, p := range all {
		out[p.Source] = p
	}
	return out, nil
}

// allowed returns the reason and the error of a Module of a namespace if its package does more than to see packets of
// the pod.
func allowed(m api.Module, known map[string]v1.Package) (string, error) {
	image := m.Spec.Package.Image
	if image == "" {
		return "", nil
	}
	p, ok := known[image]
	switch {
	case !ok:
		return "NotPulled", fmt.Errorf("spec.package.image: the node does not have it: kerb package pull %s", image)
	case len(p.Capabilities) > 0:
		return "NotAllowed", fmt.Errorf("spec.package.image: the package uses %s of the node: use a ClusterModule",
			strings.Join(p.Capabilities, ", "))
	case slices.Contains(p.Hooks, "sockets"):
		return "NotAllowed", fmt.Errorf("spec.package.image: the package attaches to sockets, not to pods: remove the Module")
	}
	return "", nil
}
