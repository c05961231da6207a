// SPDX-License-Identifier: Apache-2.0

package chain

import (
	"errors"
	"fmt"
)

// Errors of attach points that do not accept a chain.
var (
	ErrGone = errors.New("the attach point no longer exists")
	ErrBusy = errors.New("another program is attached to the hook exclusively")
)

// DrainingError reports that a chain on sockets cannot be removed yet: sockets hold redirected bytes that no process
// has read.
type DrainingError struct {
	Modules []Member
	Left    int // sockets that still hold redirected bytes
}

func (e *DrainingError) Error() string {
	return fmt.Sprintf("%d connections still have redirected data to read; the module can be detached afterwards", e.Left)
}
