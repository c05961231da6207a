// SPDX-License-Identifier: Apache-2.0

// Package unixlisten makes the Unix sockets that Kerb can be reached by.
package unixlisten

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/kerb-edge/kerb/internal/apierrors"
)

// maxSocketPath is what fits into sun_path, with its terminating zero.
const maxSocketPath = 107

// Listen listens on a socket at path: mode 0660, owned by root and by group if there is such a group. network is unix
// or unixpacket. The directory is made if it is missing. The socket is made in a private directory and renamed into
// place, so that no client ever sees one with other permissions, or none where one was. The socket of a dead agent is
// replaced; if one is alive, or path is something else than a socket, the error is *apierrors.Conflict and nothing has
// changed.
func Listen(network, path, group string) (*Listener, error) {
	if err := checkFree(path); err != nil {
		return nil, err
	}
	return Replace(network, path, group)
}

// Replace does so whatever is at path: from then on new connections come here.
func Replace(network, path, group string) (*Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	private, err := os.MkdirTemp(filepath.Dir(path), ".kerb-")
	if err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	defer os.RemoveAll(private)
	l, err := listenPrivate(network, filepath.Join(private, "s"), group)
	if err != nil {
		return nil, fmt.Errorf("socket %s: %w", path, err)
	}
	if err := os.Rename(filepath.Join(private, "s"), path); err != nil {
		return nil, errors.Join(fmt.Errorf("socket: %w", err), l.Close())
	}
	return newListener(l, path)
}

// checkFree reports whether a socket may be put at path.
func checkFree(path string) error {
	if len(path) > maxSocketPath {
		return &apierrors.Invalid{Field: "paths.run", Reason: fmt.Sprintf("%s is too long for a socket: at most %d bytes",
			path, maxSocketPath)}
	}
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	if info.Mode().Type() != fs.ModeSocket {
		return &apierrors.Conflict{Reason: fmt.Sprintf("%s exists and is not a socket; move it away", path)}
	}
	c, err := net.DialTimeout("unix", path, time.Second)
	switch {
	case err == nil:
		c.Close()
		return &apierrors.Conflict{Reason: fmt.Sprintf("another agent is listening on %s; only one can run per node", path)}
	case errors.Is(err, syscall.ECONNREFUSED):
		return nil // no process listens any more
	}
	return &apierrors.Conflict{Reason: fmt.Sprintf("%s may be in use: %v", path, err)}
}

func listenPrivate(network, path, group string) (*net.UnixListener, error) {
	l, err := net.ListenUnix(network, &net.UnixAddr{Name: path, Net: network})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false) // it is about to be renamed
	if err := permit(path, group); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

func permit(path, group string) error {
	if err := os.Chmod(path, 0o660); err != nil {
		return err
	}
	g, err := user.LookupGroup(group)
	if err != nil {
		return nil // the group is optional; without it only root may connect
	}
	gid, err := strconv.Atoi(g.Gid)
	if err != nil {
		return fmt.Errorf("group %s: %w", group, err)
	}
	return os.Chown(path, -1, gid)
}

// Listener removes its socket when it is closed, unless another one is there by then.
type Listener struct {
	*net.UnixListener
	path string
	made os.FileInfo
}

func newListener(l *net.UnixListener, path string) (*Listener, error) {
	made, err := os.Lstat(path)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("socket: %w", err), l.Close())
	}
	return &Listener{l, path, made}, nil
}

func (l *Listener) Close() error {
	if now, err := os.Lstat(l.path); err == nil && os.SameFile(now, l.made) {
		os.Remove(l.path) // a stale socket is replaced anyway
	}
	return l.UnixListener.Close()
}
