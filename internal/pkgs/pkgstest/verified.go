// SPDX-License-Identifier: Apache-2.0

package pkgstest

import (
	"fmt"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// CheckVerified fails if the verifier walked more than limit instructions to accept the program. The kernel's own limit
// is a million.
func CheckVerified(t testing.TB, p *ebpf.Program, limit uint32) {
	t.Helper()
	info, err := p.Info()
	if err != nil {
		t.Fatal(err)
	}
	n, known := info.VerifiedInstructions()
	size, _ := info.TranslatedSize()
	t.Logf("%d instructions verified, %d bytes", n, size)
	if known && n > limit {
		t.Errorf("%d instructions verified, more than %d", n, limit)
	}
}

// KernelAtLeast reports whether the running kernel is of this version or newer.
func KernelAtLeast(t testing.TB, major, minor int) bool {
	t.Helper()
	var name unix.Utsname
	var a, b int
	if err := unix.Uname(&name); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Sscanf(unix.ByteSliceToString(name.Release[:]), "%d.%d", &a, &b); err != nil {
		t.Fatal(err)
	}
	return a > major || a == major && b >= minor
}
