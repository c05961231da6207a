// SPDX-License-Identifier: Apache-2.0

package intercept

import (
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

const unknown = ^uint64(0)

// ring is a BPF ring buffer, mapped as record.h says.
type ring struct {
	fd                 int
	consumed, produced []byte // the mappings
	consumer, producer *uint64
	data               []byte // twice in a row, so that no record is broken
	next               uint64 // behind what was given out
	released           uint64 // what we have written to consumer last
	lost               uint64 // as of the last record
}

// mapRing maps the pages of a BPF ring buffer: the consumer's position, writable, then the producer's position and
// twice the data, read-only, so that a record never wraps. size is that of the data in bytes, a power of two.
func mapRing(fd, size int) (*ring, error) {
	page := os.Getpagesize()
	if size < page || size&(size-1) != 0 {
		return nil, fmt.Errorf("a ring of %d bytes: Kerb's and this package's versions differ", size)
	}
	consumed, err := unix.Mmap(fd, 0, page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map a ring: %w", err)
	}
	produced, err := unix.Mmap(fd, int64(page), page+2*size, unix.PROT_READ, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		_ = unix.Munmap(consumed)
		return nil, fmt.Errorf("map a ring of %d bytes: %w", size, err)
	}
	r := &ring{fd: fd, consumed: consumed, produced: produced, consumer: word(consumed), producer: word(produced),
		data: produced[page:], lost: unknown}
	r.next = r.begin()
	r.release()
	return r, nil
}

// begin is the position of the first record. A program that had the ring before may have left any, from which none
// would be found again: then it is behind those that wait.
func (r *ring) begin() uint64 {
	from, end, size := atomic.LoadUint64(r.consumer), atomic.LoadUint64(r.producer), uint64(len(r.data)/2)
	if from%8 != 0 {
		return end
	}
	at := from
	for end-at-1 < size {
		length := lengthOf(atomic.LoadUint32((*uint32)(unsafe.Pointer(unsafe.SliceData(r.data[at&(size-1):])))))
		if length < 16 { // the least is what only wakes
			return end
		}
		at += length
	}
	if at != end {
		return end
	}
	return from
}

// lengthOf is how far the next record is, by the first word of one.
func lengthOf(head uint32) uint64 { return (ringHeader + uint64(head&^(busyBit|discardBit)) + 7) &^ 7 }

func word(b []byte) *uint64 { return (*uint64)(unsafe.Pointer(unsafe.SliceData(b))) }

func (r *ring) close() {
	_ = unix.Munmap(r.consumed)
	_ = unix.Munmap(r.produced)
	_ = unix.Close(r.fd)
}

func (r *ring) pending() bool { return atomic.LoadUint64(r.producer) != r.next }

// release lets the kernel write where the packets are that were given out.
func (r *ring) release() {
	if r.released != r.next || r.moved() {
		atomic.StoreUint64(r.consumer, r.next)
		r.released = r.next
	}
}

// moved reports whether another program has written the consumer's position.
func (r *ring) moved() bool { return atomic.LoadUint64(r.consumer) != r.released }

// fetch gives out what there is, at most as many as fit.
func (r *ring) fetch(packets []Packet) (n int) {
	end, mask := atomic.LoadUint64(r.producer), uint64(len(r.data)/2-1)
	for r.next != end && n < len(packets) {
		at := r.data[r.next&mask:]
		head := atomic.LoadUint32((*uint32)(unsafe.Pointer(unsafe.SliceData(at))))
		if head&busyBit != 0 {
			break
		}
		size := uint64(head &^ (busyBit | discardBit))
		if head&discardBit == 0 && size >= uint64(unsafe.Sizeof(record{})) {
			packets[n] = r.packet(at[ringHeader : ringHeader+size])
			n++
		}
		r.next += lengthOf(head)
	}
	return n
}

// packet returns the packet of a record. Frame is memory of the ring and valid until the record is released. Lost is
// how many packets found no room since the record before.
func (r *ring) packet(b []byte) Packet {
	e := (*record)(unsafe.Pointer(unsafe.SliceData(b)))
	p := Packet{Frame: b[unsafe.Sizeof(*e):][:e.CapLen:e.CapLen], Len: int(e.Len), L3: int(e.L3), L4: int(e.L4),
		Payload: int(e.Payload),
		VLAN:    uint16(e.Flags >> tciShift), Flags: Flags(e.Flags & 0xffff), Ifindex: e.Ifindex, Seq: e.Seq,
		Sent: int64(e.Time),
		cpu:  e.CPU, pid: e.PID}
	if r.lost != unknown && e.Lost > r.lost {
		p.Lost = e.Lost - r.lost
	}
	if r.lost == unknown || e.Lost > r.lost { // records of several CPUs overtake each other
		r.lost = e.Lost
	}
	return p
}
