// SPDX-License-Identifier: Apache-2.0

// Package bounded makes system calls on what belongs to others, who can have them wait for ever: files of a file system that a service
// provides by FUSE, say.
package bounded

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// Errors that callers tell apart.
var (
	ErrSlow  = errors.New("no answer")
	ErrStuck = errors.New("too many calls wait for answers that do not come, such as of file systems that are services (FUSE)")
)

// mostStuck is how many threads may wait.
const mostStuck = 4

// Calls are of one kind. The zero value is ready.
type Calls struct{ waiting atomic.Int32 }

// Do waits for a call, but not longer than that. The call continues alone then, and what it returns is lost.
func Do[T any](c *Calls, limit time.Duration, call func() (T, error)) (value T, err error) {
	if c.waiting.Add(1) > mostStuck {
		c.waiting.Add(-1)
		return value, ErrStuck
	}
	type outcome struct {
		value T
		err   error
	}
	done := make(chan outcome, 1)
	go func() {
		defer c.waiting.Add(-1)
		value, err := call()
		done <- outcome{value, err}
	}()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case o := <-done:
		return o.value, o.err
	case <-timer.C:
		return value, fmt.Errorf("%w within %v", ErrSlow, limit)
	}
}
