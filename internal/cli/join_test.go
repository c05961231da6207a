// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Lines of GET /v1/trace about lost and omitted events are reported. Other lines that are not packets are rejected.
func TestReadTrace(t *testing.T) {
	file := filepath.Join(t.TempDir(), "edge-1.json")
	read := func(line string) (packets int, notes string, err error) {
		text := line + "\n" + `{"time":"2026-11-29T15:04:05Z","fingerprint":"1"}` + "\n"
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		trace, err := readTrace(&out, file)
		return len(trace.Packets), out.String(), err
	}
	for line, want := range map[string]string{`{"lost":3}`: "3 events were lost", `{"warning":"no drops"}`: "no drops"} {
		if n, notes, err := read(line); n != 1 || !strings.Contains(notes, want) || err != nil {
			t.Errorf("%s: %d packets, %q, %v", line, n, notes, err)
		}
	}
	if n, _, err := read(`{"error":"x"}`); err == nil {
		t.Errorf("%d packets", n)
	}
}
