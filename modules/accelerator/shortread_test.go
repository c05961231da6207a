// SPDX-License-Identifier: Apache-2.0

package accelerator

import (
	"bytes"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/lab/wait"
)

// A short read does not imply that no more data has arrived: TCP bytes may follow redirected ones, and edge-triggered
// epoll has reported both at once. A program that then waits for the next edge, as with tokio, waits until more is
// sent.
func TestShortRead(t *testing.T) {
	p := accelerate(t, usual)
	for name, mode := range map[string]uint32{"accelerated": modeAdaptive, "off": modeOff} {
		t.Run(name, func(t *testing.T) {
			config := usual
			config.Mode = mode
			c := p.connect(t)
			if mode == modeAdaptive {
				p.warm(c)
			}
			p.configure(config)
			defer p.configure(usual)
			edges := epollOf(t, c.server)
			edges() // a new instance reports pending data
			const size = 100
			messages := int(usual.PassMessages) + 4 // the last ones use TCP
			sent := noise(messages * size)
			arrived := func() uint64 {
				info, err := unix.GetsockoptTCPInfo(c.server, unix.IPPROTO_TCP, unix.TCP_INFO)
				check(t, err)
				return info.Bytes_received
			}
			before := arrived()
			for at := 0; at < len(sent); at += size {
				c.send(c.client, sent[at:at+size])
			}
			redirected := int(usual.PassMessages) * size
			if mode == modeOff {
				redirected = 0
			}
			wait.Until(t, "TCP has the rest", func() bool { return int(arrived()-before) == len(sent)-redirected })
			if n := edges(); n != 1 {
				t.Fatalf("%d events for all messages", n)
			}
			first := make([]byte, 64<<10)
			n, err := unix.Read(c.server, first)
			check(t, err)
			want := redirected
			if mode == modeOff {
				want = len(sent)
			}
			if n != want {
				t.Fatalf("the first read has %d bytes of %d, want %d", n, len(sent), want)
			}
			if n := edges(); n != 0 {
				t.Errorf("%d events after the first read", n)
			}
			if rest := c.receive(c.server, len(sent)-n); !bytes.Equal(append(first[:n], rest...), sent) {
				t.Error("the bytes are others, or in another order")
			}
		})
	}
}

// epollOf returns a function that returns the number of edge-triggered events.
func epollOf(t *testing.T, fd int) func() int {
	t.Helper()
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	check(t, err)
	t.Cleanup(func() { unix.Close(epoll) })
	check(t, unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, fd,
		&unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET, Fd: int32(fd)}))
	return func() int {
		n, err := unix.EpollWait(epoll, make([]unix.EpollEvent, 4), 0)
		check(t, err)
		return n
	}
}
