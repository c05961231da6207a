// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"os"
	"strings"
	"testing"

	"github.com/kerb-edge/kerb/internal/lab/pintest"
)

// A directory of pins that another user has made first is not used.
func TestForeignRoot(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: a directory of another user")
	}
	root := pintest.New(t)
	if err := os.Mkdir(root, 0o700); err != nil {
		t.Skip(err)
	}
	defer os.Remove(root)
	for name, change := range map[string]func() error{
		"another user's":     func() error { return os.Chown(root, 65534, 65534) },
		"writable by others": func() error { return os.Chmod(root, 0o777) },
	} {
		if err := change(); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(Options{Root: root}); err == nil || !strings.Contains(err.Error(), "rmdir "+root) {
			t.Errorf("%s: %v", name, err)
		}
		if err := os.Chown(root, 0, 0); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(root, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Open(Options{Root: root}); err != nil {
		t.Errorf("the agent's own: %v", err)
	}
}
