// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

func TestWrite(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "man1")
	if err := write(dir); err != nil {
		t.Fatal(err)
	}
	for page, want := range map[string]string{"kerb.1": "Exit status", "kerb-apply.1": "kerb apply firewall.yaml",
		"kerb-module-list.1": "NAME"} {
		if text, err := os.ReadFile(filepath.Join(dir, page)); err != nil || !bytes.Contains(text, []byte(want)) {
			t.Errorf("%s: %v, want %q in it", page, err, want)
		}
	}
}
