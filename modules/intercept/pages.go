// SPDX-License-Identifier: Apache-2.0

package intercept

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/sdk"
)

// pages are the pages of classes, mapped into memory: the data plane and the consumers write them at the same time.
type pages struct{ memory []byte }

func mapPages(m sdk.Maps) (*pages, error) {
	states, err := m.Get(mapStates)
	if err != nil {
		return nil, err
	}
	memory, err := unix.Mmap(states.FD(), 0, (1+maxRings)*pageBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map the pages of classes: %w", err)
	}
	return &pages{memory}, nil
}

func (p *pages) close() { _ = unix.Munmap(p.memory) }

func (p *pages) state(slot int) *state { return pageOf(p.memory[(1+slot)*pageBytes:]) }

func pageOf(page []byte) *state { return (*state)(unsafe.Pointer(unsafe.SliceData(page))) }

func (s *state) setConsumer(n uint32) { atomic.StoreUint32(&s.Consumer, n) }

// copy reads a page that others write. What does not belong together by then is wrong by one packet.
func (s *state) copy() *state {
	out := *s
	return &out
}
