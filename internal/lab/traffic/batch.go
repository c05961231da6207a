// SPDX-License-Identifier: Apache-2.0

// Package traffic has the load generators of benchmarks and tests: batched UDP, TCP streams and ping-pong, together
// with the kernel's loss counters. Sockets belong to the namespace of the thread that opens them.
package traffic

import (
	"errors"
	"fmt"
	"net/netip"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// socketBuffer is requested for both directions; it holds over a second of 100,000 small packets (the kernel charges
// each with about 1 KiB).
const socketBuffer = 256 << 20

// mmsghdr is struct mmsghdr (sys/socket.h).
type mmsghdr struct {
	hdr unix.Msghdr
	len uint32
	_   [4]byte
}

// Batch is a UDP socket that sends or receives many datagrams of one size with
// one system call.
type Batch struct {
	fd   int
	size int
	data []byte
	iovs []unix.Iovec
	msgs []mmsghdr
}

// NewSender connects a socket; its datagrams have no UDP checksum, so that programs on the path may rewrite the
// payload.
func NewSender(to netip.AddrPort, size, batch int) (*Batch, error) {
	b, err := newBatch(to.Addr(), size, batch)
	if err != nil {
		return nil, err
	}
	err = errors.Join(
		unix.SetsockoptInt(b.fd, unix.SOL_SOCKET, unix.SO_NO_CHECK, 1),
		unix.SetsockoptInt(b.fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, socketBuffer),
		unix.Connect(b.fd, sockaddr(to)))
	return b, b.closeOn(err)
}

// NewReceiver binds a socket whose Receive times out after wait.
func NewReceiver(at netip.AddrPort, size, batch int, wait time.Duration) (*Batch, error) {
	b, err := newBatch(at.Addr(), size, batch)
	if err != nil {
		return nil, err
	}
	timeout := unix.NsecToTimeval(wait.Nanoseconds())
	err = errors.Join(
		unix.SetsockoptInt(b.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, socketBuffer),
		unix.SetsockoptTimeval(b.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout),
		unix.Bind(b.fd, sockaddr(at)))
	return b, b.closeOn(err)
}

func newBatch(addr netip.Addr, size, batch int) (*Batch, error) {
	family := unix.AF_INET
	if addr.Is6() {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("udp socket: %w", err)
	}
	b := &Batch{fd: fd, size: size, data: make([]byte, size*batch),
		iovs: make([]unix.Iovec, batch), msgs: make([]mmsghdr, batch)}
	for i := range b.msgs {
		b.iovs[i].Base = &b.data[i*size]
		b.iovs[i].SetLen(size)
		b.msgs[i].hdr.Iov = &b.iovs[i]
		b.msgs[i].hdr.SetIovlen(1)
	}
	return b, nil
}

func (b *Batch) closeOn(err error) error {
	if err != nil {
		b.Close()
	}
	return err
}

func sockaddr(ap netip.AddrPort) unix.Sockaddr {
	if ap.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(ap.Port()), Addr: ap.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(ap.Port()), Addr: ap.Addr().As16()}
}

// SetBuffer sets the size of the receive buffer in bytes. The kernel charges each datagram with more than its size.
func (b *Batch) SetBuffer(bytes int) error {
	return unix.SetsockoptInt(b.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, bytes)
}

// Len returns the maximum number of datagrams per call.
func (b *Batch) Len() int { return len(b.msgs) }

// Datagram returns the buffer of the i-th datagram of a batch.
func (b *Batch) Datagram(i int) []byte { return b.data[i*b.size : (i+1)*b.size] }

// Size returns the length of the i-th received datagram; longer ones are truncated to the buffer.
func (b *Batch) Size(i int) int { return int(b.msgs[i].len) }

// Send sends the first n datagrams and returns how many the kernel accepted.
func (b *Batch) Send(n int) (int, error) {
	return b.call(unix.SYS_SENDMMSG, n, 0)
}

// Receive waits for one datagram, and also receives all others that are queued. It returns 0 after the receiver's
// timeout.
func (b *Batch) Receive() (int, error) {
	n, err := b.call(unix.SYS_RECVMMSG, len(b.msgs), unix.MSG_WAITFORONE)
	if errors.Is(err, unix.EAGAIN) {
		return 0, nil
	}
	return n, err
}

func (b *Batch) call(trap uintptr, n int, flags uintptr) (int, error) {
	for {
		got, _, errno := unix.Syscall6(trap, uintptr(b.fd), uintptr(unsafe.Pointer(&b.msgs[0])), uintptr(n), flags, 0, 0)
		switch errno {
		case 0:
			return int(got), nil
		case unix.EINTR:
			continue
		}
		return 0, errno
	}
}

// Close closes the socket.
func (b *Batch) Close() error { return unix.Close(b.fd) }
