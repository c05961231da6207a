// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"strings"
	"testing"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/kerb-edge/kerb/internal/promtext"
)

// sample is one value of a metric; of a histogram, the number of its values.
type sample struct {
	Labels map[string]string
	Value  float64
}

// collect returns the samples of a metric of the node, as Prometheus reads them.
func (n *node) collect(t *testing.T, name string) (samples []sample) {
	t.Helper()
	var out promtext.Set
	n.Collect(&out)
	text, err := out.Encode()
	if err != nil {
		t.Error(err)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range families[strings.TrimSuffix(name, "_count")].GetMetric() {
		s := sample{map[string]string{}, m.GetGauge().GetValue() + m.GetCounter().GetValue() +
			float64(m.GetHistogram().GetSampleCount())}
		for _, l := range m.GetLabel() {
			s.Labels[l.GetName()] = l.GetValue()
		}
		samples = append(samples, s)
	}
	return samples
}

// A scrape waits for no change, however long that takes, also if no client has looked at the node before.
func TestScrapeDuringChange(t *testing.T) {
	n := newNode(t)
	n.apply(t, n.both(), module("counter", "counter", "*", nil))
	n.Agent.Exclusive.Lock()
	defer n.Agent.Exclusive.Unlock()
	if got := n.collect(t, "kerb_modules"); len(got) != 1 || got[0].Value != 1 {
		t.Errorf("%+v", got)
	}
}
