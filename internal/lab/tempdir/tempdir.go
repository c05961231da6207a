// SPDX-License-Identifier: Apache-2.0

// Package tempdir creates temporary directories for benchmarks and tests. It removes those of killed processes,
// together with the pins of their agents.
package tempdir

import (
	"errors"
	"os"
	"path/filepath"
	"sync"

	"github.com/kerb-edge/kerb/internal/lockfile"
)

const (
	prefix = "kerb-temp-"
	pins   = "/sys/fs/bpf"
	// locks has one file for each directory, since directories may be anywhere, and be removed before their pins.
	locks = lockfile.Dir("/run/kerb-temp")
)

// owned are the lock files of this process, by directory.
var owned sync.Map

// New creates a directory, which Remove removes, or Sweep if this process is killed. Only root's directories are locked
// and swept, since other users cannot have pins.
func New() (string, error) { return NewIn("") }

// NewIn is New with another parent directory than the default for temporary files.
func NewIn(parent string) (string, error) {
	dir, err := os.MkdirTemp(parent, prefix)
	if err != nil || os.Geteuid() != 0 {
		return dir, err
	}
	f, err := locks.Acquire(filepath.Base(dir), dir)
	if err != nil {
		return "", errors.Join(err, os.Remove(dir))
	}
	owned.Store(dir, f)
	return dir, nil
}

// PinPath returns where the agent with this directory pins its programs and maps.
func PinPath(dir string) string { return filepath.Join(pins, filepath.Base(dir)) }

// Remove removes a directory.
func Remove(dir string) error {
	err := os.RemoveAll(dir)
	if f, ok := owned.LoadAndDelete(dir); ok && err == nil {
		err = lockfile.Release(f.(*os.File))
	}
	return err
}

// Sweep removes the directories and pins of processes that have ended.
func Sweep() error {
	return locks.Sweep(func(name, dir string) error { return errors.Join(os.RemoveAll(PinPath(name)), os.RemoveAll(dir)) })
}
