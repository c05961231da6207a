// SPDX-License-Identifier: Apache-2.0

package oci

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
)

// archive writes the given entries, valid or not.
func archive(t *testing.T, headers ...tar.Header) []byte {
	t.Helper()
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	w := tar.NewWriter(z)
	for _, h := range headers {
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			if _, err := io.CopyN(w, zeros{}, h.Size); err != nil {
				t.Fatal(err)
			}
		}
	}
	w.Close()
	z.Close()
	return out.Bytes()
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func file(name string) tar.Header {
	return tar.Header{Typeflag: tar.TypeReg, Name: name, Size: 3, Mode: 0o644}
}

func TestMaliciousArchives(t *testing.T) {
	var many []tar.Header
	for i := range maxEntries + 1 {
		many = append(many, file(fmt.Sprint("f", i)))
	}
	big := file("big")
	big.Size = maxUnpacked + 1
	half1, half2 := file("one"), file("two")
	half1.Size, half2.Size = maxUnpacked/2+1, maxUnpacked/2+1
	cut := archive(t, file("kerb.yaml"))
	for name, layer := range map[string][]byte{
		"parent":     archive(t, file("../etc/passwd")),
		"inside":     archive(t, file("a/../../b")),
		"absolute":   archive(t, file("/etc/passwd")),
		"dot":        archive(t, file(".")),
		"backslash":  archive(t, file(`a\b`)),
		"twice":      archive(t, file("a"), file("a")),
		"twice, dot": archive(t, file("a"), file("./a")),
		"long":       archive(t, file(strings.Repeat("a", maxName+1))),
		"symlink":    archive(t, tar.Header{Typeflag: tar.TypeSymlink, Name: "a", Linkname: "/etc/shadow"}),
		"hard link":  archive(t, tar.Header{Typeflag: tar.TypeLink, Name: "a", Linkname: "/etc/shadow"}),
		"device":     archive(t, tar.Header{Typeflag: tar.TypeChar, Name: "a"}),
		"fifo":       archive(t, tar.Header{Typeflag: tar.TypeFifo, Name: "a"}),
		"directory":  archive(t, tar.Header{Typeflag: tar.TypeDir, Name: "a/"}),
		"many":       archive(t, many...),
		"big":        archive(t, big),
		"bomb":       archive(t, half1, half2),
		"cut":        cut[:len(cut)-12],
		"no gzip":    []byte("kerb.yaml"),
	} {
		if got, err := unpack(layer, false); !errors.Is(err, ErrArchive) {
			t.Errorf("%s: %d files, %v", name, len(got), err)
		}
	}
	got, err := unpack(archive(t, tar.Header{Typeflag: tar.TypeDir, Name: "./"}, file("./x.o")), true)
	if err != nil || len(got) != 1 || len(got["x.o"]) != 3 {
		t.Errorf("a layer as tools make it: %v, %v", got, err)
	}
}

// Data after the end of the archive is limited, too.
func TestBombBehindTheEnd(t *testing.T) {
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	if _, err := io.CopyN(z, zeros{}, 2*maxUnpacked); err != nil {
		t.Fatal(err)
	}
	z.Close()
	if got, err := unpack(out.Bytes(), false); !errors.Is(err, ErrArchive) {
		t.Errorf("%d files, %v", len(got), err)
	}
}

func TestForeignFilesAreRefused(t *testing.T) {
	a, err := build(limiter(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	content, err := unpack(a.blobs[1].data, false)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := openFiles(content, "test"); err != nil {
		t.Fatal(err)
	}
	content["rootkit.ko"] = []byte("x")
	if _, err := openFiles(content, "test"); !errors.Is(err, ErrArchive) || !strings.Contains(err.Error(), "rootkit.ko") {
		t.Errorf("a file that is no part of a package: %v", err)
	}
}

func FuzzUnpack(f *testing.F) {
	f.Add([]byte("\x1f\x8b"))
	f.Fuzz(func(t *testing.T, data []byte) {
		var out bytes.Buffer
		z := gzip.NewWriter(&out)
		z.Write(data)
		z.Close()
		got, err := unpack(out.Bytes(), true)
		if err != nil && !errors.Is(err, ErrArchive) {
			t.Errorf("an error of no kind: %v", err)
		}
		for name := range got {
			if strings.HasPrefix(name, "/") || strings.Contains(name, "..") && strings.HasPrefix(name, "../") {
				t.Errorf("took %q", name)
			}
		}
	})
}
