// SPDX-License-Identifier: Apache-2.0

// Command pack writes modules/packages.zip, the built-in packages as kerb embeds them: manifests and compiled data
// planes. The same files make the same archive.
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
	if err := pack("modules", "modules/packages.zip"); err != nil {
		fmt.Fprintln(os.Stderr, "pack:", err)
		os.Exit(1)
	}
}

// pack replaces the archive at out by one of the packages in the directories of root.
func pack(root, out string) error {
	manifests, err := filepath.Glob(root + "/*/kerb.yaml")
	objects, err2 := filepath.Glob(root + "/*/*.o")
	if err := errors.Join(err, err2); err != nil {
		return err
	}
	f, err := os.Create(out + ".new")
	if err != nil {
		return err
	}
	w := zip.NewWriter(f)
	w.RegisterCompressor(zip.Deflate, func(to io.Writer) (io.WriteCloser, error) {
		return flate.NewWriter(to, flate.BestCompression)
	})
	files := slices.Sorted(slices.Values(append(manifests, objects...)))
	for _, path := range files {
		if err := add(w, root, path); err != nil {
			return errors.Join(err, f.Close())
		}
	}
	if err := errors.Join(w.Close(), f.Close()); err != nil {
		return err
	}
	return os.Rename(out+".new", out)
}

func add(w *zip.Writer, root, path string) error {
	name, err := filepath.Rel(root, path)
	if err != nil {
		return err
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	to, err := w.CreateHeader(&zip.FileHeader{Name: filepath.ToSlash(name), Method: zip.Deflate})
	if err != nil {
		return err
	}
	_, err = to.Write(data)
	return err
}
