// SPDX-License-Identifier: Apache-2.0

package capture

import (
	"bytes"
	"maps"
	"slices"
	"testing"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/kerbabi"
)

func TestMessagesAreLeftOut(t *testing.T) {
	var out bytes.Buffer
	w, err := NewWriter(&out)
	if err != nil {
		t.Fatal(err)
	}
	before := out.Len()
	for hook, written := range map[string]bool{"sockets": false, "xdp": true} {
		err := w.Add(v1alpha1.TracedPacket{Hook: hook, Protocol: "tcp", Steps: []v1alpha1.TraceStep{{Module: "fast"}}})
		if err != nil || (out.Len() > before) != written {
			t.Errorf("%s: %d bytes, %v", hook, out.Len()-before, err)
		}
		before = out.Len()
	}
}

// The comment of a captured packet has the words that the API has for it, and every verdict is one for Wireshark.
func TestWordsOfTheAPI(t *testing.T) {
	for _, actions := range []map[string]uint64{tcActions, xdpActions} {
		if got := slices.Sorted(maps.Keys(actions)); !slices.Equal(got, slices.Sorted(slices.Values(kerbabi.Verdicts))) {
			t.Errorf("verdicts are %v, not %v", got, kerbabi.Verdicts)
		}
	}
	step := v1alpha1.TraceStep{Module: "fw", Verdict: "drop", Reason: "policy", Note: "rule", Name: "no-dns", Value: 3,
		Nanoseconds: 42}
	if got, want := Steps(v1alpha1.TracedPacket{Steps: []v1alpha1.TraceStep{step}}, true),
		"fw:drop (policy) rule=no-dns in 42 ns"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
