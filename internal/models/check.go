// SPDX-License-Identifier: Apache-2.0

package models

import (
	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/fault"
	"github.com/kerb-edge/kerb/internal/store"
	"github.com/kerb-edge/kerb/modules/classifier"
	"github.com/kerb-edge/kerb/modules/classifier/model"
)

// VersionsKept is how many earlier versions of a model are kept.
const VersionsKept = store.VersionsKept

// Check finds what is wrong with a model, beyond its schema. Errors are *fault.Invalid.
func Check(m v1.Model) error {
	if _, err := parse(m.Spec); err != nil {
		return &fault.Invalid{Resource: v1.KindModel + " " + m.Metadata.Name, Field: "spec.document", Reason: err.Error()}
	}
	return nil
}

// parse reads a document. Features of an extractor that is known have to exist.
func parse(spec v1.ModelSpec) (*model.Document, error) {
	doc, err := model.Parse([]byte(spec.Document))
	if err != nil {
		return nil, err
	}
	return doc, classifier.CheckFeatures(doc)
}

// Summarize reads what a document holds.
func Summarize(spec v1.ModelSpec) (v1.ModelSummary, error) {
	out := v1.ModelSummary{Digest: spec.Digest(), Size: len(spec.Document)}
	doc, err := parse(spec)
	if err != nil {
		return out, err
	}
	out.Name, out.Version, out.Model, out.Extractor = doc.Name, doc.Version, doc.Kind, doc.Extractor
	out.Features, out.Classes, out.Shape = doc.Features, doc.Classes, shape(doc)
	return out, nil
}
