// SPDX-License-Identifier: Apache-2.0

package lockfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Share opens a file of which several processes lock parts, and creates it first if need be. As long as one of them has
// it open, RemoveUnshared leaves it. Byte 0 is locked for that: other parts are the caller's, by open file description
// locks (Linux 3.15), which do not mind who else in the process closes the file.
func Share(path string) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	for {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return nil, err
		}
		err = lock(f, unix.F_OFD_SETLKW, unix.Flock_t{Type: unix.F_RDLCK, Len: 1})
		if err == nil && isAt(f, path) {
			return f, nil
		}
		f.Close()
		if err != nil {
			return nil, err
		}
	}
}

// RemoveUnshared removes a file of Share, unless a process has it open or a part of it locked.
func RemoveUnshared(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	err = lock(f, unix.F_OFD_SETLK, unix.Flock_t{Type: unix.F_WRLCK}) // a length of 0 is all of it
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
		return nil
	}
	if err != nil {
		return err
	}
	// A build that does not lock byte 0 may have it open: then there is no lease for writing.
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_WRLCK); errors.Is(err, unix.EAGAIN) {
		return nil
	}
	if !isAt(f, path) {
		return nil // another process has removed it, and a third one may have made the next one
	}
	return os.Remove(path)
}

func lock(f *os.File, how int, what unix.Flock_t) error {
	for {
		if err := unix.FcntlFlock(f.Fd(), how, &what); err != unix.EINTR {
			return err
		}
	}
}
