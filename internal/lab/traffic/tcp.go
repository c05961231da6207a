// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/lab/netlab"
)

const (
	streamChunk = 256 << 10              // bytes per write
	streamWarm  = 100 * time.Millisecond // slow start is not counted
	tcpTimeout  = 5 * time.Second        // a blocked peer ends the run
)

// Pair is a TCP connection between two hosts of a lab.
type Pair struct {
	client, server int
}

// Connect opens a connection from one host to another, at an address that may be virtual.
func Connect(from, to *netlab.Host, at netip.AddrPort) (*Pair, error) {
	listener, err := listen(to, at)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", at, err)
	}
	defer unix.Close(listener)
	client, err := dial(from, at)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", at, err)
	}
	server, err := accept(listener)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("accept on %s: %w", at, err), unix.Close(client))
	}
	return &Pair{client, server}, errors.Join(noDelay(client), noDelay(server))
}

// listen also limits the wait for the connection; accepted sockets inherit the timeout.
func listen(h *netlab.Host, at netip.AddrPort) (fd int, err error) {
	err = h.Do(func() error {
		if fd, err = tcpSocket(at.Addr()); err != nil {
			return err
		}
		return errors.Join(
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1),
			unix.Bind(fd, sockaddr(anyAddress(at))), unix.Listen(fd, 1))
	})
	return fd, err
}

func anyAddress(at netip.AddrPort) netip.AddrPort {
	if at.Addr().Is4() {
		return netip.AddrPortFrom(netip.IPv4Unspecified(), at.Port())
	}
	return netip.AddrPortFrom(netip.IPv6Unspecified(), at.Port())
}

func dial(h *netlab.Host, at netip.AddrPort) (fd int, err error) {
	err = h.Do(func() error {
		if fd, err = tcpSocket(at.Addr()); err != nil {
			return err
		}
		return connect(fd, at)
	})
	return fd, err
}

// connect and accept retry after a signal: with a timeout on the socket, the kernel does not restart the call. A second
// connect(2) waits for the first handshake.
func connect(fd int, at netip.AddrPort) (err error) {
	for err = unix.EINTR; err == unix.EINTR; {
		err = unix.Connect(fd, sockaddr(at))
	}
	return err
}

func accept(listener int) (fd int, err error) {
	for err = unix.EINTR; err == unix.EINTR; {
		fd, _, err = unix.Accept4(listener, unix.SOCK_CLOEXEC)
	}
	return fd, err
}

func tcpSocket(addr netip.Addr) (int, error) {
	family := unix.AF_INET
	if addr.Is6() {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	limit := unix.NsecToTimeval(tcpTimeout.Nanoseconds())
	return fd, errors.Join(
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit))
}

// Connects opens and closes n connections sequentially, with both ends on one CPU, and returns the time of each connect
// in us. The client resets them, so that no port stays in TIME_WAIT.
func Connects(from, to *netlab.Host, at netip.AddrPort, n int) (times []float64, err error) {
	listener, err := listen(to, at)
	if err != nil {
		return nil, fmt.Errorf("listen on port %d: %w", at.Port(), err)
	}
	defer unix.Close(listener)
	err = from.Do(func() error {
		return RunOnCPU(1, func() error {
			for range n {
				us, err := connectOnce(listener, at)
				if err != nil {
					return err
				}
				times = append(times, us)
			}
			return nil
		})
	})
	return times, err
}

func connectOnce(listener int, to netip.AddrPort) (us float64, err error) {
	client, err := tcpSocket(to.Addr())
	if err != nil {
		return 0, err
	}
	defer unix.Close(client)
	start := time.Now()
	if err := connect(client, to); err != nil {
		return 0, fmt.Errorf("connect to %s: %w", to, err)
	}
	us = float64(time.Since(start).Nanoseconds()) / 1e3
	server, err := accept(listener)
	if err != nil {
		return 0, fmt.Errorf("accept: %w", err)
	}
	reset := &unix.Linger{Onoff: 1}
	return us, errors.Join(unix.SetsockoptLinger(client, unix.SOL_SOCKET, unix.SO_LINGER, reset), unix.Close(server))
}

