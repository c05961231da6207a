// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"time"
)

// KindModel is the kind of a Model.
const KindModel = "Model"

// Model is a trained model that modules evaluate on packets. It is a resource of its own because a new model does not
// change the module: the agent sends it to control planes, which write it into maps while packets flow.
type Model struct {
	TypeMeta
	Metadata ObjectMeta   `json:"metadata"`
	Spec     ModelSpec    `json:"spec"`
	Status   *ModelStatus `json:"status,omitempty" readOnly:"true"`
}

// Meta returns the metadata.
func (m *Model) Meta() *ObjectMeta { return &m.Metadata }

// Content returns the spec.
func (m *Model) Content() any { return m.Spec }

// ClearStatus removes the status.
func (m *Model) ClearStatus() { m.Status = nil }

// MaxModelDocument is the size of the largest document, in bytes.
const MaxModelDocument = 4 << 20

// ModelSpec is the model itself.
type ModelSpec struct {
	// Document is text and not an object, so that agents store it unchanged and a document with 100,000 weights takes no
	// more memory than its file.
	Document string `json:"document" minLength:"2" maxLength:"4194304" doc:"JSON text of the format kerb-model/1; empty in lists"`
}

// ModelStatus is the status of a model.
type ModelStatus struct {
	Conditions []Condition    `json:"conditions,omitempty"`
	Summary    ModelSummary   `json:"summary" doc:"Contents of the document"`
	Modules    []string       `json:"modules,omitempty" doc:"Modules that use its current version"`
	Versions   []ModelVersion `json:"versions,omitempty" doc:"Previous versions kept for a rollback, newest first; absent in lists"`
}

// ModelSummary describes a document without its numbers.
type ModelSummary struct {
	Name      string   `json:"name" doc:"From the document"`
	Version   uint32   `json:"version" doc:"Version from the document; part of every verdict"`
	Model     string   `json:"model" doc:"Kind of model, for example mlp or forest"`
	Shape     string   `json:"shape" doc:"For example 4-3-2-1 for a perceptron"`
	Extractor string   `json:"extractor" doc:"Extractor that computes its features"`
	Features  []string `json:"features"`
	Classes   []string `json:"classes,omitempty"`
	Digest    string   `json:"digest" doc:"SHA-256 of the document"`
	Size      int      `json:"bytes" doc:"Of the document"`
}

// ModelVersion is an earlier version of a model.
type ModelVersion struct {
	Generation int64     `json:"generation" doc:"metadata.generation of the version"`
	Version    uint32    `json:"version" doc:"From its document"`
	Digest     string    `json:"digest" doc:"SHA-256 of its document"`
	Replaced   time.Time `json:"replaced" doc:"When it was replaced"`
}

// Digest returns the SHA-256 of the document.
func (s ModelSpec) Digest() string {
	sum := sha256.Sum256([]byte(s.Document))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// DocumentVersion returns the version in the document, 0 if it has none.
func (s ModelSpec) DocumentVersion() uint32 {
	var head struct {
		Version uint32 `json:"version"`
	}
	_ = json.Unmarshal([]byte(s.Document), &head) // documents are checked elsewhere
	return head.Version
}
