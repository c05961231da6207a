// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestReadSecret(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, size int, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(strings.Repeat("x", size)+"\n"), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good := write("good", 32, 0o600)
	if text, err := readSecret(good); err != nil || text != strings.Repeat("x", 32) {
		t.Errorf("%q, %v", text, err)
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink(good, link); err != nil {
		t.Fatal(err)
	}
	for path, reason := range map[string]string{
		"good": "not an absolute path", filepath.Join(dir, "gone"): "no such file", dir: "not a regular file",
		link:                     "too many levels",
		write("open", 32, 0o644): "chmod 600", write("large", maxSecret, 0o600): "too large",
	} {
		if text, err := readSecret(path); err == nil || !strings.Contains(err.Error(), reason) || text != "" {
			t.Errorf("%s: %d bytes, %v", path, len(text), err)
		}
	}
	if os.Geteuid() != 0 {
		return
	}
	foreign := write("foreign", 32, 0o600)
	if err := os.Chown(foreign, 4711, -1); err != nil {
		t.Fatal(err)
	}
	if _, err := readSecret(foreign); err == nil || !strings.Contains(err.Error(), "user 4711") {
		t.Errorf("foreign file: %v", err)
	}
}
