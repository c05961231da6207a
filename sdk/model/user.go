// SPDX-License-Identifier: Apache-2.0

package model

import (
	"fmt"
	"slices"
)

// User is the control plane of a package whose modules run models. The agent calls those of built-in packages.
type User interface {
	// Extractors returns the names of features by extractor, in the order in which the data plane fills them.
	Extractors() map[string][]string
	// CheckModel reports whether the config of a module references a model, and if so, why the module cannot run it.
	CheckModel(config map[string]any, name string, doc *Document) (referenced bool, err error)
	// OpenEngine loads the package's data plane for test runs. It is not attached to any interface.
	OpenEngine() (Engine, error)
}

// Engine evaluates one model at a time in this machine's kernel, by test runs. It needs CAP_BPF and CAP_NET_ADMIN.
type Engine interface {
	// Load replaces the model.
	Load(*Packed) error
	// Decide evaluates the model on features in the order in which it was packed.
	Decide(features []int64) (Decision, error)
	// Nanoseconds returns how long the last Decide takes in the kernel, without the call into it.
	Nanoseconds() (float64, error)
	// Close unloads the engine.
	Close()
}

// Columns returns the positions of the document's features among all features of its extractor.
func (d *Document) Columns(names []string) ([]int, error) {
	out := make([]int, len(d.Features))
	for i, name := range d.Features {
		if out[i] = slices.Index(names, name); out[i] < 0 {
			return nil, fmt.Errorf("features[%d]: the extractor %s has no feature %q; it has %q", i, d.Extractor, name, names)
		}
	}
	return out, nil
}
