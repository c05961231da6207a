// SPDX-License-Identifier: Apache-2.0

// Package pintest gives tests paths in bpffs for their pins. It removes the pins of tests that were killed.
package pintest

import (
	"os"
	"sync"
	"testing"

	"github.com/kerb-edge/kerb/internal/lab/tempdir"
)

var sweep = sync.OnceValue(tempdir.Sweep)

// New returns a path that no other test has, where the test creates a directory. The test removes its pins. If it is
// killed before, the next process that calls New removes them. Without root the test is skipped.
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
