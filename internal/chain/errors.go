// SPDX-License-Identifier: Apache-2.0

package chain

import (
	"errors"
	"fmt"
)

// Reasons for which an attach point does not take a chain.
var (
	ErrGone = errors.New("the attach point is gone")
	ErrBusy = errors.New("another program holds the hook exclusively")
)

// DrainingError reports that a chain on sockets cannot be removed yet: sockets hold redirected bytes that no process has read.
type DrainingError struct {
	Modules []Member
	Left    int
}

func (e *DrainingError) Error() string {
	return fmt.Sprintf("%d connections have to read what was redirected before the module can leave", e.Left)
}
