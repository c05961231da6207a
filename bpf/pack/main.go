// SPDX-License-Identifier: Apache-2.0

// Command pack writes bpf/objects.zip: the compiled data planes and the manifests of the built-in packages, as kerb
// embeds them. The same files make the same archive.
package main

import (
	"archive/zip"
	"compress/flate"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
)

func main() {
	if err := pack("bpf/objects.zip"); err != nil {
		fmt.Fprintln(os.Stderr, "pack:", err)
		os.Exit(1)
	}
}

// pack replaces the archive at out by one of what is compiled below the working directory.
func pack(out string) error {
	var paths []string
	for _, pattern := range []string{"bpf/*.o", "modules/*/kerb.yaml", "modules/*/*.o", "modules/*/*/*.o"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			return err
		}
		paths = append(paths, found...)
	}
	f, err := os.Create(out + ".new")
	if err != nil {
		return err
	}
	w := zip.NewWriter(f)
	w.RegisterCompressor(zip.Deflate, func(to io.Writer) (io.WriteCloser, error) {
		return flate.NewWriter(to, flate.BestCompression)
	})
	for _, path := range slices.Sorted(slices.Values(paths)) {
		if err := add(w, path); err != nil {
			return errors.Join(err, f.Close())
		}
	}
	if err := errors.Join(w.Close(), f.Close()); err != nil {
		return err
	}
	return os.Rename(out+".new", out)
}

func add(w *zip.Writer, path string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if filepath.Ext(path) == ".o" {
		if err := strip(data); err != nil {
			return fmt.Errorf("strip %s: %w", path, err)
		}
	}
	to, err := w.CreateHeader(&zip.FileHeader{Name: filepath.ToSlash(path), Method: zip.Deflate})
	if err != nil {
		return err
	}
	_, err = to.Write(data)
	return err
}
