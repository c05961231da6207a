// SPDX-License-Identifier: Apache-2.0

package pkgstest

import (
	"errors"
	"sync"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/pkgs"
)

var builds sync.Map // results of Build, by directory

// Package returns the package in the working directory, built once for all tests. It skips the test if the kernel lacks
// a feature that the package requires.
func Package(t testing.TB) *pkgs.Package {
	t.Helper()
	return PackageIn(t, ".")
}

// PackageIn is Package for another directory.
func PackageIn(t testing.TB, dir string) *pkgs.Package {
	t.Helper()
	build, _ := builds.LoadOrStore(dir, sync.OnceValues(func() (*pkgs.Package, error) { return Build(dir) }))
	p, err := build.(func() (*pkgs.Package, error))()
	if err != nil {
		t.Fatal(err)
	}
	var missing *pkgs.FeatureError
	if errors.As(p.CheckFeatures(), &missing) {
		t.Skip(missing)
	}
	return p
}

// Relink returns a function that links the module again, for another hook, at its first call. The verifier takes most
// of the time of a test, and many tests have packets in one direction only.
func Relink(t testing.TB, l *dataplane.Loaded, spec chain.Spec) func() *ebpf.Program {
	return sync.OnceValue(func() *ebpf.Program {
		t.Helper()
		program, err := l.Relink(spec)
		Explain(t, err)
		t.Cleanup(func() { program.Close() })
		return program
	})
}

// Explain ends the test if there is an error. It prints the last lines of a verifier log.
func Explain(t testing.TB, err error) {
	t.Helper()
	if rejected, ok := errors.AsType[*dataplane.RejectedError](err); ok {
		log := rejected.Log
		t.Fatalf("%v\n%s", err, log[max(0, len(log)-6000):])
	}
	if err != nil {
		t.Fatal(err)
	}
}
