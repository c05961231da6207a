// SPDX-License-Identifier: Apache-2.0

// Package modules carries the built-in packages in the binary: manifests and compiled data planes as a compressed
// archive, control planes as a table. Each directory with a kerb.yaml is a package; nothing lists them by hand.
package modules

import (
	"archive/zip"
	"embed"
	"fmt"
	"io"
	"io/fs"
	"sync"

	"github.com/kerb-edge/kerb/sdk"
)

//go:generate go run ./gen

// packages.zip, which `make bpf` writes, and this file, so that the pattern matches in a fresh checkout too.
//
//go:embed *s.[gz]*
var files embed.FS

// Packages holds one directory per built-in package; none before the first `make bpf`.
func Packages() fs.FS { return packages() }

// packages decompresses a file each time it is opened: what is not needed takes no memory.
var packages = sync.OnceValue(func() fs.FS {
	f, err := files.Open("packages.zip")
	if err != nil {
		return embed.FS{}
	}
	info, err := f.Stat()
	if err != nil {
		panic(err)
	}
	archive, err := zip.NewReader(f.(io.ReaderAt), info.Size())
	if err != nil {
		panic(fmt.Sprintf("built-in packages: %v", err))
	}
	return archive
})

// Controls returns the control planes of the built-in packages by package name.
func Controls() map[string]sdk.Control { return controls() }
