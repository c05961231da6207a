// SPDX-License-Identifier: Apache-2.0

package kmod

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Record is struct icpt_record of record.h.
type Record struct {
	Seq, Time, Lost uint64 // number in this ring, from 0; ns of CLOCK_MONOTONIC; packets lost so far
	Len, Caplen     uint32 // bytes of the frame; bytes that follow the record
	L3, L4, Payload uint16 // offsets from the start of the frame
	Slot            uint16 // of the rule
	Ifindex, Flags  uint32 // of the interface; ICPT_*
	CPU, PID        uint32 // that processed it; the thread that ran there, 0: idle or unknown
}

// Ring is the mapped ring of a class, of the kernel module or, with the same layout, a BPF ring buffer.
type Ring struct {
	consumer, rest []byte // rest: the producer's page, and the data twice in a row
	size           uint64
}

// OpenRing maps the ring of a class.
func OpenRing(fd, size int) (*Ring, error) {
	page := os.Getpagesize()
	consumer, err := unix.Mmap(fd, 0, page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map the consumer's page: %w", err)
	}
	rest, err := unix.Mmap(fd, int64(page), page+2*size, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("map a ring of %d bytes: %w", size, err), unix.Munmap(consumer))
	}
	return &Ring{consumer, rest, uint64(size)}, nil
}

// Close unmaps the ring.
func (r *Ring) Close() error { return errors.Join(unix.Munmap(r.consumer), unix.Munmap(r.rest)) }

func word(page []byte) *uint64 { return (*uint64)(unsafe.Pointer(&page[0])) }

// Empty reports whether all records have been read.
func (r *Ring) Empty() bool {
	return atomic.LoadUint64(word(r.consumer)) == atomic.LoadUint64(word(r.rest))
}

// Flags in the first word of a record's header (linux/bpf.h).
const (
	busy    = 1 << 31 // being written
	discard = 1 << 30
)

// Next returns the next record with its frame and releases it; ok is false if there is none.
func (r *Ring) Next() (rec Record, frame []byte, ok bool) {
	for !r.Empty() {
		at := atomic.LoadUint64(word(r.consumer))
		data := r.rest[uint64(os.Getpagesize())+at%r.size:]
		head := atomic.LoadUint32((*uint32)(unsafe.Pointer(&data[0])))
		if head&busy != 0 {
			break
		}
		n := uint64(head &^ discard)
		if head&discard == 0 {
			if _, err := binary.Decode(data[8:8+n], binary.NativeEndian, &rec); err != nil {
				panic(err) // never: records of the kernel are long enough
			}
			frame, ok = append(frame, data[8+binary.Size(rec):][:rec.Caplen]...), true
		}
		atomic.StoreUint64(word(r.consumer), at+(n+8+7)/8*8)
		if ok {
			break
		}
	}
	return rec, frame, ok
}
