// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/apierrors"
)

// Lock makes the caller the only user of the pins under root, which it creates if necessary. Two agents on the same
// pins would undo each other's changes. A process that changes pins takes the lock before Open; the kernel releases it
// when the process ends. If it is held by another process, the error is *apierrors.Conflict.
func Lock(root string) (unlock func(), err error) {
	if err := checkBPFFS(root); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(root, 0o700); err != nil {
		return nil, err
	}
	dir, err := os.Open(root)
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		return func() { dir.Close() }, nil
	}
	dir.Close()
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, &apierrors.Conflict{Reason: "another kerb agent is running on this node (it holds " + root +
			"): stop it first"}
	}
	return nil, fmt.Errorf("lock %s: %w", root, err)
}
