// SPDX-License-Identifier: Apache-2.0

// Package rotate writes lines to a file of a limited size, and keeps a limited number of older ones.
package rotate

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// File is a file of lines. When the next line would make it larger than its limit, it becomes PATH.1, what that was
// becomes PATH.2, and so on. It is not safe for concurrent use.
type File struct {
	path string
	max  int64 // bytes
	keep int   // older files

	now  *os.File // locked
	size int64    // of whole lines
	torn bool     // there may be a part of a line behind them
}

// Open opens or creates a file, and removes what an earlier process has left of a line that it could not finish, and
// older files that it kept beyond keep. Another process that writes it is an error, as is everything that is not a
// regular file.
func Open(path string, maxSize int64, keep int) (*File, error) {
	f := &File{path: path, max: maxSize, keep: keep}
	var err error
	if f.now, err = lock(path, 0); err != nil {
		return nil, err
	}
	if f.size, err = wholeLines(f.now); err == nil {
		err = f.now.Truncate(f.size)
	}
	if err != nil {
		f.now.Close()
		return nil, err
	}
	for n := keep + 1; unix.Unlink(f.older(n)) == nil; n++ { // of a process that kept more
	}
	return f, nil
}

// lock opens a file that no other process writes.
func lock(path string, flags int) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_APPEND|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK|flags, 0o640)
	if errors.Is(err, unix.ELOOP) {
		return nil, fmt.Errorf("%s is a symbolic link: name the file itself, which is renamed when it is full", path)
	}
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	opened, statErr := f.Stat()
	there, thereErr := os.Lstat(path)
	switch {
	case errors.Is(err, unix.EWOULDBLOCK), thereErr != nil, statErr == nil && !os.SameFile(opened, there):
		err = fmt.Errorf("another process writes %s: use a file for each", path)
	case err == nil && statErr == nil && !opened.Mode().IsRegular():
		err = fmt.Errorf("%s is not a regular file", path)
	}
	if err = errors.Join(err, statErr); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// wholeLines returns the offset behind the last line that is complete.
func wholeLines(f *os.File) (int64, error) {
	end, err := f.Seek(0, io.SeekEnd)
	part := make([]byte, 4096)
	for err == nil && end > 0 {
		from := max(0, end-int64(len(part)))
		text := part[:end-from]
		if _, err = f.ReadAt(text, from); err != nil {
			break
		}
		if i := bytes.LastIndexByte(text, '\n'); i >= 0 {
			return from + int64(i) + 1, nil
		}
		end = from
	}
	return 0, err
}

// WriteLine appends a line, with its line feed, or nothing. After an error, as of a full disk, the next line may
// succeed.
func (f *File) WriteLine(line []byte) error {
	if f.torn {
		if err := f.now.Truncate(f.size); err != nil {
			return err
		}
		f.torn = false
	}
	if f.size > 0 && f.size+int64(len(line)) > f.max {
		if err := f.rotate(); err != nil {
			return err
		}
	}
	if n, err := f.now.Write(line); err != nil {
		if info, statErr := f.now.Stat(); statErr == nil { // others may have cut the file
			f.size = info.Size() - int64(n)
		}
		f.torn = f.now.Truncate(f.size) != nil
		return err
	}
	f.size += int64(len(line))
	return nil
}

// rotate begins a new file. What is renamed has whole lines, and an error in between leaves a state from which the next
// call continues.
func (f *File) rotate() error {
	if err := f.shift(); err != nil { // first: on a full disk, the oldest file makes room
		return err
	}
	fresh := f.path + ".new"
	if err := os.Remove(fresh); err != nil && !errors.Is(err, os.ErrNotExist) { // of a process that was killed
		return err
	}
	next, err := lock(fresh, os.O_EXCL)
	if err != nil {
		return err
	}
	if err := f.copyAccess(next); err != nil {
		next.Close()
		return err
	}
	if err := os.Rename(f.path, f.older(1)); err != nil && !errors.Is(err, os.ErrNotExist) { // taken away by others
		next.Close()
		return err
	}
	if err := os.Rename(fresh, f.path); err != nil {
		next.Close()
		return err
	}
	f.now.Close()
	f.now, f.size = next, 0
	return nil
}

// copyAccess gives a new file the owner and the permissions of the one before, which an operator may have set. Without
// the right to that, only this process's user may read it.
func (f *File) copyAccess(next *os.File) error {
	before, err := f.now.Stat()
	if err != nil {
		return err
	}
	mode := before.Mode().Perm()
	if st, ok := before.Sys().(*syscall.Stat_t); ok && next.Chown(int(st.Uid), int(st.Gid)) != nil {
		mode &= 0o700
	}
	return next.Chmod(mode)
}

// shift renames the older files so that the first one is free. With a gap among them, those behind it stay.
func (f *File) shift() error {
	free := 1
	for ; free < f.keep; free++ {
		if _, err := os.Lstat(f.older(free)); errors.Is(err, os.ErrNotExist) {
			break
		}
	}
	for n := free; n > 1; n-- {
		if err := os.Rename(f.older(n-1), f.older(n)); err != nil {
			return err
		}
	}
	return nil
}

func (f *File) older(n int) string { return fmt.Sprintf("%s.%d", f.path, n) }

// Close closes the file.
func (f *File) Close() error { return f.now.Close() }
