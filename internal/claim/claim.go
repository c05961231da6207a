// SPDX-License-Identifier: Apache-2.0

// Package claim makes names a process's own until it ends, however it does, so that others can clear away what it has made
// under them: a claim is a file of that name, locked by its process.
package claim

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/fault"
	"github.com/kerb-edge/kerb/internal/paths"
)

// ErrTaken is wrapped by Take for a name that a living process has, this one too.
var ErrTaken = errors.New("a living process has it")

// Dir is a directory of claims. It has to vanish with a reboot, and no other user may write there.
type Dir string

// Take claims a name, with a note for the process that cleans up after this one.
func (d Dir) Take(name, note string) (*os.File, error) {
	if err := os.MkdirAll(string(d), 0o700); err != nil {
		return nil, err
	}
	f, err := d.take(name)
	if errors.Is(err, ErrTaken) {
		f, err = d.takeSwept(name)
	}
	if err != nil {
		return nil, fmt.Errorf("claim %s: %w", name, err)
	}
	if _, err := f.WriteString(note); err != nil {
		return nil, errors.Join(err, Release(f))
	}
	return f, nil
}

// takeSwept is take when no sweep has the name, however long one takes to clear away.
func (d Dir) takeSwept(name string) (*os.File, error) {
	dir, err := d.lock()
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return d.take(name)
}

// lock waits until no sweep is under way, and keeps others waiting until the file is closed.
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

// take does not take a file that was removed before it was locked.
func (d Dir) take(name string) (*os.File, error) {
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
			err = ErrTaken
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

// Release gives a name back. The file goes while it is locked: who has opened it meanwhile sees that.
func Release(f *os.File) error {
	err := os.Remove(f.Name())
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, f.Close())
}

// Node makes the caller the only one that uses an agent's directories: the agent, or who removes them. If another one does, the error
// is *fault.Conflict.
func Node(p paths.Paths) (release func() error, err error) {
	if err := os.MkdirAll(p.Run, 0o755); err != nil {
		return nil, err
	}
	f, err := Dir(p.Run).Take(filepath.Base(p.Lock()), "")
	if errors.Is(err, ErrTaken) {
		return nil, &fault.Conflict{Reason: "another kerb agent is running on this node (it holds " + p.Lock() + "); stop it first, or set different directories in paths: of this agent's configuration"}
	}
	if err != nil {
		return nil, err
	}
	return func() error { return Release(f) }, nil
}

// Sweep calls clear for every name whose process is no more, with its note, and gives the name back if that succeeds. Sweeps
// wait for each other, so that everything is cleared when one has returned, no matter which did it.
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
		f, takeErr := d.take(e.Name())
		if takeErr != nil {
			continue // its process lives
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
