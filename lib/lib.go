// SPDX-License-Identifier: Apache-2.0

// Package lib holds the sources of the libraries in C, for the programs that Kerb compiles where it runs.
package lib

import (
	"embed"
	"errors"
	"os"
	"path/filepath"

	"github.com/kerb-edge/kerb/bpf"
	"github.com/kerb-edge/kerb/modules/intercept"
)

//go:embed intercept/*.c intercept/*.h
var files embed.FS

// Write writes the library for receivers to the directory "intercept" in dir, with the headers that it needs from
// elsewhere: all compile with that directory as the only one for headers.
func Write(dir string) error {
	buckets, err := bpf.Headers.ReadFile("include/kerb/buckets.h")
	at := filepath.Join(dir, "intercept")
	return errors.Join(err, os.CopyFS(dir, files),
		os.WriteFile(filepath.Join(at, "record.h"), intercept.Header, 0o644),
		os.Mkdir(filepath.Join(at, "kerb"), 0o755), os.WriteFile(filepath.Join(at, "kerb", "buckets.h"), buckets, 0o644))
}
