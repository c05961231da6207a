// SPDX-License-Identifier: Apache-2.0

package api

import (
	"slices"
	"strings"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
)

// PackageTrusts is the plural name, as in paths of the API server.
const PackageTrusts = "packagetrusts"

// PackageTrust permits modules of a cluster to use packages of registries. Without any PackageTrust, only the keys of
// each node decide. Otherwise a package needs a PackageTrust that permits it and, as before, a key of the node: a
// compromised cluster cannot make a node run a package that the node does not trust.
type PackageTrust struct {
	v1.TypeMeta
	Metadata ObjectMeta       `json:"metadata"`
	Spec     PackageTrustSpec `json:"spec" doc:"Packages that modules of the cluster may name"`

	// Undecodable is the error if this program cannot decode the object, which then permits nothing.
	Undecodable string `json:"undecodable,omitempty"`
}

// PackageTrustSpec lists repositories and keys.
type PackageTrustSpec struct {
	Repositories []string `json:"repositories" minItems:"1" maxItems:"64" doc:"REGISTRY/REPOSITORY, or with a slash at the end REGISTRY/ or REGISTRY/PATH/ and all repositories below it"`
	Keys         []string `json:"keys,omitempty" minItems:"1" maxItems:"16" doc:"Fingerprints of public keys (kerb package keygen prints them), one of which must have signed the package; nodes have the keys themselves. Absent: any key of the node"`
}

// Meta returns the metadata.
func (t *PackageTrust) Meta() *ObjectMeta { return &t.Metadata }

// Keep implements watch.Keeper: if undecodable objects were dropped, everything might be permitted.
func (t *PackageTrust) Keep(err error) { t.Undecodable = err.Error() }

// Permits reports whether a package may come from its repository. The image is REPOSITORY@DIGEST.
func (t *PackageTrust) Permits(image string) bool {
	repository, _, _ := strings.Cut(image, "@")
	return t.Undecodable == "" && slices.ContainsFunc(t.Spec.Repositories, func(r string) bool {
		return r == repository || strings.HasSuffix(r, "/") && strings.HasPrefix(repository, r)
	})
}

// Accepts reports whether one of the keys that have signed a package is accepted.
func (t *PackageTrust) Accepts(signers []string) bool {
	return len(t.Spec.Keys) == 0 || slices.ContainsFunc(signers, func(key string) bool {
		return slices.Contains(t.Spec.Keys, key)
	})
}
