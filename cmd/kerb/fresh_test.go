// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// An agent built by `go build` in a fresh clone, without compiled data planes, does not start and prints what to run.
// It can build packages, as `make bpf` requires.
func TestFreshClone(t *testing.T) {
	kerb := buildKerb(t, "-overlay", withoutObjects(t))
	dir := t.TempDir()
	config := filepath.Join(dir, "kerb.yaml")
	if err := os.WriteFile(config, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	out, status := run(kerb, "agent", "--config", config, "--state", dir+"/state", "--run", dir+"/run",
		"--bpf", dir+"/bpf")
	if status == 0 || !strings.Contains(out, "built without data planes") || !strings.Contains(out, "make build") {
		t.Errorf("exit status %d: %s", status, out)
	}
	if out, status := run(kerb, "package", "build", "--help"); status != 0 {
		t.Errorf("exit status %d: %s", status, out)
	}
}

// withoutObjects returns an overlay for `go build` that hides the compiled data planes.
func withoutObjects(t *testing.T) string {
	t.Helper()
	replace := map[string]string{}
	for _, top := range []string{"../../bpf", "../../modules"} {
		err := filepath.WalkDir(top, func(path string, _ fs.DirEntry, err error) error {
			if err == nil && (strings.HasSuffix(path, ".o") || strings.HasSuffix(path, ".zip")) {
				path, err = filepath.Abs(path)
				replace[path] = ""
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	overlay := filepath.Join(t.TempDir(), "overlay.json")
	if err := os.WriteFile(overlay, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return overlay
}
