// SPDX-License-Identifier: Apache-2.0

// Package scratch gives benchmarks directories of their own, and removes those of processes that were killed, together with
// what their agents have pinned.
package scratch

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

const (
	prefix = "kerb-bench-"
	pins   = "/sys/fs/bpf"
)

// Dir makes a directory. It is this process's until it ends, which a lock on the directory tells the others.
func Dir() (string, error) {
	dir, err := os.MkdirTemp("", prefix)
	if err != nil {
		return "", err
	}
	if _, err := lock(dir); err != nil { // never closed: the kernel does that
		return "", errors.Join(err, os.Remove(dir))
	}
	return dir, nil
}

// Pins is where the agent whose directory it is pins its programs and maps.
func Pins(dir string) string { return filepath.Join(pins, filepath.Base(dir)) }

// Sweep removes what processes that are no more have left.
func Sweep() error {
	dirs, err := filepath.Glob(filepath.Join(os.TempDir(), prefix+"*"))
	for _, dir := range dirs {
		fd, lockErr := lock(dir)
		if lockErr != nil {
			continue // it has an owner, or has just gone
		}
		err = errors.Join(err, os.RemoveAll(Pins(dir)), os.RemoveAll(dir))
		unix.Close(fd)
	}
	return err
}

func lock(dir string) (int, error) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &fs.PathError{Op: "open", Path: dir, Err: err}
	}
	var at unix.Stat_t
	err = unix.Fstat(fd, &at)
	if err == nil && int(at.Uid) != os.Geteuid() {
		err = fs.ErrPermission // the directory for temporary files is everybody's
	}
	if err == nil {
		err = unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
	}
	if err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("lock %s: %w", dir, err)
	}
	return fd, nil
}
