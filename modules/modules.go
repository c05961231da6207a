// SPDX-License-Identifier: Apache-2.0

// Package modules has the built-in packages: manifests and compiled data planes from the archive in the binary, control
// planes from a table. Each directory with a kerb.yaml is a package; nothing lists them by hand.
package modules

import (
	"io/fs"

	"github.com/kerb-edge/kerb/bpf"
	"github.com/kerb-edge/kerb/sdk"
)

//go:generate go run ./gen

// Packages holds one directory per built-in package; none before the first `make bpf`.
func Packages() fs.FS {
	sub, err := fs.Sub(bpf.Objects(), "modules")
	if err != nil { // the name is a constant
		panic(err)
	}
	return sub
}

// Controls returns the control planes of the built-in packages by package name.
func Controls() map[string]sdk.Control { return controls() }
