// SPDX-License-Identifier: Apache-2.0

package conflist

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// lockName is a file in the directory of configurations, which runtimes do not read. The kernel releases the lock when
// its process ends, also across containers.
const lockName = ".kerb-cni.lock"

// ErrBusy is wrapped by the error of an installation while another installer runs: two of different versions would
// replace each other's files endlessly.
var ErrBusy = errors.New("another kerb-cni install is running")

// lock takes the lock of the directory until the file is closed. The holder may remove the file before.
func (n Network) lock() (*os.File, error) {
	if err := os.MkdirAll(n.Dir, 0o755); err != nil {
		return nil, err
	}
	for {
		f, err := n.tryLock()
		if err != nil {
			return nil, err
		}
		mine, err := f.Stat()
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		if now, err := os.Stat(f.Name()); err == nil && os.SameFile(mine, now) {
			return f, nil
		}
		f.Close() // the holder before has removed it, and another process may have the lock of a new file
	}
}

func (n Network) tryLock() (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(n.Dir, lockName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		pid, _ := os.ReadFile(f.Name())
		f.Close()
		return nil, fmt.Errorf("%w, process %s of its PID namespace: end it, or let it do the work", ErrBusy,
			strings.TrimSpace(string(pid)))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", f.Name(), err), f.Close())
	}
	if err := f.Truncate(0); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if _, err := f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
