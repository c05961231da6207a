// SPDX-License-Identifier: Apache-2.0

// Package kerbmods embeds small packages for benchmarks: pass and pass6 count packets, stamp marks them, and work
// computes replies. The verifier rejects unsafe.
package kerbmods

import (
	"embed"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/cilium/ebpf"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/pkgs"
	"github.com/kerb-edge/kerb/sdk"
)

// As in the built-in modules, one pattern that also matches in a fresh checkout.
//
//go:embed */*.[bytx]*
var files embed.FS

// Module returns a package of this directory as a module.
func Module(pkg, name string, constants map[string]any) (dataplane.Module, error) {
	p, err := open(pkg)
	if err != nil {
		return dataplane.Module{}, fmt.Errorf("package %s of the benchmarks: %w", pkg, err)
	}
	return dataplane.Module{
		Name:     name,
		ID:       chain.ShortHash([]byte(p.Digest), fmt.Append(nil, constants)),
		Frags:    p.Frags,
		Settings: sdk.Settings{Constants: constants},
		Spec:     func(h chain.Hook) (*ebpf.CollectionSpec, error) { return p.Spec(string(h)) },
	}, nil
}

// opened has the packages, each opened once, as in the agent.
var opened sync.Map

func open(pkg string) (*pkgs.Package, error) {
	if p, ok := opened.Load(pkg); ok {
		return p.(*pkgs.Package), nil
	}
	dir, err := Files(pkg)
	if err != nil {
		return nil, err
	}
	p, err := pkgs.OpenFS(dir, pkgs.SourceBuiltin)
	if err == nil {
		opened.Store(pkg, p)
	}
	return p, err
}

// Files returns the files of a package.
func Files(pkg string) (fs.FS, error) { return fs.Sub(files, pkg) }

// Extract writes a package to dir, for an agent that loads it as an external package, and returns its path.
func Extract(pkg, dir string) (string, error) {
	sub, err := Files(pkg)
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, pkg)
	return path, os.CopyFS(path, sub)
}
