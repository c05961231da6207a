// SPDX-License-Identifier: Apache-2.0

package pkgstest

import (
	"errors"
	"os"
	"sync"
	"testing"

	"github.com/cilium/ebpf/rlimit"

	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/pkgs"
)

var built = sync.OnceValues(Build)

// Package is what Build gives, built once for all tests. On kernels that lack what it requires, the test is skipped.
func Package(t testing.TB) *pkgs.Package {
	t.Helper()
	p, err := built()
	if err != nil {
		t.Fatal(err)
	}
	var missing *pkgs.FeatureError
	if errors.As(p.CheckFeatures(), &missing) {
		t.Skip(missing)
	}
	return p
}

// NeedRoot skips a test that may not load programs.
func NeedRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root for BPF")
	}
	if err := rlimit.RemoveMemlock(); err != nil {
		t.Fatal(err)
	}
}

// Explain ends the test if there is an error; of what the verifier said it tells the end.
func Explain(t testing.TB, err error) {
	t.Helper()
	var rejected *dataplane.RejectedError
	if errors.As(err, &rejected) {
		log := rejected.Log
		t.Fatalf("%v\n%s", err, log[max(0, len(log)-6000):])
	}
	if err != nil {
		t.Fatal(err)
	}
}
