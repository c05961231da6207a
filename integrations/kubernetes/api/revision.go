// SPDX-License-Identifier: Apache-2.0

package api

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"slices"
	"strconv"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
)

// ModuleRevisions is the plural name, as in paths of the API server.
const ModuleRevisions = "modulerevisions"

// Limits of the revisions of a ClusterModule.
const (
	MaxRevisions    = 10
	MaxRevisionData = 256 << 10 // bytes
)

// Labels of revisions, by which kerb-kube-controller orders them without their data.
const (
	LabelModule    = "kerb.dev/module"
	LabelModuleUID = "kerb.dev/module-uid"
	LabelRevision  = "kerb.dev/revision" // a number; a spec that comes back gets the highest
)

// ModuleRevision is an earlier or the current spec of a ClusterModule. It is immutable, and deleted with the
// ClusterModule. Nodes do not read it: the ClusterModule contains both versions of a rollout.
type ModuleRevision struct {
	v1.TypeMeta
	Metadata ObjectMeta         `json:"metadata"`
	Spec     ModuleRevisionSpec `json:"spec" doc:"A spec that a ClusterModule has had, written by kerb-kube-controller"`
}

// ModuleRevisionSpec has the spec as text, since an API server does not compare fields without a schema.
type ModuleRevisionSpec struct {
	Module string `json:"module" minLength:"1" maxLength:"63" doc:"Name of the ClusterModule"`
	Data   string `json:"data" minLength:"2" maxLength:"262144" doc:"Its spec as JSON, without rollout"`
}

// Meta returns the metadata.
func (r *ModuleRevision) Meta() *ObjectMeta { return &r.Metadata }

// RawSpec is the spec of a ClusterModule as in the API server, with unknown fields and unconverted numbers.
type RawSpec map[string]json.RawMessage

// Revision returns the name and the data of the revision of the spec of a ClusterModule.
func (s RawSpec) Revision(module string) (name, data string) {
	spec := maps.Clone(s)
	delete(spec, "rollout")
	text, _ := json.Marshal(spec) // decoded from JSON
	sum := sha256.Sum256(text)
	return module + "-" + hex.EncodeToString(sum[:5]), string(text)
}

// Previous returns the spec of the nodes that do not run the new version of a rollout, or nil without a rollout.
func (s RawSpec) Previous() RawSpec {
	var rollout struct {
		Previous RawSpec `json:"previous"`
	}
	if json.Unmarshal(s["rollout"], &rollout) != nil || rollout.Previous == nil {
		return nil
	}
	out := maps.Clone(s)
	delete(out, "config")
	maps.Copy(out, rollout.Previous)
	delete(out, "rollout")
	return out
}

// RevisionNumber returns the number of a revision, or 0.
func RevisionNumber(m ObjectMeta) int {
	n, _ := strconv.Atoi(m.Labels[LabelRevision])
	return n
}

// SortRevisions sorts the metadata of revisions, the newest first.
func SortRevisions[T any](all []T, meta func(T) ObjectMeta) {
	slices.SortFunc(all, func(a, b T) int {
		return cmp.Or(RevisionNumber(meta(b))-RevisionNumber(meta(a)), cmp.Compare(meta(a).Name, meta(b).Name))
	})
}
