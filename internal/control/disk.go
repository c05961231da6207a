// SPDX-License-Identifier: Apache-2.0

package control

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// maxFiles is how many files and directories go with a quota of bytes.
func maxFiles(disk int64) int64 { return max(256, disk>>14) }

type inode struct{ device, number uint64 }

// usage counts the files of one file system, each inode once.
type usage struct {
	device       uint64
	overlay      *unix.Statfs_t // of overlayfs, nil on others
	seen         map[inode]bool
	bytes, files int64
}

// start makes the file system of a directory the one that is counted.
func (u *usage) start(dir string, info fs.FileInfo) {
	u.device = info.Sys().(*syscall.Stat_t).Dev
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) == nil && st.Type == unix.OVERLAYFS_SUPER_MAGIC {
		u.overlay = &st
	}
}

// here reports whether a file is on the file system that is counted. Files of overlayfs have the device numbers of its
// layers, its directories that of the overlay (Documentation/filesystems/overlayfs.rst, "Inode properties").
func (u *usage) here(path string, st *syscall.Stat_t) bool {
	if st.Dev == u.device || u.overlay == nil {
		return st.Dev == u.device
	}
	var on unix.Statfs_t
	return unix.Statfs(path, &on) == nil && on.Type == u.overlay.Type && on.Fsid == u.overlay.Fsid
}

// add counts what a file takes on disk, in blocks of 512 bytes as stat(2) has them, once for all its hard links.
func (u *usage) add(path string, info fs.FileInfo) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || u.seen[inode{st.Dev, st.Ino}] {
		return
	}
	if info.Mode().Type() == fs.ModeSymlink {
		path = filepath.Dir(path) // statfs(2) follows links
	}
	if !u.here(path, st) {
		return
	}
	u.seen[inode{st.Dev, st.Ino}] = true
	u.bytes += st.Blocks * 512
	u.files++
}

// diskUse is what a directory takes on its disk, with the files that processes hold open or mapped after they have
// removed them. It stops counting above the limit.
func diskUse(dir string, pids []int, limit int64) (bytes, files int64) {
	u := usage{seen: map[inode]bool{}}
	over := func() bool { return u.bytes > limit || u.files > maxFiles(limit) }
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return ignoreGone(err)
		}
		info, err := d.Info()
		if err != nil {
			return ignoreGone(err)
		}
		if u.device == 0 {
			u.start(path, info)
		}
		if u.add(path, info); over() {
			return fs.SkipAll
		}
		return nil
	})
	if err != nil { // such as a path too long: what cannot be counted is no way around the quota
		return math.MaxInt64, u.files
	}
	for _, pid := range pids {
		if !over() {
			u.addRemoved(pid)
		}
	}
	return u.bytes, u.files
}

func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// removed ends what proc(5) calls a file without a name.
const removed = " (deleted)"

// addRemoved counts files without a name that a process has open or mapped.
func (u *usage) addRemoved(pid int) {
	add := func(path string) {
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			u.add(path, info)
		}
	}
	for _, path := range removedFiles(fmt.Sprintf("/proc/%d/fd", pid)) {
		add(path)
	}
	// maps says in one read what the links of map_files say in one each
	for line := range strings.Lines(procFile(fmt.Sprintf("/proc/%d/maps", pid))) {
		if line = strings.TrimSuffix(line, "\n"); strings.HasSuffix(line, removed) {
			from, to, _ := strings.Cut(line[:strings.IndexByte(line, ' ')], "-")
			add(fmt.Sprintf("/proc/%d/map_files/%s-%s", pid, strings.TrimLeft(from, "0"), strings.TrimLeft(to, "0")))
		}
	}
}

// removedFiles are the links in a directory that lead to files without a name.
func removedFiles(dir string) (paths []string) {
	d, err := os.Open(dir)
	if err != nil {
		return nil // gone: nothing to count
	}
	defer d.Close()
	names, _ := d.Readdirnames(-1) // those that it has read
	fd, target := int(d.Fd()), make([]byte, unix.PathMax)
	for _, name := range names {
		if n, err := unix.Readlinkat(fd, name, target); err == nil && bytes.HasSuffix(target[:n], []byte(removed)) {
			paths = append(paths, filepath.Join(dir, name))
		}
	}
	return paths
}
