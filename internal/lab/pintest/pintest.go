// SPDX-License-Identifier: Apache-2.0

// Package pintest provides paths in bpffs for the pins of tests, and removes the pins of killed tests.
package pintest

import (
	"os"
	"sync"
	"testing"

	"github.com/kerb-edge/kerb/internal/lab/tempdir"
)

var sweep = sync.OnceValue(tempdir.Sweep)

// New returns a unique path at which the test can create a directory. The test must remove its pins; if it is killed,
// the next process that calls New removes them. New skips the test without root.
func New(tb testing.TB) string {
	tb.Helper()
	if os.Geteuid() != 0 {
		tb.Skip("needs root for pins")
	}
	if err := sweep(); err != nil {
		tb.Fatal(err)
	}
	dir, err := tempdir.New()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := tempdir.Remove(dir); err != nil {
			tb.Error(err)
		}
	})
	return tempdir.PinPath(dir)
}
