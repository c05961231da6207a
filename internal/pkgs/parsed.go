// SPDX-License-Identifier: Apache-2.0

package pkgs

import (
	"sync"
	"time"
)

// keepParsed is how long a parsed data plane or a compiled schema stays after its last use. A change asks for it
// several times, and it takes several times the memory of its source. Package memtrim waits longer.
const keepParsed = time.Second

// parsed is something that is parsed when it is needed. It is safe for concurrent use.
type parsed[T any] struct {
	load func() (T, error)

	mu     sync.Mutex
	value  *T
	forget *time.Timer
}

// get returns what all callers share.
func (p *parsed[T]) get() (T, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.value == nil {
		value, err := p.load()
		if err != nil {
			return value, err
		}
		p.value = &value
	}
	if p.forget == nil {
		p.forget = time.AfterFunc(keepParsed, p.drop)
	}
	p.forget.Reset(keepParsed)
	return *p.value, nil
}

func (p *parsed[T]) drop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.value = nil
}
