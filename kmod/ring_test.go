// SPDX-License-Identifier: Apache-2.0

package kmod

import (
	"encoding/binary"
	"os"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// record is struct icpt_record of record.h.
type record struct {
	Seq, Time, Lost uint64
	Len, Caplen     uint32
	L3, L4, Payload uint16
	Slot            uint16
	Ifindex, Flags  uint32
	CPU, PID        uint32
}

// ring reads what the module or a BPF ring buffer writes: both are laid out alike.
type ring struct {
	consumer, rest, state []byte
	size                  uint64
}

func openRing(t *testing.T, fd int, size int) *ring {
	t.Helper()
	page := os.Getpagesize()
	consumer, err := unix.Mmap(fd, 0, page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal("consumer's page:", err)
	}
	rest, err := unix.Mmap(fd, int64(page), page+2*size, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal("data:", err)
	}
	state, err := unix.Mmap(fd, int64(2*page+2*size), page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal("state:", err)
	}
	r := &ring{consumer, rest, state, uint64(size)}
	t.Cleanup(r.close)
	return r
}

func (r *ring) close() {
	if r.consumer != nil {
		unix.Munmap(r.consumer)
		unix.Munmap(r.rest)
		unix.Munmap(r.state)
		r.consumer = nil
	}
}

func word(page []byte) *uint64 { return (*uint64)(unsafe.Pointer(&page[0])) }

// wait says that the program waits, and reports whether it has to: nothing came in between.
func (r *ring) wait() bool {
	const waiting = 64 // offset in struct icpt_state
	atomic.StoreUint32((*uint32)(unsafe.Pointer(&r.state[waiting])), 1)
	return atomic.LoadUint64(word(r.consumer)) == atomic.LoadUint64(word(r.rest))
}

// await is next for a record that has to come; what a softirq does may take its time.
func (r *ring) await() (rec record, frame []byte, ok bool) {
	for range 2000 {
		if rec, frame, ok = r.next(); ok {
			break
		}
		time.Sleep(time.Millisecond)
	}
	return rec, frame, ok
}

// next takes one record out, or reports that there is none.
func (r *ring) next() (rec record, frame []byte, ok bool) {
	at := atomic.LoadUint64(word(r.consumer))
	if at == atomic.LoadUint64(word(r.rest)) {
		return rec, nil, false
	}
	data := r.rest[uint64(os.Getpagesize())+at%r.size:]
	n := uint64(binary.NativeEndian.Uint32(data))
	if _, err := binary.Decode(data[8:], binary.NativeEndian, &rec); err != nil {
		panic(err)
	}
	frame = append(frame, data[8+binary.Size(rec):][:rec.Caplen]...)
	atomic.StoreUint64(word(r.consumer), at+(n+8+7)/8*8)
	return rec, frame, true
}
