// SPDX-License-Identifier: Apache-2.0

// Package pidtest is for tests of what finds processes by the numbers that the kernel shows.
package pidtest

import (
	"os"
	"testing"
)

// firstNamespace is PROC_PID_INIT_INO of the kernel.
const firstNamespace = "pid:[4026531836]"

// NeedPIDs skips a test where processes have other numbers.
func NeedPIDs(t testing.TB) {
	t.Helper()
	if ns, err := os.Readlink("/proc/self/ns/pid"); err == nil && ns != firstNamespace {
		t.Skip("this is not the first PID namespace")
	}
}
