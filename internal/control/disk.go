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

// maxFiles is the number of files and directories that a quota of bytes includes.
func maxFiles(disk int64) int64 { return max(256, disk>>14) }

type inode struct{ device, number uint64 }

// usage counts the files of one file system, each inode once.
type usage struct {
	device       uint64
	overlay      *unix.Statfs_t // of overlayfs, nil on others
	seen         map[inode]bool
	bytes, files int64
}

// start selects the file system of a directory for counting.
func (u *usage) start(dir string, info fs.FileInfo) {
	u.device = info.Sys().(*syscall.Stat_t).Dev
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) == nil && st.Type == unix.OVERLAYFS_SUPER_MAGIC {
		u.overlay = &st
	}
}

// here reports whether a file is on the counted file system. On overlayfs, files have the device numbers of its layers,
// and directories that of the overlay (Documentation/filesystems/overlayfs.rst, "Inode properties").
func (u *usage) here(path string, st *syscall.Stat_t) bool {
	if st.Dev == u.device || u.overlay == nil {
		return st.Dev == u.device
	}
	var on unix.Statfs_t
	return unix.Statfs(path, &on) == nil && on.Type == u.overlay.Type && on.Fsid == u.overlay.Fsid
}

// add counts the disk usage of a file, in blocks of 512 bytes as in stat(2), once for all its hard links.
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

// diskUse returns the disk usage of a directory, including deleted files that processes still have open or mapped. It
// stops counting above the limit.
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
	if err != nil { // such as too long a path: files that cannot be counted must not evade the quota
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

// removed is the suffix of a deleted file's name in proc(5).
const removed = " (deleted)"

// addRemoved counts deleted files that a process has open or mapped.
func (u *usage) addRemoved(pid int) {
	add := func(path string) {
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			u.add(path, info)
		}
	}
	for _, path := range removedFiles(fmt.Sprintf("/proc/%d/fd", pid)) {
		add(path)
	}
	// maps provides in one read what the links of map_files provide in one each
	for line := range strings.Lines(procFile(fmt.Sprintf("/proc/%d/maps", pid))) {
		if line = strings.TrimSuffix(line, "\n"); strings.HasSuffix(line, removed) {
			from, to, _ := strings.Cut(line[:strings.IndexByte(line, ' ')], "-")
			add(fmt.Sprintf("/proc/%d/map_files/%s-%s", pid, strings.TrimLeft(from, "0"), strings.TrimLeft(to, "0")))
		}
	}
}

// removedFiles returns the links in a directory that point to deleted files.
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
