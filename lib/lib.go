// SPDX-License-Identifier: Apache-2.0

// Package lib embeds the sources of the C libraries, for programs that Kerb compiles on the machine where it runs.
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

// Write writes the library for receivers to the directory "intercept" in dir, with all headers that it needs from other
// directories.
func Write(dir string) error {
	buckets, err := bpf.Headers.ReadFile("include/kerb/buckets.h")
	at := filepath.Join(dir, "intercept")
	return errors.Join(err, os.CopyFS(dir, files),
		os.WriteFile(filepath.Join(at, "record.h"), intercept.Header, 0o644),
		os.Mkdir(filepath.Join(at, "kerb"), 0o755), os.WriteFile(filepath.Join(at, "kerb", "buckets.h"), buckets, 0o644))
}
