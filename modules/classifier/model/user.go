// SPDX-License-Identifier: Apache-2.0

package model

import (
	"fmt"
	"slices"
)

// User is the control plane of a package whose modules run models. The agent asks those of the built-in packages.
type User interface {
	// Extractors returns the names of features by extractor, in the order in which the data plane fills them.
	Extractors() map[string][]string
	// CheckModel reports whether the config of a module references a model, and if so, why the module cannot run it.
	CheckModel(config map[string]any, name string, doc *Document) (referenced bool, err error)
}

// Columns finds the document's features among all those of its extractor.
func (d *Document) Columns(names []string) ([]int, error) {
	out := make([]int, len(d.Features))
	for i, name := range d.Features {
		if out[i] = slices.Index(names, name); out[i] < 0 {
			return nil, fmt.Errorf("features[%d]: the extractor %s has no feature %q; it has %q", i, d.Extractor, name, names)
		}
	}
	return out, nil
}
