// SPDX-License-Identifier: Apache-2.0

package sdktest

import (
	"fmt"
	"os"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/pkgs/pkgstest"
)

// NeedRoot skips the test without the privileges to load programs.
func NeedRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root for BPF")
	}
	if err := rlimit.RemoveMemlock(); err != nil {
		t.Fatal(err)
	}
}

// Explain ends the test if there is an error. It prints the last lines of a verifier log.
func Explain(t testing.TB, err error) {
	t.Helper()
	pkgstest.Explain(t, err)
}

// CheckVerified fails the test if the verifier processed more than limit instructions of the program. The kernel's
// limit is a million.
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

// KernelAtLeast reports whether the running kernel has at least this version.
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
