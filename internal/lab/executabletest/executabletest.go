// SPDX-License-Identifier: Apache-2.0

// Package executabletest is for tests of what examines processes.
package executabletest

import (
	"testing"

	"github.com/kerb-edge/kerb/internal/executable"
)

// NeedPIDs skips a test that examines processes by the numbers that the kernel tells, where they have others.
func NeedPIDs(t testing.TB) {
	t.Helper()
	if err := executable.CheckPIDNamespace(); err != nil {
		t.Skip(err)
	}
}
