// SPDX-License-Identifier: Apache-2.0

package binpath

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestFind(t *testing.T) {
	alongside, onPath := t.TempDir(), t.TempDir()
	t.Setenv("PATH", onPath)
	place := func(dir, name string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, nil, mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	if _, err := find(alongside, Bench); err == nil || !strings.Contains(err.Error(), "make build") ||
		!strings.Contains(err.Error(), alongside) {
		t.Errorf("a missing program: %v", err)
	}
	place(onPath, Oakestra, 0o755)
	if got, err := nextTo(alongside, Oakestra); err == nil || !strings.Contains(err.Error(), alongside) {
		t.Errorf("a program that runs with the agent's rights was found on PATH: %q, %v", got, err)
	}
	if got, err := nextTo(alongside, filepath.Base(place(alongside, Oakestra, 0o755))); err != nil ||
		got != filepath.Join(alongside, Oakestra) {
		t.Errorf("next to this program: %q, %v", got, err)
	}
	installed := place(onPath, Bench, 0o755)
	place(alongside, Bench, 0o644) // cannot be executed
	if got, err := find(alongside, Bench); got != installed || err != nil {
		t.Errorf("on PATH: %q, %v", got, err)
	}
	if err := os.Chmod(filepath.Join(alongside, Bench), 0o755); err != nil {
		t.Fatal(err)
	}
	if got, err := find(alongside, Bench); got != filepath.Join(alongside, Bench) || err != nil {
		t.Errorf("alongside this program: %q, %v", got, err)
	}
}

func TestFindKerbFromEnvironment(t *testing.T) {
	t.Setenv(KerbEnv, "/opt/kerb")
	if got, err := FindKerb(); got != "/opt/kerb" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}
