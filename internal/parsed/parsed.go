// SPDX-License-Identifier: Apache-2.0

// Package parsed keeps what takes long to parse and much memory for a moment: a change asks for it several times.
package parsed

import (
	"sync"
	"time"
)

// keep is how long a value stays after its last use. Package memtrim waits longer.
const keep = 3 * time.Second

// Value is something that is parsed when it is needed. It is safe for concurrent use.
type Value[T any] struct {
	load func() (T, error)

	mu     sync.Mutex
	value  *T
	forget *time.Timer
}

// New returns a value that load parses.
func New[T any](load func() (T, error)) *Value[T] { return &Value[T]{load: load} }

// Get returns what all callers share and none may change.
func (v *Value[T]) Get() (T, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.value == nil {
		value, err := v.load()
		if err != nil {
			return value, err
		}
		v.value = &value
	}
	if v.forget == nil {
		v.forget = time.AfterFunc(keep, v.Drop)
	}
	v.forget.Reset(keep)
	return *v.value, nil
}

// Drop frees the value until it is needed again.
func (v *Value[T]) Drop() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.value = nil
}
