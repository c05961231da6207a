// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"os"
	"testing"

	"github.com/kerb-edge/kerb/internal/control"
	"github.com/kerb-edge/kerb/internal/lab/tempdir"
	"github.com/kerb-edge/kerb/modules"
	"github.com/kerb-edge/kerb/sdk"
)

// TestMain lets agents of these tests start control planes as they do in kerb: from the binary that they run in.
func TestMain(m *testing.M) {
	control.Intercept(modules.Controls())
	if len(os.Args) > 1 && os.Args[1] == probeCommand {
		if err := sdk.Serve(&probe{}); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if len(os.Args) > 1 && os.Args[1] == socketsCommand {
		if err := sdk.Serve(&socketsControl{}); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if os.Geteuid() == 0 { // otherwise there are no pins
		if err := tempdir.Sweep(); err != nil { // directories and pins of runs that were killed
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	code := m.Run()
	_ = os.Remove(sharedFacts()) // if a test has needed it
	os.Exit(code)
}

// openDir is a directory that control planes can come to.
func openDir(t *testing.T) string {
	t.Helper()
	dir, err := tempdir.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tempdir.Remove(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	return dir
}
