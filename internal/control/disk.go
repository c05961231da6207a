// SPDX-License-Identifier: Apache-2.0

package control

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// maxFiles is how many files and directories go with a quota of bytes.
func maxFiles(disk int64) int64 { return max(256, disk>>14) }

// usage counts files once, by their inodes.
type usage struct {
	device       uint64
	seen         map[uint64]bool
	bytes, files int64
}

func (u *usage) add(info fs.FileInfo) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || u.device != 0 && st.Dev != u.device || u.seen[st.Ino] {
		return
	}
	u.seen[st.Ino] = true
	u.bytes += st.Blocks * 512
	u.files++
}

// diskUse is what a directory takes on its disk, with the files that processes hold open or mapped after they have removed
// them. It stops counting above the limit.
func diskUse(dir string, pids []int, limit int64) (bytes, files int64) {
	u := usage{seen: map[uint64]bool{}}
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
			u.device = info.Sys().(*syscall.Stat_t).Dev
		}
		if u.add(info); over() {
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

// addRemoved counts files without a name that a process has open or mapped.
func (u *usage) addRemoved(pid int) {
	for _, dir := range []string{"fd", "map_files"} {
		dir = fmt.Sprintf("/proc/%d/%s", pid, dir)
		entries, _ := os.ReadDir(dir) // gone: nothing to count
		for _, e := range entries {
			path := filepath.Join(dir, e.Name())
			if target, err := os.Readlink(path); err != nil || !strings.HasSuffix(target, " (deleted)") {
				continue
			}
			if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
				u.add(info)
			}
		}
	}
}
