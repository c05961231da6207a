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

// ring is a mapped BPF ring buffer with the records of record.h.
type ring struct {
	fd                 int
	consumed, produced []byte // the mappings
	consumer, producer *uint64
	data               []byte // mapped twice in a row, so that no record wraps
	next               uint64 // position after the fetched records
	released           uint64 // position last written to consumer
	lost               uint64 // of the last record
}

// mapRing maps the pages of a BPF ring buffer: the consumer's position, writable, then the producer's position and the
// data twice in a row, read-only, so that no record wraps. size is that of the data in bytes, a power of two.
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
	r.next = r.firstRecord()
	r.release()
	return r, nil
}

// firstRecord returns the position of the first record. The previous consumer may have left a position that is not the
// start of a record: then it is the end of the pending records.
func (r *ring) firstRecord() uint64 {
	from, end, size := atomic.LoadUint64(r.consumer), atomic.LoadUint64(r.producer), uint64(len(r.data)/2)
	if from%8 != 0 {
		return end
	}
	at := from
	for end-at-1 < size {
		length := recordLength(atomic.LoadUint32((*uint32)(unsafe.Pointer(unsafe.SliceData(r.data[at&(size-1):])))))
		if length < 16 { // the smallest record only wakes
			return end
		}
		at += length
	}
	if at != end {
		return end
	}
	return from
}

// recordLength returns the distance to the next record; head is the first word of this one.
func recordLength(head uint32) uint64 {
	return (ringHeader + uint64(head&^(busyBit|discardBit)) + 7) &^ 7
}

func word(b []byte) *uint64 { return (*uint64)(unsafe.Pointer(unsafe.SliceData(b))) }

func (r *ring) close() {
	_ = unix.Munmap(r.consumed)
	_ = unix.Munmap(r.produced)
	_ = unix.Close(r.fd)
}

func (r *ring) pending() bool { return atomic.LoadUint64(r.producer) != r.next }

// release returns the room of the fetched records to the kernel.
func (r *ring) release() {
	if r.released != r.next || r.moved() {
		atomic.StoreUint64(r.consumer, r.next)
		r.released = r.next
	}
}

// moved reports whether another program has written the consumer's position.
func (r *ring) moved() bool { return atomic.LoadUint64(r.consumer) != r.released }

// fetch returns the number of fetched packets, at most len(packets).
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
		r.next += recordLength(head)
	}
	return n
}

// packet returns the packet of a record. Frame is memory of the ring, valid until the record is released. Lost counts
// the packets without room since the previous record.
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
	if r.lost == unknown || e.Lost > r.lost { // records of several CPUs may be out of order
		r.lost = e.Lost
	}
	return p
}
