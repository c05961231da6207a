// SPDX-License-Identifier: Apache-2.0

package api

import (
	"slices"
	"strings"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
)

// PackageTrusts is the plural name, as in paths of the API server.
const PackageTrusts = "packagetrusts"

// PackageTrust permits packages of registries to the modules of a cluster. Without one, the keys of each node alone
// decide. With some, a package needs one that permits it, and a key of the node as before: a cluster that was taken
// over has no node run what the node does not trust.
type PackageTrust struct {
	v1.TypeMeta
	Metadata ObjectMeta       `json:"metadata"`
	Spec     PackageTrustSpec `json:"spec" doc:"Packages that modules of the cluster may name"`

	// Undecodable is the error of an object that this program cannot decode. It permits nothing.
	Undecodable string `json:"undecodable,omitempty"`
}

// PackageTrustSpec names repositories and keys.
type PackageTrustSpec struct {
	Repositories []string `json:"repositories" minItems:"1" maxItems:"64" doc:"REGISTRY/REPOSITORY, or with a slash at the end REGISTRY/ or REGISTRY/PATH/ and all repositories below it"`
	Keys         []string `json:"keys,omitempty" minItems:"1" maxItems:"16" doc:"Fingerprints of public keys (kerb package keygen prints them), one of which must have signed the package; nodes have the keys themselves. Absent: any key of the node"`
}

// Meta returns the metadata.
func (t *PackageTrust) Meta() *ObjectMeta { return &t.Metadata }

// Keep implements watch.Keeper: without an object that cannot be decoded, everything might be permitted.
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
