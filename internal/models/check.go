// SPDX-License-Identifier: Apache-2.0

package models

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"weak"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/modules"
	"github.com/kerb-edge/kerb/sdk/model"
)

// Limits of a node: documents stay in memory.
const (
	MaxModels = 64
	MaxBytes  = 64 << 20 // of all documents
)

// Check validates the document of a model. Errors are *apierrors.Invalid.
func Check(m v1.Model) error {
	if _, err := parse(m.Spec); err != nil {
		return &apierrors.Invalid{Resource: v1.KindModel + " " + m.Metadata.Name, Field: "spec.document", Reason: err.Error()}
	}
	return nil
}

// CheckTogether checks the limits of a node: all are its models after the change, put those that change. Errors are
// *apierrors.Invalid.
func CheckTogether(all map[string]v1.Model, put []v1.Model) error {
	size := 0
	for _, m := range all {
		size += len(m.Spec.Document)
	}
	for _, m := range put {
		wrong := &apierrors.Invalid{Resource: v1.KindModel + " " + m.Metadata.Name}
		switch {
		case m.Metadata.Generation == 1 && len(all) > MaxModels:
			wrong.Reason = fmt.Sprintf("a node can have at most %d models, this would make %d; delete some with kerb "+
				"model delete", MaxModels, len(all))
		case size > MaxBytes:
			wrong.Reason = fmt.Sprintf("the documents of all models would take %d MiB, more than %d; delete some with kerb "+
				"model delete", size>>20, MaxBytes>>20)
		default:
			continue
		}
		return wrong
	}
	return nil
}

// users are the control planes of built-in packages that run models, by package. Modules of other packages report in a
// condition why they cannot use a model.
var users = sync.OnceValue(func() map[string]model.User {
	out := map[string]model.User{}
	for name, control := range modules.Controls() {
		if u, ok := control.(model.User); ok {
			out[name] = u
		}
	}
	return out
})

// OpenEngine loads the engine that evaluates models in the data plane of a built-in package, for trials without
// packets.
func OpenEngine() (model.Engine, error) {
	for _, u := range users() {
		return u.OpenEngine()
	}
	return nil, errors.New("no built-in package runs models")
}

// extractors are the features of all built-in extractors.
func extractors() map[string][]string {
	out := map[string][]string{}
	for _, u := range users() {
		maps.Copy(out, u.Extractors())
	}
	return out
}

// Warnings returns why a valid model does not run in a module that references it, or cannot run in any.
func Warnings(m v1.Model, modules map[string]v1.Module) (out []string) {
	doc, err := parse(m.Spec)
	if err != nil {
		return nil
	}
	used := false
	for _, name := range slices.Sorted(maps.Keys(modules)) {
		user := users()[modules[name].Spec.Package]
		if user == nil {
			continue
		}
		referenced, err := user.CheckModel(modules[name].Spec.Config, m.Metadata.Name, doc)
		if used = used || referenced; err != nil {
			out = append(out, fmt.Sprintf("model %s: module %s references it but cannot use it, the previous version keeps "+
				"running: %v", m.Metadata.Name, name, err))
		}
	}
	known := extractors()
	features := known[doc.Extractor]
	if used {
		return out
	}
	if features == nil {
		return []string{fmt.Sprintf("model %s: no built-in module has the extractor %s; known are %q", m.Metadata.Name,
			doc.Extractor, slices.Sorted(maps.Keys(known)))}
	}
	if _, err := doc.Pack(features); err != nil {
		out = append(out, fmt.Sprintf("model %s: only a module with evaluate.where: user can use it: %v", m.Metadata.Name,
			err))
	}
	return out
}

// last is the document that was parsed last, until the garbage collector frees it: loading a model needs it several
// times, and parsing takes milliseconds.
var last struct {
	sync.Mutex
	text string
	doc  weak.Pointer[model.Document]
}

// parse returns a document, which callers must not change. Features of a built-in extractor have to exist.
func parse(spec v1.ModelSpec) (*model.Document, error) {
	last.Lock()
	defer last.Unlock()
	if doc := last.doc.Value(); doc != nil && last.text == spec.Document {
		return doc, nil
	}
	doc, err := model.Parse([]byte(spec.Document))
	if err != nil {
		return nil, err
	}
	if features := extractors()[doc.Extractor]; features != nil { // otherwise another package has the extractor
		if _, err := doc.Columns(features); err != nil {
			return nil, err
		}
	}
	last.text, last.doc = spec.Document, weak.Make(doc)
	return doc, nil
}

// Summarize returns the summary of a document.
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
