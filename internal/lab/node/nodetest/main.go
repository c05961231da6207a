// SPDX-License-Identifier: Apache-2.0

package nodetest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/kerb-edge/kerb/internal/binpath"
	"github.com/kerb-edge/kerb/internal/lab/gobuild"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/lab/tempdir"
)

// Kerb is the path of kerb, built from the source tree, while Main runs the tests.
var Kerb string

// Oakestra is an option of Main for tests that use the integration with Oakestra.
func Oakestra(dir string) error {
	return gobuild.Build(filepath.Join(dir, binpath.Oakestra), "github.com/kerb-edge/kerb/cmd/kerb-oakestra")
}

// Main runs the tests of a package, concurrently with those of other packages and runs. It removes what killed runs
// have left, builds kerb, and lets the package prepare further files in a directory that every user may enter.
func Main(m *testing.M, prepare ...func(dir string) error) int {
	if os.Geteuid() != 0 {
		return m.Run() // tests of nodes are skipped
	}
	dir, err := tempdir.New()
	if err != nil {
		return fail(err)
	}
	defer tempdir.Remove(dir)
	Kerb = filepath.Join(dir, "kerb")
	err = errors.Join(tempdir.Sweep(), netlab.SweepDead(), os.Chmod(dir, 0o711),
		gobuild.Build(Kerb, "github.com/kerb-edge/kerb/cmd/kerb"))
	for _, do := range prepare {
		err = errors.Join(err, do(dir))
	}
	if err != nil {
		return fail(err)
	}
	return m.Run()
}

func fail(err error) int {
	fmt.Fprintln(os.Stderr, err)
	return 1
}
