// SPDX-License-Identifier: Apache-2.0

package control

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// On overlayfs whose layers are on different file systems, files have other device numbers than their directory.
func TestDiskUseOnOverlay(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: mounts")
	}
	lower, layers, dir := t.TempDir(), filepath.Dir(tmpfs(t, filepath.Join(t.TempDir(), "layers"))), t.TempDir()
	upper, work := filepath.Join(layers, "upper"), filepath.Join(layers, "work")
	for _, d := range []string{upper, work} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mount("overlay", dir, "overlay", 0, "lowerdir="+lower+",upperdir="+upper+",workdir="+work); err != nil {
		t.Skip("no overlayfs: ", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	f, err := os.Create(filepath.Join(dir, "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const size = 1 << 20
	if _, err := f.Write(make([]byte, size)); err != nil {
		t.Fatal(err)
	}
	if bytes, files := diskUse(dir, nil, 8*size); bytes < size || files != 2 {
		t.Errorf("%d bytes in %d files and directories, want %d in 2", bytes, files, size)
	}
	for _, link := range []string{"/", "file"} {
		if err := os.Symlink(link, filepath.Join(dir, "link"+filepath.Base(link))); err != nil {
			t.Fatal(err)
		}
	}
	if _, files := diskUse(dir, nil, 8*size); files != 4 {
		t.Errorf("%d files, directories and symbolic links, want 4", files)
	}
	if err := os.Remove(f.Name()); err != nil {
		t.Fatal(err)
	}
	if bytes, files := diskUse(dir, []int{os.Getpid()}, 8*size); bytes < size || files != 4 {
		t.Errorf("removed and open: %d bytes in %d files, directories and symbolic links, want %d in 4", bytes, files, size)
	}
}
