// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"slices"
	"testing"

	"github.com/kerb-edge/kerb/internal/promtext"
)

// samplesOf returns the metrics as a client reads them.
func samplesOf(t *testing.T, all *promtext.Set) []promtext.Sample {
	t.Helper()
	text, err := all.Encode()
	if err != nil {
		t.Error(err)
	}
	samples, err := promtext.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return samples
}

// collect returns the samples of a metric of the node.
func (n *node) collect(t *testing.T, name string) []promtext.Sample {
	t.Helper()
	var out promtext.Set
	n.Collect(&out)
	return slices.DeleteFunc(samplesOf(t, &out), func(s promtext.Sample) bool { return s.Name != name })
}
