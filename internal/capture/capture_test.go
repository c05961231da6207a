// SPDX-License-Identifier: Apache-2.0

package capture

import (
	"bytes"
	"testing"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/pcapng"
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

// The verdict of a captured packet is that of the last module that did not pass it on, in the kernel's numbers.
func TestVerdictOf(t *testing.T) {
	for hook, want := range map[string]map[string]uint64{
		"tc-egress": {"next": 1<<64 - 1, "drop": 2, "reply": 7, "redirect": 7, "invalid": 0},
		"xdp":       {"next": 2, "drop": 1, "reply": 3, "redirect": 4, "invalid": 0},
	} {
		for verdict, value := range want {
			p := v1alpha1.TracedPacket{Hook: hook, Steps: []v1alpha1.TraceStep{{Verdict: "next"}, {Verdict: verdict},
				{Verdict: "next"}}}
			if got := verdictOf(p); got.Value != value || (got.Hook == pcapng.XDP) != (hook == "xdp") {
				t.Errorf("%s, %s: %v", hook, verdict, got)
			}
		}
	}
}

// The comment of a captured packet has the words that the API has for it.
func TestWordsOfTheAPI(t *testing.T) {
	step := v1alpha1.TraceStep{Module: "fw", Verdict: "drop", Reason: "policy", Note: "rule", Name: "no-dns", Value: 3,
		Nanoseconds: 42}
	if got, want := Steps(v1alpha1.TracedPacket{Steps: []v1alpha1.TraceStep{step}}, true),
		"fw:drop (policy) rule=no-dns in 42 ns"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
