// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
	"github.com/kerb-edge/kerb/integrations/kubernetes/watch"
)

// maxSigners is the maximum number of fingerprints in a message.
const maxSigners = 3

// trust has the packages that the cluster permits, in addition to the verification with the node's keys.
type trust struct {
	Known bool               `json:"known"` // a list was complete, in this run or an earlier one
	All   []api.PackageTrust `json:"all,omitempty"`
}

// trustHandler returns the handler of the watch of PackageTrusts. It is not among the lists that must be complete
// before the node acts: without the CRD of PackageTrust, only packages of registries wait.
func (s *state) trustHandler() watch.Handler[api.PackageTrust] {
	change := func(f func(all []api.PackageTrust) trust) {
		s.update(ofClusterModules, func() bool {
			next := f(slices.Clone(s.trust.All))
			slices.SortFunc(next.All, func(a, b api.PackageTrust) int {
				return cmp.Compare(a.Metadata.Name, b.Metadata.Name)
			})
			same := reflect.DeepEqual(next, s.trust)
			s.trust = next
			return !same
		})
	}
	without := func(all []api.PackageTrust, name string) []api.PackageTrust {
		return slices.DeleteFunc(all, func(t api.PackageTrust) bool { return t.Metadata.Name == name })
	}
	essence := func(t api.PackageTrust) api.PackageTrust {
		return api.PackageTrust{Metadata: api.ObjectMeta{Name: t.Metadata.Name}, Spec: t.Spec, Undecodable: t.Undecodable}
	}
	return watch.Handler[api.PackageTrust]{
		Replace: func(list []api.PackageTrust) {
			change(func([]api.PackageTrust) trust {
				next := trust{Known: true}
				for _, t := range list {
					next.All = append(next.All, essence(t))
				}
				return next
			})
		},
		Set: func(t api.PackageTrust) {
			change(func(all []api.PackageTrust) trust {
				return trust{s.trust.Known, append(without(all, t.Metadata.Name), essence(t))}
			})
		},
		Delete: func(t api.PackageTrust) {
			change(func(all []api.PackageTrust) trust { return trust{s.trust.Known, without(all, t.Metadata.Name)} })
		},
	}
}

// from returns the reason and the error of a package whose repository is not permitted, so that it is not pulled.
func (t trust) from(image string) (string, error) {
	switch permits := func(p api.PackageTrust) bool { return p.Permits(image) }; {
	case !t.Known:
		return api.TrustUnknown, errors.New("spec.package.image: the API server has not listed PackageTrusts yet: apply " +
			"deploy/kubernetes/crds and kerb-kube-node.yaml of this version")
	case len(t.All) > 0 && !slices.ContainsFunc(t.All, permits):
		repository, _, _ := strings.Cut(image, "@")
		return api.NotPermitted, fmt.Errorf("spec.package.image: no PackageTrust permits %s: add it to spec.repositories of "+
			"one (kubectl get packagetrusts), or use another package", repository)
	}
	return "", nil
}

// signed returns the reason and the error of a package of a permitted repository without a signature of an accepted
// key.
func (t trust) signed(p v1.Package) (string, error) {
	image, signers := cmp.Or(p.Pinned, p.Source), p.SignedBy
	accepts := func(t api.PackageTrust) bool { return t.Permits(image) && !p.Waived && t.Accepts(signers) }
	if len(t.All) == 0 || slices.ContainsFunc(t.All, accepts) {
		return "", nil
	}
	by := "its signature has no name (kerb package sign gives it one)"
	if p.Waived {
		by = "the operator of the node has waived its signature"
	}
	if len(signers) > 0 {
		by = "it is signed by " + strings.Join(signers[:min(maxSigners, len(signers))], ", ")
	}
	return api.NotPermitted, fmt.Errorf("spec.package.image: no PackageTrust that permits the repository accepts the "+
		"keys of the package: %s; add a key to spec.keys, or have the package signed by another one", by)
}
