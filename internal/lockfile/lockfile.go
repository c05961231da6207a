// SPDX-License-Identifier: Apache-2.0

// Package lockfile locks names with flock(2) on files. The kernel releases a lock when its process ends, so that
// another process finds the names of killed processes and can remove what they left.
package lockfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/paths"
)

// ErrLocked is wrapped by the error of Acquire if a process, also this one, holds the lock.
var ErrLocked = errors.New("a running process holds it")

// Dir is a directory of lock files. It must be on a file system that a reboot clears, and writable for root only.
type Dir string

// Acquire locks a name. The note is for the process that cleans up if this one is killed.
func (d Dir) Acquire(name, note string) (*os.File, error) {
	if err := os.MkdirAll(string(d), 0o700); err != nil {
		return nil, err
	}
	f, err := d.tryAcquire(name)
	if errors.Is(err, ErrLocked) {
		f, err = d.acquireAfterSweep(name)
	}
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", name, err)
	}
	if _, err := f.WriteString(note); err != nil {
		return nil, errors.Join(err, Release(f))
	}
	return f, nil
}

// acquireAfterSweep waits for a running Sweep, which may hold the lock of the name, and tries again.
func (d Dir) acquireAfterSweep(name string) (*os.File, error) {
	dir, err := d.lock()
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return d.tryAcquire(name)
}

// lock locks the directory against sweeps until the file is closed.
func (d Dir) lock() (*os.File, error) {
	dir, err := os.Open(string(d))
	if err != nil {
		return nil, err
	}
	err = unix.EINTR
	for err == unix.EINTR {
		err = unix.Flock(int(dir.Fd()), unix.LOCK_EX)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", d, err), dir.Close())
	}
	return dir, nil
}

// tryAcquire does not wait. It repeats the attempt if the file was removed before it was locked.
func (d Dir) tryAcquire(name string) (*os.File, error) {
	for {
		f, err := os.OpenFile(filepath.Join(string(d), name), os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return nil, err
		}
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil && isAt(f, f.Name()) {
			return f, nil
		}
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = ErrLocked
		}
		if err != nil {
			return nil, err
		}
	}
}

func isAt(f *os.File, path string) bool {
	a, err1 := f.Stat()
	b, err2 := os.Lstat(path)
	return err1 == nil && err2 == nil && os.SameFile(a, b)
}

// Release releases a name. It removes the file before it unlocks it; tryAcquire detects that.
func Release(f *os.File) error {
	err := os.Remove(f.Name())
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, f.Close())
}

// AcquireNode locks the directories of an agent, for the agent itself or for `kerb purge`. The error is
// *apierrors.Conflict if another process holds the lock.
func AcquireNode(p paths.Paths) (release func() error, err error) {
	if err := os.MkdirAll(p.Run, 0o755); err != nil {
		return nil, err
	}
	f, err := Dir(p.Run).Acquire(filepath.Base(p.Lock()), "")
	if errors.Is(err, ErrLocked) {
		return nil, &apierrors.Conflict{Reason: "another kerb agent is running on this node (it holds " + p.Lock() +
			"); stop it first, or set different directories in paths: of this agent's configuration"}
	}
	if err != nil {
		return nil, err
	}
	return func() error { return Release(f) }, nil
}

// Sweep calls clear with the name and the note of every lock whose process has ended, and releases the name if clear
// succeeds. Concurrent sweeps wait for each other, so that all is cleared when any of them returns.
func (d Dir) Sweep(clear func(name, note string) error) error {
	dir, err := d.lock()
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	entries, err := os.ReadDir(string(d))
	for _, e := range entries {
		f, lockErr := d.tryAcquire(e.Name())
		if lockErr != nil {
			continue // its process is running
		}
		err = errors.Join(err, sweep(f, clear))
	}
	return err
}

func sweep(f *os.File, clear func(name, note string) error) error {
	note, err := io.ReadAll(f)
	if err == nil {
		err = clear(filepath.Base(f.Name()), string(note))
	}
	if err != nil {
		f.Close()
		return err
	}
	return Release(f)
}
