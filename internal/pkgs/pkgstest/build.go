// SPDX-License-Identifier: Apache-2.0

// Package pkgstest builds packages for tests.
package pkgstest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/kerb-edge/kerb/internal/pkgs"
)

// Build compiles a copy of the package in a directory. The virtual machines of the kernel matrix have no compiler, and
// use existing objects; so does `make unit`, which has just built them (KERB_COMPILED).
func Build(source string) (*pkgs.Package, error) {
	if os.Getenv("KERB_MATRIX") != "" || os.Getenv("KERB_COMPILED") != "" {
		return pkgs.Open(source)
	}
	dir, err := os.MkdirTemp("", "kerb-package-test-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	own, err := copyNextTo(dir, source)
	if err != nil {
		return nil, err
	}
	var out strings.Builder
	if err := pkgs.Build(context.Background(), own, pkgs.Options{Out: &out}); err != nil {
		return nil, fmt.Errorf("%w\n%s", err, out.String())
	}
	return pkgs.Open(own)
}

// copyNextTo copies the directory source into dir, with links to its neighbours: one package may include headers of
// another.
func copyNextTo(dir, source string) (string, error) {
	here, err := filepath.Abs(source)
	if err != nil {
		return "", err
	}
	parent, name := filepath.Split(here)
	neighbours, err := os.ReadDir(parent)
	if err != nil {
		return "", err
	}
	for _, n := range neighbours {
		if n.IsDir() && n.Name() != name {
			if err := os.Symlink(filepath.Join(parent, n.Name()), filepath.Join(dir, n.Name())); err != nil {
				return "", err
			}
		}
	}
	own := filepath.Join(dir, name)
	return own, os.CopyFS(own, os.DirFS(here))
}
