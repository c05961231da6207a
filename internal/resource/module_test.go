// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"testing"

	"github.com/kerb-edge/kerb/api/v1alpha1"
)

func TestWorstCost(t *testing.T) {
	for want, c := range map[string]*v1alpha1.Cost{
		"":     {Memory: 1}, // measured, but it runs on sockets
		"0 ns": {Latency: []v1alpha1.Latency{{}}},
		"7 ns": {Latency: []v1alpha1.Latency{{Worst: 7}, {Worst: 3}}},
	} {
		if got := worstCost(c); got != want {
			t.Errorf("%+v: %q, want %q", c, got, want)
		}
	}
	if got := worstCost(nil); got != "" {
		t.Errorf("not measured: %q", got)
	}
}
