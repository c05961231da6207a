// SPDX-License-Identifier: Apache-2.0

// Package modules carries the built-in packages in the binary: manifests and compiled data planes as files, control
// planes as a table. Each directory with a kerb.yaml is a package; nothing lists them by hand.
package modules

import (
	"embed"
	"io/fs"

	"github.com/kerb-edge/kerb/sdk"
)

//go:generate go run ./gen

// By the first letter of their ends: kerb.yaml, <name>.bpf.c, <name>.sockets.o, <name>.tc.o and <name>.xdp.o. As one pattern it matches in
// a fresh checkout too, where no objects are yet.
//
//go:embed */*.[bstxy]*
var files embed.FS

// Packages holds one directory per built-in package.
func Packages() fs.FS { return files }

// Controls returns the control planes of the built-in packages by package name.
func Controls() map[string]sdk.Control { return controls() }
