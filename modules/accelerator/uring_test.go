// SPDX-License-Identifier: Apache-2.0

package accelerator

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"runtime"
	"sync/atomic"
	"testing"
	pointer "unsafe"

	"golang.org/x/sys/unix"
)

// uring is a minimal io_uring with one request at a time.
type uring struct {
	fd               int
	rings, entries   []byte
	sqTail, sqMask   *uint32
	sqArray          *uint32
	cqHead           *uint32
	completions      uintptr // offset in rings
	buffer           []byte
	completionsCount uint32
}

// uringParams mirrors struct io_uring_params.
type uringParams struct {
	SQEntries, CQEntries, Flags, ThreadCPU, ThreadIdle, Features, WQ uint32
	_                                                                [3]uint32
	SQ                                                               struct {
		Head, Tail, Mask, Entries, Flags, Dropped, Array, _ uint32
		_                                                   uint64
	}
	CQ struct {
		Head, Tail, Mask, Entries, Overflow, CQEs, Flags, _ uint32
		_                                                   uint64
	}
}

const (
	uringSend    = 26
	uringReceive = 27
	uringEntries = 0x10000000 // offset of the requests for mmap
)

func newUring(t testing.TB) *uring {
	t.Helper()
	var params uringParams
	fd, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, 4, uintptr(pointer.Pointer(&params)), 0)
	if errors.Is(errno, unix.ENOSYS) || errors.Is(errno, unix.EPERM) {
		t.Skip("no io_uring here:", errno)
	}
	if errno != 0 {
		t.Fatal("io_uring_setup:", errno)
	}
	u := &uring{fd: int(fd)}
	var err error
	size := max(int(params.SQ.Array)+4*int(params.SQEntries), int(params.CQ.CQEs)+16*int(params.CQEntries))
	u.rings, err = unix.Mmap(u.fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	check(t, err)
	u.entries, err = unix.Mmap(u.fd, uringEntries, 64*int(params.SQEntries), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_SHARED)
	check(t, err)
	u.buffer, err = unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	check(t, err)
	word := func(off uint32) *uint32 { return (*uint32)(pointer.Pointer(&u.rings[off])) }
	u.sqTail, u.sqMask, u.sqArray, u.cqHead = word(params.SQ.Tail), word(params.SQ.Mask), word(params.SQ.Array),
		word(params.CQ.Head)
	u.completions, u.completionsCount = uintptr(params.CQ.CQEs), params.CQEntries
	return u
}

// do submits a request for n bytes of the buffer, waits for it, and returns its result.
func (u *uring) do(t testing.TB, operation byte, fd, n int) int {
	t.Helper()
	return u.submit(t, operation, fd, n, func(entry []byte) {
		binary.NativeEndian.PutUint64(entry[16:], uint64(uintptr(pointer.Pointer(pointer.SliceData(u.buffer)))))
	})
}

// submit submits a request whose other fields fill sets, waits for it, and returns its result.
func (u *uring) submit(t testing.TB, operation byte, fd, n int, fill func(entry []byte)) int {
	t.Helper()
	clear(u.entries[:64])
	u.entries[0] = operation
	binary.NativeEndian.PutUint32(u.entries[4:], uint32(fd))
	fill(u.entries[:64])
	binary.NativeEndian.PutUint32(u.entries[24:], uint32(n))
	tail := atomic.LoadUint32(u.sqTail)
	*(*uint32)(pointer.Add(pointer.Pointer(u.sqArray), 4*(tail&*u.sqMask))) = 0
	atomic.StoreUint32(u.sqTail, tail+1)
	if _, _, errno := unix.Syscall6(unix.SYS_IO_URING_ENTER, uintptr(u.fd), 1, 1, 1, 0, 0); errno != 0 {
		t.Fatal("io_uring_enter:", errno)
	}
	head := atomic.LoadUint32(u.cqHead)
	completion := u.rings[u.completions+16*uintptr(head%u.completionsCount):]
	atomic.StoreUint32(u.cqHead, head+1)
	return int(int32(binary.NativeEndian.Uint32(completion[8:])))
}

// turn sends a message and receives the server's answer with the ring.
func (u *uring) turn(t testing.TB, c *conn) {
	t.Helper()
	data := noise(100)
	copy(u.buffer, data)
	if n := u.do(t, uringSend, c.client, 100); n != 100 {
		t.Fatalf("send by io_uring: %d", n)
	}
	if got := c.receive(c.server, 100); !bytes.Equal(got, data) {
		t.Fatal("what io_uring sent arrives changed")
	}
	data = noise(100)
	c.send(c.server, data)
	if n := u.do(t, uringReceive, c.client, 100); n != 100 || !bytes.Equal(u.buffer[:100], data) {
		t.Fatalf("received by io_uring: %d", n)
	}
}

// onOwnThread runs a test on a thread that exits with it, and is not the process's first thread.
func onOwnThread(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if unix.Gettid() == os.Getpid() {
			onOwnThread(f)
			runtime.UnlockOSThread()
			return
		}
		f()
	}()
	<-done
}

// Programs that use io_uring stay on TCP, whether they used it when they connected or start later.
func TestIoUring(t *testing.T) {
	p := accelerate(t, usual)
	onOwnThread(func() {
		before := p.connect(t)
		p.warm(before)
		u := newUring(t)
		defer unix.Close(u.fd)
		after := p.connect(t)
		redirects := p.redirects(before.client)
		for range 3 {
			u.turn(t, after)
			u.turn(t, before)
		}
		if _, known := p.end(after.client); known {
			t.Error("a connection of a program with an io_uring is enrolled")
		}
		if n := p.redirects(before.client); n != redirects {
			t.Errorf("%d messages were redirected after the program had got its io_uring", n-redirects)
		}
	})
	if n := p.refused("uring"); !t.Skipped() && n < 2 {
		t.Errorf("%d connections are refused for io_uring: %+v", n, p.counts())
	}
}
