// SPDX-License-Identifier: Apache-2.0

package repository

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const root = "../.."

// files returns the files of the tree with a suffix, relative to its root, without files that builds and tests create.
func files(t *testing.T, suffix string) (out []string) {
	t.Helper()
	err := fs.WalkDir(os.DirFS(root), ".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && (path == "out" || path == "dist" || path == ".git") {
			return fs.SkipDir
		}
		if err == nil && !d.IsDir() && strings.HasSuffix(path, suffix) {
			out = append(out, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
