// SPDX-License-Identifier: Apache-2.0

package capture

import (
	"bytes"
	"testing"

	"github.com/kerb-edge/kerb/api/v1alpha1"
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
