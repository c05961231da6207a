// SPDX-License-Identifier: Apache-2.0

package oci

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
)

// Limits of archives. They exceed those of a package's files.
const (
	maxLayer    = 64 << 20  // bytes, compressed
	maxUnpacked = 128 << 20 // bytes of all files
	maxEntries  = 512
	maxName     = 512 // bytes
)

// files has the files of an archive, by path.
type files map[string][]byte

// pack returns files as a reproducible tar+gzip. diffID is the digest of the tar.
func pack(content files) (layer []byte, diffID digest.Digest, err error) {
	var plain, zipped bytes.Buffer
	w := tar.NewWriter(&plain)
	for _, name := range slices.Sorted(maps.Keys(content)) {
		header := &tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(len(content[name])), Mode: 0o644,
			ModTime: time.Unix(0, 0), Format: tar.FormatPAX}
		if err := w.WriteHeader(header); err != nil {
			return nil, "", err
		}
		if _, err := w.Write(content[name]); err != nil {
			return nil, "", err
		}
	}
	if err := w.Close(); err != nil {
		return nil, "", err
	}
	z := gzip.NewWriter(&zipped)
	_, err = z.Write(plain.Bytes())
	if err = errors.Join(err, z.Close()); err != nil {
		return nil, "", err
	}
	if zipped.Len() > maxLayer {
		return nil, "", fmt.Errorf("the package is larger than %d MiB", maxLayer>>20)
	}
	return zipped.Bytes(), digest.FromBytes(plain.Bytes()), nil
}

// unpack reads an archive into memory; nothing is written to the file system. It accepts only regular files, each path
// once; in image layers it skips directories.
func unpack(layer []byte, isImage bool) (files, error) {
	z, err := gzip.NewReader(bytes.NewReader(layer))
	if err != nil {
		return nil, fmt.Errorf("%w: not gzip: %w", ErrArchive, err)
	}
	// The bound also covers what the tar reader skips. Headers and padding take at most 3 KiB per file here.
	bounded := &io.LimitedReader{R: z, N: maxUnpacked + maxEntries*4096}
	r := tar.NewReader(bounded)
	out, room := files{}, int64(maxUnpacked)
	for n := 0; ; n++ {
		header, err := r.Next()
		if err == io.EOF {
			_, err = io.Copy(io.Discard, bounded) // padding and gzip's checksum
			if err == nil && bounded.N > 0 {
				return out, nil
			}
		}
		if bounded.N <= 0 {
			return nil, fmt.Errorf("%w: larger than %d MiB when unpacked", ErrArchive, maxUnpacked>>20)
		}
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrArchive, err)
		}
		if n >= maxEntries {
			return nil, fmt.Errorf("%w: more than %d entries", ErrArchive, maxEntries)
		}
		if isImage && header.Typeflag == tar.TypeDir {
			continue
		}
		if err := out.take(header, r, &room); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrArchive, err)
		}
	}
}

// take adds one entry.
func (f files) take(header *tar.Header, r io.Reader, room *int64) error {
	name := strings.TrimPrefix(header.Name, "./")
	switch {
	case header.Typeflag != tar.TypeReg:
		return fmt.Errorf("%q is not a regular file", header.Name)
	case !fs.ValidPath(name) || name == "." || len(name) > maxName || strings.ContainsAny(name, "\\\x00\n"):
		return fmt.Errorf("%q is not a path inside a package", header.Name)
	case f[name] != nil:
		return fmt.Errorf("%q is there twice", name)
	case header.Size > *room:
		return fmt.Errorf("larger than %d MiB when unpacked", maxUnpacked>>20)
	}
	// The buffer does not have the size in the header, which may be wrong.
	data, err := io.ReadAll(io.LimitReader(r, *room+1))
	if err != nil {
		return err
	}
	if *room -= int64(len(data)); *room < 0 {
		return fmt.Errorf("larger than %d MiB when unpacked", maxUnpacked>>20)
	}
	if data == nil {
		data = []byte{}
	}
	f[name] = data
	return nil
}
