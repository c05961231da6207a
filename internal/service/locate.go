// SPDX-License-Identifier: Apache-2.0

package service

import (
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"
)

// nsKey distinguishes namespaces while they live.
type nsKey struct{ dev, ino uint64 }

func nsKeyAt(path string) (nsKey, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return nsKey{}, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	return nsKey{st.Dev, st.Ino}, nil
}

// nsidAt is the id of the namespace at a path, or noNSID. The namespace is
// open only meanwhile: an open file would keep it, and its links, alive.
func (s *scanner) nsidAt(path string) (int32, error) {
	at, _ := nsKeyAt(path)
	s.paths[path] = at
	if nsid, ok := s.known(path, at); ok {
		return nsid, nil
	}
	fd, err := openNamespace(path)
	if err != nil {
		return noNSID, err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return noNSID, fmt.Errorf("stat %s: %w", path, err)
	}
	if at = (nsKey{st.Dev, st.Ino}); at == s.own {
		return noNSID, fmt.Errorf("%s: %w", path, ErrOwnNamespace)
	}
	nsid, err := s.conn.nsidOf(unix.NETNSA_FD, fd)
	if err != nil {
		return noNSID, fmt.Errorf("id of namespace %s: %w", path, err)
	}
	s.remember(path, at, nsid)
	return nsid, nil
}

// openNamespace makes sure that path is a network namespace: the file system
// says that it is a namespace, NS_GET_NSTYPE (Linux 4.11) which kind.
func openNamespace(path string) (int, error) {
	var vfs unix.Statfs_t
	if err := unix.Statfs(path, &vfs); err != nil {
		return -1, namespaceError(path, err)
	}
	if vfs.Type != unix.NSFS_MAGIC {
		return -1, fmt.Errorf("%s: %w", path, ErrNotNamespace)
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return -1, namespaceError(path, err)
	}
	kind, err := unix.IoctlRetInt(fd, unix.NS_GET_NSTYPE)
	if err == nil && kind == unix.CLONE_NEWNET {
		return fd, nil
	}
	unix.Close(fd)
	return -1, fmt.Errorf("%s: %w", path, ErrNotNamespace)
}

// namespaceError: ESRCH and ENOENT are what /proc/PID/ns/net answers when its
// process is gone or a zombie.
func namespaceError(path string, err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) || errors.Is(err, unix.ENOTDIR) {
		return fmt.Errorf("%s: %w", path, ErrNamespaceGone)
	}
	return fmt.Errorf("open namespace %s: %w", path, err)
}

// nsidOfProcess is the id of the namespace that a process is in, or noNSID.
func (s *scanner) nsidOfProcess(pid int) (int32, error) {
	// Reading the link may be refused; then an own namespace looks like one
	// without links, which is harmless.
	path := fmt.Sprintf("/proc/%d/ns/net", pid)
	at, unreadable := nsKeyAt(path)
	if unreadable == nil && at == s.own {
		return noNSID, fmt.Errorf("process %d: %w", pid, ErrOwnNamespace)
	}
	if nsid, ok := s.known(path, at); ok && unreadable == nil {
		return nsid, nil
	}
	nsid, err := s.conn.nsidOf(unix.NETNSA_PID, pid)
	if errors.Is(err, unix.ESRCH) {
		return noNSID, fmt.Errorf("process %d: %w", pid, ErrProcessGone)
	}
	if err != nil {
		return noNSID, fmt.Errorf("id of the namespace of process %d: %w", pid, err)
	}
	if unreadable == nil {
		s.remember(path, at, nsid)
	}
	return nsid, nil
}
