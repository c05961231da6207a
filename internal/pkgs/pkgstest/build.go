// SPDX-License-Identifier: Apache-2.0

// Package pkgstest gives the tests of a module its package.
package pkgstest

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/kerb-edge/kerb/internal/pkgs"
)

// Build compiles the package in the working directory, beside the source tree. On the kernels of the matrix there is no
// compiler, but the objects that were built before.
func Build() (*pkgs.Package, error) {
	if os.Getenv("KERB_MATRIX") != "" {
		return pkgs.Open(".")
	}
	dir, err := os.MkdirTemp("", "kerb-package-test-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	if err := os.CopyFS(dir, os.DirFS(".")); err != nil {
		return nil, err
	}
	var out strings.Builder
	if err := pkgs.Build(context.Background(), dir, pkgs.Options{Out: &out}); err != nil {
		return nil, fmt.Errorf("%w\n%s", err, out.String())
	}
	return pkgs.Open(dir)
}
