// SPDX-License-Identifier: Apache-2.0

// Package bpf carries the compiled data planes in the binary, and the headers that modules include.
package bpf

import (
	"archive/zip"
	"embed"
	"fmt"
	"io"
	"io/fs"
	"sync"
)

// Headers holds include/kerb/*.h.
//
//go:embed include
var Headers embed.FS

// objects.zip, which `make bpf` writes, and this file, so that the pattern matches in a fresh clone too.
//
//go:embed objects.*
var files embed.FS

// Objects holds compiled data planes and manifests of built-in packages by their paths in the repository; none before
// the first `make bpf`. Each file is decompressed when it is opened: what is not needed takes no memory.
func Objects() fs.FS { return objects() }

var objects = sync.OnceValue(func() fs.FS {
	f, err := files.Open("objects.zip")
	if err != nil {
		return embed.FS{}
	}
	info, err := f.Stat()
	if err != nil {
		panic(err)
	}
	archive, err := zip.NewReader(f.(io.ReaderAt), info.Size())
	if err != nil {
		panic(fmt.Sprintf("compiled data planes: %v", err))
	}
	return archive
})
