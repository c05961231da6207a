// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// Purge removes all files of a node, also temporary ones of a killed process, and keeps foreign files.
func TestPurge(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "kube")
	write := func(names ...string) {
		t.Helper()
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	write(snapshotFile, rolloutsFile, "."+snapshotFile+"123", "."+rolloutsFile+"456")
	for range 2 { // purging nothing is not an error
		if err := Purge(dir); err != nil {
			t.Error(err)
		}
		if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
			all, _ := os.ReadDir(dir)
			t.Errorf("left: %v", all)
		}
	}
	write(snapshotFile, "other")
	if err := Purge(dir); err != nil {
		t.Error(err)
	}
	if all, err := os.ReadDir(dir); err != nil || len(all) != 1 || all[0].Name() != "other" {
		t.Errorf("left: %v, %v", all, err)
	}
}
