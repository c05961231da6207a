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

// controls is the ring of control messages to the data plane (BPF_MAP_TYPE_USER_RINGBUF, Linux 6.1); nil if the kernel
// has none.
type controls struct {
	consumed, produced []byte
}

// mapControls maps the pages of the ring: the consumer's position, read-only, then the producer's position, and the
// data twice in a row, so that no message wraps. It returns nil if mapping fails, as before Linux 6.1. It empties the
// ring if a previous program left anything but messages in it.
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
	if !c.hasValidMessages() {
		atomic.StoreUint64(word(produced), atomic.LoadUint64(word(consumed)))
	}
	return c
}

// hasValidMessages reports whether the ring holds only messages: the previous program that had the class may have
// written anything to it.
func (c *controls) hasValidMessages() bool {
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

// close unmaps the ring. Messages that were not consumed remain in it.
func (c *controls) close() {
	if c != nil {
		_ = unix.Munmap(c.consumed)
		_ = unix.Munmap(c.produced)
	}
}

// ErrNoControls is returned if the kernel has no user ring buffers.
var ErrNoControls = errors.New("control messages need Linux 6.1")

// control appends a message. It stores the producer's position last, which publishes the message. ErrClosed and
// ErrNoControls are permanent errors. A full ring is not: the data plane consumes messages when packets arrive.
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

// Start ends Stop. Like the following changes, it takes effect with the next packet, until the class is closed or the
// module gets a new configuration.
func (r *Receiver) Start() error { return r.control(controlEntry{Op: opStart}) }

// Stop makes the class match no packets, as if it did not exist.
func (r *Receiver) Stop() error { return r.control(controlEntry{Op: opStop}) }

// SetAction changes the action of the class.
func (r *Receiver) SetAction(a Action) error {
	return r.control(controlEntry{Op: opAction, Value: uint64(a)})
}

// SetPriority changes the priority that action Mark sets.
func (r *Receiver) SetPriority(p uint32) error {
	return r.control(controlEntry{Op: opPriority, Value: uint64(p)})
}

// SetMaxBytes changes the maximum number of bytes of a frame that are delivered.
func (r *Receiver) SetMaxBytes(n uint32) error {
	return r.control(controlEntry{Op: opMaxBytes, Value: uint64(n)})
}

// SetDeadline changes the deadline, in ns after T1.
func (r *Receiver) SetDeadline(ns uint64) error {
	return r.control(controlEntry{Op: opDeadline, Value: ns})
}

// SetPorts changes one of the class's ranges of destination ports; first > last disables it. Classes with a fallback
// ignore it.
func (r *Receiver) SetPorts(index uint32, first, last uint16) error {
	return r.control(controlEntry{Op: opPorts, Index: index, Value: uint64(first)<<16 | uint64(last)})
}

// SetPayload changes one of the class's payload conditions: up to 8 bytes at an offset, compared under a mask.
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