func noDelay(fd int) error {
	return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
}

// Close closes the connection.
func (p *Pair) Close() error { return errors.Join(unix.Close(p.client), unix.Close(p.server)) }

// Throughput streams from client to server, on separate CPUs, and returns the rate that the server received, in bit/s.
// The server discards data without copying it.
func (p *Pair) Throughput(duration time.Duration) (float64, error) {
	sender := make(chan error, 1)
	end := time.Now().Add(streamWarm + duration)
	go func() { sender <- RunOnCPU(0, func() error { return p.stream(end) }) }()
	var rate float64
	err := RunOnCPU(1, func() (err error) { rate, err = p.sink(); return err })
	return rate, errors.Join(err, <-sender)
}

// ErrStarved is wrapped if the machine was too busy for a measurement.
var ErrStarved = errors.New("the stream made no progress while it was measured")

// stream writes until end, then closes its direction.
func (p *Pair) stream(end time.Time) error {
	chunk := make([]byte, streamChunk)
	for time.Now().Before(end) {
		if _, err := unix.Write(p.client, chunk); err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("stream: %w", err)
		}
	}
	return unix.Shutdown(p.client, unix.SHUT_WR)
}

// sink measures from the first bytes after slow start to the last ones, regardless of data in flight at the end.
func (p *Pair) sink() (bitsPerSecond float64, err error) {
	trash := make([]byte, 4*streamChunk)
	warm := time.Now().Add(streamWarm)
	var start, last time.Time
	var sum int
	for {
		n, _, err := unix.Recvfrom(p.server, trash, unix.MSG_TRUNC)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("sink: %w", err)
		}
		if n == 0 && sum == 0 {
			return 0, fmt.Errorf("sink: %w", ErrStarved)
		}
		if n == 0 {
			return 8 * float64(sum) / last.Sub(start).Seconds(), nil
		}
		last = time.Now()
		switch {
		case !start.IsZero():
			sum += n
		case last.After(warm):
			start = last
		}
	}
}

// PingPong sends a byte back and forth and returns the time of each round trip in us. Both sides share a CPU, so that
// it measures the path and not wakeups between virtual CPUs.
func (p *Pair) PingPong(duration time.Duration) ([]float64, error) {
	server := make(chan error, 1)
	go func() { server <- RunOnCPU(1, p.pong) }()
	var times []float64
	err := RunOnCPU(1, func() (err error) { times, err = p.ping(duration); return err })
	err = errors.Join(err, unix.Shutdown(p.client, unix.SHUT_WR))
	return times, errors.Join(err, <-server)
}

func (p *Pair) ping(duration time.Duration) ([]float64, error) {
	var times []float64
	b := make([]byte, 1)
	for end := time.Now().Add(duration); time.Now().Before(end); {
		start := time.Now()
		if _, err := unix.Write(p.client, b); err != nil {
			return nil, fmt.Errorf("ping: %w", err)
		}
		if err := readByte(p.client, b); err != nil {
			return nil, fmt.Errorf("ping: %w", err)
		}
		times = append(times, float64(time.Since(start).Nanoseconds())/1e3)
	}
	return times, nil
}

var errClosed = errors.New("connection closed")

func readByte(fd int, b []byte) error {
	for {
		n, err := unix.Read(fd, b)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err == nil && n == 0:
			return errClosed
		}
		return err
	}
}

func (p *Pair) pong() error {
	b := make([]byte, 1)
	for {
		switch err := readByte(p.server, b); {
		case errors.Is(err, errClosed):
			return nil
		case err != nil:
			return fmt.Errorf("pong: %w", err)
		}
		if _, err := unix.Write(p.server, b); err != nil {
			return fmt.Errorf("pong: %w", err)
		}
	}
}
