// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kerb-edge/kerb/internal/lab/wait"
)

// The URL is neither on a command line nor in a file that other users can read.
func TestOpenBrowserHidesTheAddress(t *testing.T) {
	dir := t.TempDir()
	seen := filepath.Join(dir, "seen")
	script := "#!/bin/sh\nstat -c '%a' \"$1\" >" + seen + ".new\necho \"$@\" >>" + seen + ".new\ncat \"$1\" >>" + seen +
		".new\nmv " + seen + ".new " + seen + "\n"
	if err := os.WriteFile(filepath.Join(dir, "xdg-open"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	const address = "http://127.0.0.1:7180/?token=SECRET"
	end, err := openBrowser(context.Background(), address)
	if err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "the browser", func() bool { _, err := os.Stat(seen); return err == nil })
	text, err := os.ReadFile(seen)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.SplitN(string(text), "\n", 3)
	if lines[0] != "600" || strings.Contains(lines[1], "SECRET") || !strings.Contains(lines[2], address) {
		t.Errorf("mode, arguments and file: %q", lines)
	}
	file := strings.TrimSpace(lines[1])
	if end(); file == "" {
		t.Fatal("no file")
	}
	if _, err := os.Stat(file); err == nil {
		t.Errorf("%s is still there", file)
	}
}
