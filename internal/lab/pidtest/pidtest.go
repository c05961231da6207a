// SPDX-License-Identifier: Apache-2.0

// Package pidtest is for tests that find processes by the ids that the kernel reports.
package pidtest

import (
	"os"
	"testing"
)

// firstNamespace is the link of the initial PID namespace (PROC_PID_INIT_INO).
const firstNamespace = "pid:[4026531836]"

// NeedPIDs skips the test in a PID namespace, where processes have other ids.
func NeedPIDs(t testing.TB) {
	t.Helper()
	if ns, err := os.Readlink("/proc/self/ns/pid"); err == nil && ns != firstNamespace {
		t.Skip("this is not the first PID namespace")
	}
}
