// SPDX-License-Identifier: Apache-2.0

package intercept

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/sdk"
)

// pages are the pages of classes by slot, mapped into memory: the data plane and the consumers write them at the same
// time.
type pages [maxRings][]byte

// mapPages maps the state page of each class that has a ring into memory, shared with the kernel and the client
// program. On an error, what was mapped before is unmapped.
func (f *Intercept) mapPages(m sdk.Maps) (*pages, error) {
	p := &pages{}
	for _, c := range f.Classes {
		if c.slot == noRing {
			continue
		}
		page, err := m.Get(stateName(c.slot))
		if err == nil {
			p[c.slot], err = unix.Mmap(page.FD(), 0, pageBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		}
		if err != nil {
			p.close()
			return nil, fmt.Errorf("map the page of class %s: %w", c.Name, err)
		}
	}
	return p, nil
}

func (p *pages) close() {
	for _, page := range p {
		_ = unix.Munmap(page) // of a slot that is not in use: refused
	}
}

func (p *pages) state(slot int) *state { return pageOf(p[slot]) }

func pageOf(page []byte) *state { return (*state)(unsafe.Pointer(unsafe.SliceData(page))) }

// begin sets what a class's values say, which control messages may have changed in those before. What the page was
// begun with is noted last: a control plane that is killed meanwhile, or before, does it when it is back.
func (s *state) begin(c *class, identity uint32) {
	if atomic.LoadUint32(&s.Begun) != identity {
		s.reset(c)
		atomic.StoreUint32(&s.Begun, identity)
	}
}

func (s *state) reset(c *class) {
	atomic.StoreUint64(&s.Deadline, uint64(c.Deadline))
	atomic.StoreUint64(&s.Watchdog, uint64(c.Watchdog))
	atomic.StoreUint32(&s.Stopped, 0)
}

// copy reads a page that others write. What does not belong together by then is wrong by one packet.
func (s *state) copy() *state {
	out := *s
	return &out
}
