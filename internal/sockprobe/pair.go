// SPDX-License-Identifier: Apache-2.0

package sockprobe

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// patience is how long something that TCP does at once is waited for.
const patience = 500 * time.Millisecond

// pair is a connection over loopback, both ends of which are here. Its sockets block, but never longer than patience.
type pair struct{ a, b int }

// connect makes a connection and puts both ends into the map of the mode.
func (l *lab) connect(m mode) (*pair, error) {
	p, err := dial()
	if err != nil {
		return nil, fmt.Errorf("connect over loopback: %w", err)
	}
	for _, fd := range []int{p.a, p.b} {
		local, remote, err := ports(fd)
		if err == nil {
			err = l.relays[m].Put(fd, local, remote)
		}
		if err != nil {
			p.close()
			return nil, err
		}
	}
	return p, nil
}

// dial returns two ends of a TCP connection over loopback, in blocking mode and with limits on how long calls take.
func dial() (*pair, error) {
	listener, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(listener)
	if err := errors.Join(unix.Bind(listener, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}),
		unix.Listen(listener, 1)); err != nil {
		return nil, err
	}
	to, err := unix.Getsockname(listener)
	if err != nil {
		return nil, err
	}
	p := &pair{-1, -1}
	if p.a, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err == nil {
		err = unix.Connect(p.a, to)
	}
	if err == nil {
		p.b, _, err = unix.Accept4(listener, unix.SOCK_CLOEXEC)
	}
	if err == nil {
		err = p.setDeadlines()
	}
	if err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

// setDeadlines limits every blocking call.
func (p *pair) setDeadlines() error {
	limit := unix.NsecToTimeval(patience.Nanoseconds())
	for _, fd := range []int{p.a, p.b} {
		for _, option := range []int{unix.SO_RCVTIMEO, unix.SO_SNDTIMEO} {
			if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, option, &limit); err != nil {
				return err
			}
		}
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1); err != nil {
			return err
		}
	}
	return nil
}

func ports(fd int) (local, remote uint16, err error) {
	here, err := unix.Getsockname(fd)
	if err != nil {
		return 0, 0, err
	}
	there, err := unix.Getpeername(fd)
	if err != nil {
		return 0, 0, err
	}
	return uint16(here.(*unix.SockaddrInet4).Port), uint16(there.(*unix.SockaddrInet4).Port), nil
}

func (p *pair) close() {
	for _, fd := range []*int{&p.a, &p.b} {
		if *fd >= 0 {
			unix.Close(*fd)
			*fd = -1
		}
	}
}

// send sends all of it from one end.
func send(fd int, data []byte) error {
	for len(data) > 0 {
		n, err := unix.SendmsgN(fd, data, nil, nil, unix.MSG_NOSIGNAL)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return fmt.Errorf("send: %w", err)
		}
		data = data[n:]
	}
	return nil
}

// receive waits for as many bytes, and compares them.
func receive(fd int, want []byte) error {
	got := make([]byte, len(want))
	if err := fill(fd, got); err != nil {
		return err
	}
	if !bytes.Equal(got, want) {
		return errors.New("other bytes arrived than were sent")
	}
	return nil
}

// exchange has each end send to the other: what is redirected, is from now on.
func (p *pair) exchange() error {
	for _, way := range [][2]int{{p.a, p.b}, {p.b, p.a}} {
		if err := errors.Join(send(way[0], hello), receive(way[1], hello)); err != nil {
			return err
		}
	}
	return nil
}

var hello = []byte("hello, neighbour")

// readable waits until there is something to read, and reports whether there is.
func readable(fd int, wait time.Duration) (bool, error) {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for end := time.Now().Add(wait); ; {
		n, err := unix.Poll(fds, int(max(0, time.Until(end).Milliseconds())))
		if err == unix.EINTR {
			continue
		}
		return n > 0 && fds[0].Revents&unix.POLLIN != 0, err
	}
}
