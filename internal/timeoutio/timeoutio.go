// SPDX-License-Identifier: Apache-2.0

// Package timeoutio runs blocking system calls with a timeout. It is for objects that a service controls and that may
// block indefinitely, such as files on a FUSE file system of the service.
package timeoutio

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// Errors of Do.
var (
	ErrTimeout        = errors.New("no answer")
	ErrTooManyBlocked = errors.New("too many calls are blocked, for example by a FUSE file system that does not answer")
)

// maxBlocked limits the threads that are blocked.
const maxBlocked = 4

// Limiter limits the calls that are blocked at the same time. The zero value is ready to use.
type Limiter struct{ running atomic.Int32 }

// Do runs call and waits for it until the timeout. After that the call continues in the background and its result is
// lost.
func Do[T any](l *Limiter, timeout time.Duration, call func() (T, error)) (value T, err error) {
	if l.running.Add(1) > maxBlocked {
		l.running.Add(-1)
		return value, ErrTooManyBlocked
	}
	type outcome struct {
		value T
		err   error
	}
	done := make(chan outcome, 1)
	go func() {
		defer l.running.Add(-1)
		value, err := call()
		done <- outcome{value, err}
	}()
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case o := <-done:
		return o.value, o.err
	case <-timer.C:
		return value, fmt.Errorf("%w within %v", ErrTimeout, timeout)
	}
}
