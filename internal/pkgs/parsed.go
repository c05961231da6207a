// SPDX-License-Identifier: Apache-2.0

package pkgs

import (
	"sync"
	"time"

	"github.com/cilium/ebpf"
)

// keepParsed is how long a parsed data plane stays after its last use. A change asks for it several times, and it
// takes several times the memory of the object. Package lean waits longer.
const keepParsed = time.Second

// parsed is a data plane that is parsed when it is needed. It is safe for concurrent use.
type parsed struct {
	load func() (*ebpf.CollectionSpec, error)

	mu     sync.Mutex
	spec   *ebpf.CollectionSpec
	forget *time.Timer
}

// get returns a fresh copy.
func (p *parsed) get() (*ebpf.CollectionSpec, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.spec == nil {
		spec, err := p.load()
		if err != nil {
			return nil, err
		}
		p.spec = spec
	}
	if p.forget == nil {
		p.forget = time.AfterFunc(keepParsed, p.drop)
	}
	p.forget.Reset(keepParsed)
	return p.spec.Copy(), nil
}

func (p *parsed) drop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.spec = nil
}
