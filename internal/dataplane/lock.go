// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/apierrors"
)

// Lock makes the caller the only one that uses the pins under root, which is made if it is missing. Two agents on the
// same pins would each undo what the other does. A process that changes pins takes the lock before Open; the kernel
// lets go of it when the process ends. If it is taken, the error is *apierrors.Conflict.
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
