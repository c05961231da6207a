// SPDX-License-Identifier: Apache-2.0

package main_test

import (
	"encoding/json"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// An agent that `go build` makes in a fresh clone, where no data plane is compiled yet, does not start, and says what to
// run; it builds packages, as `make bpf` needs it to.
func TestFreshClone(t *testing.T) {
	if testing.Short() {
		t.Skip("builds kerb")
	}
	dir := t.TempDir()
	kerb := filepath.Join(dir, "kerb")
	if out, err := exec.Command("go", "build", "-overlay", withoutObjects(t, dir), "-o", kerb, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	agent := exec.Command(kerb, "agent", "--config", filepath.Join(dir, "kerb.yaml"), "--state", filepath.Join(dir, "state"),
		"--run", filepath.Join(dir, "run"), "--bpf", filepath.Join(dir, "bpf"))
	agent.Dir = dir
	if err := os.WriteFile(filepath.Join(dir, "kerb.yaml"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := agent.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "built without data planes") || !strings.Contains(string(out), "make build") {
		t.Errorf("the agent: %v: %s", err, out)
	}
	if out, err := exec.Command(kerb, "package", "build", "--help").CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// withoutObjects is an overlay for `go build` that hides the compiled data planes.
func withoutObjects(t *testing.T, dir string) string {
	t.Helper()
	replace := map[string]string{}
	for _, top := range []string{"../../bpf", "../../modules"} {
		err := filepath.WalkDir(top, func(path string, _ fs.DirEntry, err error) error {
			if err == nil && strings.HasSuffix(path, ".o") {
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
	overlay := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(overlay, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return overlay
}
