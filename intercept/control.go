// SPDX-License-Identifier: Apache-2.0

package intercept

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Action is what happens to the packets of a class.
type Action uint64

const (
	Pass  Action = 0
	Drop  Action = 1
	Copy  Action = 3
	Steal Action = 4
	Mark  Action = 5
)

// controls is a BPF user ring buffer (Linux 6.1); nil where there is none.
type controls struct {
	consumed, produced []byte
}

// mapControls maps the pages of a BPF user ring buffer: what the kernel has consumed, read-only, then what this
// process has produced, and twice the data, so that a message never wraps. nil: the kernel has none, or refuses.
// Positions that an earlier process left unsound are set back to an empty ring.
func mapControls(fd int) *controls {
	page := os.Getpagesize()
	consumed, err := unix.Mmap(fd, 0, page, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil
	}
	produced, err := unix.Mmap(fd, int64(page), page+2*max(page, controlRing), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_SHARED)
	if err != nil {
		_ = unix.Munmap(consumed)
		return nil
	}
	c := &controls{consumed, produced}
	if !c.sound() {
		atomic.StoreUint64(word(produced), atomic.LoadUint64(word(consumed)))
	}
	return c
}

// sound reports whether the ring holds valid messages: an earlier consumer of the class may have left anything.
func (c *controls) sound() bool {
	data := c.produced[os.Getpagesize():]
	size, at, end := uint64(len(data)/2), atomic.LoadUint64(word(c.consumed)), atomic.LoadUint64(word(c.produced))
	if at%8 != 0 || end-at > size {
		return false
	}
	const length = uint64(unsafe.Sizeof(controlEntry{}))
	for at != end && end-at <= size {
		if *word(data[at&(size-1):]) != length {
			return false
		}
		at += ringHeader + length
	}
	return at == end
}

// close unmaps the ring; messages that were not taken stay in it.
func (c *controls) close() {
	if c != nil {
		_ = unix.Munmap(c.consumed)
		_ = unix.Munmap(c.produced)
	}
}

// ErrNoControls is returned where the kernel has no user ring buffers.
var ErrNoControls = errors.New("control messages need Linux 6.1")

// control appends a message. The producer's position is stored last, which publishes the bytes before it. ErrClosed
// and ErrNoControls are final; a full ring is not: the data plane takes messages when packets come.
func (r *Receiver) control(message controlEntry) error {
	if r.ring == nil {
		return ErrClosed
	}
	c := r.controls
	if c == nil {
		return ErrNoControls
	}
	data := c.produced[os.Getpagesize():]
	size, at := uint64(len(data)/2), atomic.LoadUint64(word(c.produced))
	need := uint64(ringHeader + unsafe.Sizeof(message))
	if size-(at-atomic.LoadUint64(word(c.consumed))) < need {
		return errors.New("no room for a control message: they are taken when packets come")
	}
	slot := data[at&(size-1):]
	*(*[2]uint32)(unsafe.Pointer(unsafe.SliceData(slot))) = [2]uint32{uint32(unsafe.Sizeof(message)), 0}
	*(*controlEntry)(unsafe.Pointer(unsafe.SliceData(slot[ringHeader:]))) = message
	atomic.StoreUint64(word(c.produced), at+need)
	atomic.StoreUint32(&r.state.Doorbell, 1)
	return nil
}

// Start has the class's packets be taken again after Stop. Like all that follow it is effective with the next packet,
// until the program closes the class or the next configuration comes.
func (r *Receiver) Start() error { return r.control(controlEntry{Op: opStart}) }

// Stop has the class's packets pass, as if it were not there.
func (r *Receiver) Stop() error { return r.control(controlEntry{Op: opStop}) }

// SetAction changes the action of the class.
func (r *Receiver) SetAction(a Action) error {
	return r.control(controlEntry{Op: opAction, Value: uint64(a)})
}

// SetPriority is for Mark.
func (r *Receiver) SetPriority(p uint32) error {
	return r.control(controlEntry{Op: opPriority, Value: uint64(p)})
}

// SetMaxBytes changes how much of a frame is delivered.
func (r *Receiver) SetMaxBytes(n uint32) error {
	return r.control(controlEntry{Op: opMaxBytes, Value: uint64(n)})
}

// SetDeadline changes after what time a packet is late, in ns.
func (r *Receiver) SetDeadline(ns uint64) error {
	return r.control(controlEntry{Op: opDeadline, Value: ns})
}

// SetPorts changes one of the class's ranges of destination ports; first > last: none. Ignored in a class with a
// fallback.
func (r *Receiver) SetPorts(index uint32, first, last uint16) error {
	return r.control(controlEntry{Op: opPorts, Index: index, Value: uint64(first)<<16 | uint64(last)})
}

// SetPayload changes one of the class's conditions on the payload: up to 8 bytes at an offset, of which mask counts.
func (r *Receiver) SetPayload(index uint32, offset uint16, bytes, mask []byte) error {
	if len(bytes) > wordBytes || len(bytes) != len(mask) {
		return fmt.Errorf("%d bytes and %d of mask: they have to be as many, and at most %d", len(bytes), len(mask),
			wordBytes)
	}
	m := controlEntry{Op: opPayload, Index: index, Value: uint64(offset)<<16 | uint64(len(bytes))}
	copy(m.Bytes[:], bytes)
	copy(m.Mask[:], mask)
	return r.control(m)
}
