// SPDX-License-Identifier: Apache-2.0

package accelerator

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/lab/wait"
)

// Guarantees of sockets that redirection could break. On each connection both ends redirect before the test.

func TestWaitAll(t *testing.T) {
	p := accelerate(t, usual)
	c := p.connect(t)
	p.warm(c)
	for i := range 20 {
		want := noise(200)
		got := make([]byte, 200)
		c.within("receive all", func() error {
			done := blocks(unix.SYS_RECVFROM, func() error {
				n, _, err := unix.Recvfrom(c.server, got, unix.MSG_WAITALL)
				if err == nil && n != len(got) {
					err = errors.New("recv with MSG_WAITALL gives less")
				}
				return err
			})
			for half := range 2 {
				if err := writeAll(c.client, want[half*100:half*100+100]); err != nil {
					return err
				}
				time.Sleep(time.Millisecond) // a recv without MSG_WAITALL returns
			}
			return <-done
		})
		if !bytes.Equal(got, want) {
			t.Fatalf("message %d is changed", i)
		}
		c.send(c.server, want)
		c.receive(c.client, 200)
	}
	if p.refused("waitall") != 1 {
		t.Errorf("%+v", p.counts())
	}
}

// blocks calls do on a separate thread, and returns when it is blocked in a system call. done receives the result of
// do, or an error if it does not block. It is safe for concurrent use.
func blocks(call int, do func() error) (done <-chan error) {
	result, thread := make(chan error, 1), make(chan int, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		thread <- unix.Gettid()
		result <- do()
	}()
	id := <-thread
	for end := time.Now().Add(patience / 2); !isBlocked(id, call); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			failed := make(chan error, 1)
			failed <- fmt.Errorf("it does not block in system call %d", call)
			return failed
		}
	}
	return result
}

func isBlocked(thread, call int) bool {
	now, _ := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/syscall", thread))
	return strings.HasPrefix(string(now), fmt.Sprintf("%d ", call))
}

func TestLowWaterMark(t *testing.T) {
	p := accelerate(t, usual)
	c := p.connect(t)
	p.warm(c)
	check(t, unix.SetsockoptInt(c.server, unix.SOL_SOCKET, unix.SO_RCVLOWAT, 200))
	c.within("receive", func() error {
		done := blocks(unix.SYS_READ, func() error {
			n, err := unix.Read(c.server, make([]byte, 1000))
			if err == nil && n < 200 {
				err = errors.New("recv does not wait for SO_RCVLOWAT")
			}
			return err
		})
		for range 2 {
			if err := writeAll(c.client, make([]byte, 100)); err != nil {
				return err
			}
			time.Sleep(3 * time.Millisecond) // a recv that does not wait for 200 bytes returns
		}
		return <-done
	})
	if p.refused("option") != 1 {
		t.Errorf("%+v", p.counts())
	}
}

func TestUrgent(t *testing.T) {
	p := accelerate(t, usual)
	c := p.connect(t)
	p.warm(c)
	c.within("urgent byte", func() error {
		if err := unix.Sendto(c.client, []byte("abc!"), unix.MSG_OOB, nil); err != nil {
			return err
		}
		if err := waitFor(c.server, unix.POLLPRI); err != nil {
			return err
		}
		urgent := make([]byte, 1)
		if n, _, err := unix.Recvfrom(c.server, urgent, unix.MSG_OOB); err != nil || n != 1 || urgent[0] != '!' {
			return errors.Join(errors.New("the urgent byte is "+string(urgent[:max(n, 0)])), err)
		}
		return nil
	})
	if got := c.receive(c.server, 3); string(got) != "abc" {
		t.Errorf("before the urgent byte: %q", got)
	}
	c.turn(100)
	if p.refused("urgent") != 1 {
		t.Errorf("%+v", p.counts())
	}
}

func waitFor(fd int, events int16) error {
	fds := []unix.PollFd{{Fd: int32(fd), Events: events}}
	for {
		n, err := unix.Poll(fds, int(patience.Milliseconds()))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err == nil && n == 0 {
			return errors.New("poll reports nothing")
		}
		return err
	}
}

// shutdown(SHUT_WR) and then recv, which waits for a slow answer.
func TestHalfClose(t *testing.T) {
	p := accelerate(t, usual)
	for range 20 {
		c := p.connect(t)
		p.warm(c)
		last := noise(5000)
		c.send(c.client, last)
		check(t, unix.Shutdown(c.client, unix.SHUT_WR))
		c.within("answer after the end", func() error {
			done := make(chan error, 1)
			go func() {
				got := make([]byte, 100)
				err := readAll(c.client, got)
				if err == nil {
					_, err = unix.Read(c.client, got)
				}
				done <- err
			}()
			time.Sleep(60 * time.Millisecond) // meanwhile TCP acknowledges the FIN, which wakes waiting threads without data
			got := make([]byte, 5000)
			if err := readAll(c.server, got); err != nil || !bytes.Equal(got, last) {
				return errors.Join(errors.New("before the end"), err)
			}
			if n, err := unix.Read(c.server, got); n != 0 || err != nil {
				return errors.Join(errors.New("no end of stream"), err)
			}
			time.Sleep(2 * time.Millisecond) // usually the FIN is acknowledged before the answer
			if err := writeAll(c.server, make([]byte, 100)); err != nil {
				return err
			}
			unix.Close(c.server)
			c.server = -1
			return <-done
		})
		c.close()
	}
	p.empty(t)
}

// closeWait is TCP_CLOSE_WAIT of the kernel's enum in net/tcp_states.h.
const closeWait = 8

// A thread is blocked in recv while another sends. Such a connection is removed from the map, so that at a shutdown the
// blocked thread sees end of file instead of EAGAIN.
func TestBlockedReaderAtShutdown(t *testing.T) {
	p := accelerate(t, usual)
	c := p.connect(t)
	p.warm(c)
	done, thread := make(chan error, 1), make(chan int, 1)
	var has atomic.Int64
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		thread <- unix.Gettid()
		got := make([]byte, 1000)
		for {
			n, err := unix.Read(c.client, got)
			if n <= 0 || err != nil {
				done <- err
				return
			}
			has.Add(int64(n))
		}
	}()
	id, sent := <-thread, int64(0)
	blocked := func() bool { return has.Load() == sent && isBlocked(id, unix.SYS_READ) }
	exchange := func() {
		wait.Until(t, "the reader blocks", blocked)
		c.send(c.client, noise(100))
		c.receive(c.server, 100)
		c.send(c.server, noise(100))
		sent += 100
	}
	wait.Until(t, "the sockets leave the map", func() bool {
		exchange()
		return p.enrolled() == 0
	})
	exchange()
	wait.Until(t, "the reader blocks", blocked)
	check(t, unix.Shutdown(c.client, unix.SHUT_WR))
	wait.Until(t, "the other side has the end", func() bool {
		info, err := unix.GetsockoptTCPInfo(c.server, unix.IPPROTO_TCP, unix.TCP_INFO)
		return err == nil && info.State == closeWait
	})
	c.send(c.server, noise(100))
	time.Sleep(60 * time.Millisecond) // longer than a delayed acknowledgement
	unix.Close(c.server)
	c.server = -1
	c.within("blocked reader", func() error { return <-done })
	if p.refused("threads") != 1 {
		t.Errorf("%+v", p.counts())
	}
}

func TestEndOfStream(t *testing.T) {
	p := accelerate(t, usual)
	c := p.connect(t)
	p.warm(c)
	c.within("end of stream", func() error {
		done := blocks(unix.SYS_READ, func() error {
			n, err := unix.Read(c.server, make([]byte, 10))
			if n != 0 {
				err = errors.Join(errors.New("bytes at the end"), err)
			}
			return err
		})
		unix.Close(c.client)
		c.client = -1
		return <-done
	})
}

// SO_LINGER 0: a reset, after all previous data was read.
func TestReset(t *testing.T) {
	p := accelerate(t, usual)
	c := p.connect(t)
	p.warm(c)
	check(t, unix.SetsockoptLinger(c.client, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}))
	unix.Close(c.client)
	c.client = -1
	c.within("reset", func() error {
		if _, err := unix.Read(c.server, make([]byte, 10)); !errors.Is(err, unix.ECONNRESET) {
			return errors.Join(errors.New("no reset"), err)
		}
		if _, err := unix.Write(c.server, make([]byte, 10)); !errors.Is(err, unix.EPIPE) {
			return errors.Join(errors.New("one may write after a reset"), err)
		}
		return nil
	})
}

func TestWriteAfterShutdown(t *testing.T) {
	p := accelerate(t, usual)
	c := p.connect(t)
	p.warm(c)
	check(t, unix.Shutdown(c.client, unix.SHUT_WR))
	c.within("write after shutdown", func() error {
		if _, err := unix.Write(c.client, make([]byte, 10)); !errors.Is(err, unix.EPIPE) {
			return errors.Join(errors.New("one may write after shutdown"), err)
		}
		return nil
	})
}

// If the receiver does not read, the sender blocks, with at most TCP's buffers and the backlog in the kernel.
func TestUnreadReceiverHoldsBack(t *testing.T) {
	p := accelerate(t, usual)
	buffer := option{unix.SOL_SOCKET, unix.SO_SNDBUF, 64 << 10}
	c := p.connect(t, buffer)
	p.warm(c)
	check(t, unix.SetsockoptInt(c.server, unix.SOL_SOCKET, unix.SO_RCVBUF, 64<<10))
	check(t, unix.SetNonblock(c.client, true))
	sent := 0
	for {
		n, err := unix.Write(c.client, noise(30000))
		if errors.Is(err, unix.EAGAIN) {
			break
		}
		check(t, err)
		if sent += n; sent > 4<<20 {
			t.Fatalf("%d bytes wait for a receiver that does not read", sent)
		}
	}
	check(t, unix.SetNonblock(c.client, false))
	c.receive(c.server, sent)
	c.turn(100)
}

// A receiver that has set SO_RCVBUF and does not read holds at most this buffer and the sender's, for any size of
// messages. If it closes, the sender gets an error for the data that does not fit.
func TestReceiveBufferHoldsBack(t *testing.T) {
	p := accelerate(t, usual)
	for _, size := range []int{200000, 30000, 1000} {
		c := p.connect(t, option{unix.SOL_SOCKET, unix.SO_SNDBUF, 4096})
		check(t, unix.SetsockoptInt(c.server, unix.SOL_SOCKET, unix.SO_RCVBUF, 4096))
		p.warm(c)
		check(t, unix.SetNonblock(c.client, true))
		sent := 0
		for {
			n, err := unix.Write(c.client, noise(size))
			if errors.Is(err, unix.EAGAIN) {
				break
			}
			check(t, err)
			if sent += n; sent > 64<<10 {
				t.Fatalf("messages of %d bytes: %d wait in a buffer of 8 KiB", size, sent)
			}
		}
		check(t, unix.SetNonblock(c.client, false))
		c.receive(c.server, sent)
		c.turn(100)
	}
}

// Options that change what recv or send do, set before anything was sent.
func TestOptionsKeepOut(t *testing.T) {
	p := accelerate(t, usual)
	options := map[string]option{
		"SO_ZEROCOPY":    {unix.SOL_SOCKET, unix.SO_ZEROCOPY, 1},
		"SO_TIMESTAMPNS": {unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1},
		"SO_TIMESTAMPING": {unix.SOL_SOCKET, unix.SO_TIMESTAMPING, unix.SOF_TIMESTAMPING_SOFTWARE |
			unix.SOF_TIMESTAMPING_RX_SOFTWARE},
		"SO_RCVLOWAT":  {unix.SOL_SOCKET, unix.SO_RCVLOWAT, 2},
		"TCP_INQ":      {unix.IPPROTO_TCP, unix.TCP_INQ, 1},
		"SO_BUSY_POLL": {unix.SOL_SOCKET, unix.SO_BUSY_POLL, 50},
	}
	probe := socket(t, &unix.SockaddrInet4{})
	defer unix.Close(probe)
	// Linux 6.9
	if o := (option{unix.SOL_SOCKET, unix.SO_PEEK_OFF, 0}); unix.SetsockoptInt(probe, o.level, o.name, o.value) == nil {
		options["SO_PEEK_OFF"] = o
	}
	for name, o := range options {
		t.Run(name+" before", func(t *testing.T) {
			before := p.refused("option")
			p.plain(p.connect(t, o))
			if p.refused("option") != before+1 {
				t.Errorf("%+v", p.counts())
			}
		})
		t.Run(name+" later", func(t *testing.T) {
			before := p.refused("option")
			c := p.connect(t)
			p.warm(c)
			check(t, unix.SetsockoptInt(c.server, o.level, o.name, o.value))
			p.plain(c)
			if p.refused("option") != before+1 {
				t.Errorf("%+v", p.counts())
			}
		})
	}
}

// Completions of MSG_ZEROCOPY arrive, since such sockets are not accelerated.
func TestZeroCopyCompletes(t *testing.T) {
	p := accelerate(t, usual)
	c := p.connect(t, option{unix.SOL_SOCKET, unix.SO_ZEROCOPY, 1})
	c.turn(100)
	c.within("completion", func() error {
		if err := unix.Sendto(c.client, noise(1<<16), unix.MSG_ZEROCOPY, nil); err != nil {
			return err
		}
		if err := readAll(c.server, make([]byte, 1<<16)); err != nil {
			return err
		}
		if err := waitFor(c.client, 0); err != nil { // POLLERR
			return err
		}
		_, _, _, _, err := unix.Recvmsg(c.client, nil, make([]byte, 128), unix.MSG_ERRQUEUE)
		return err
	})
}

// TCP_DEFER_ACCEPT: the server accepts the connection with the first bytes.
func TestDeferAccept(t *testing.T) {
	p := accelerate(t, usual)
	l := p.listen(t, option{unix.IPPROTO_TCP, unix.TCP_DEFER_ACCEPT, 5})
	defer unix.Close(l)
	for i := range 200 {
		addr, err := unix.Getsockname(l)
		check(t, err)
		client := socket(t, addr)
		check(t, unix.Connect(client, addr))
		want := noise(300)
		for part := range 3 {
			check(t, writeAll(client, want[100*part:100*part+100]))
		}
		c := accepted(t, client, l)
		if got := c.receive(c.server, 300); !bytes.Equal(got, want) {
			t.Fatalf("connection %d: %s", i, difference(got, want))
		}
		c.turn(100)
		c.turn(100)
		c.close()
	}
	p.empty(t)
}

// MSG_FASTOPEN: bytes before the connection is established.
func TestFastOpen(t *testing.T) {
	p := accelerate(t, usual)
	l := p.listen(t)
	defer unix.Close(l)
	check(t, unix.SetsockoptInt(l, unix.IPPROTO_TCP, unix.TCP_FASTOPEN, 16))
	addr, err := unix.Getsockname(l)
	check(t, err)
	for i := range 20 {
		client := socket(t, addr)
		want := noise(300)
		err := unix.Sendto(client, want[:100], unix.MSG_FASTOPEN, addr)
		if errors.Is(err, unix.EOPNOTSUPP) {
			t.Skip("the kernel does no TCP Fast Open here")
		}
		check(t, err)
		c := accepted(t, client, l)
		c.send(c.client, want[100:])
		if got := c.receive(c.server, 300); !bytes.Equal(got, want) {
			t.Fatalf("connection %d: %s", i, difference(got, want))
		}
		for range 3 {
			c.turn(100)
		}
		c.close()
	}
	p.empty(t)
}

// MSG_PEEK returns the data that recv then returns.
func TestPeek(t *testing.T) {
	p := accelerate(t, usual)
	c := p.connect(t)
	p.warm(c)
	for range 10 {
		want := noise(1000)
		c.send(c.client, want)
		peeked := make([]byte, 1000)
		c.within("peek", func() error {
			if err := waitFor(c.server, unix.POLLIN); err != nil {
				return err
			}
			_, _, err := unix.Recvfrom(c.server, peeked, unix.MSG_PEEK)
			return err
		})
		got := c.receive(c.server, 1000)
		if !bytes.Equal(got, want) || !bytes.Equal(peeked, want) {
			t.Fatalf("%s; peeked %s", difference(got, want), difference(peeked, want))
		}
		c.send(c.server, want)
		c.receive(c.client, 1000)
	}
}

// A connection on which a program is seen blocking in recv becomes plain, and a program that does so on several is
// excluded, unless allowed, since it would get EAGAIN on signals.
func TestBlockingReader(t *testing.T) {
	p := load(t, usual)
	p.enter(chain.All)
	unix.Close(p.listen(t))
	p.judge(safe, asked)
	l := p.listen(t)
	defer unix.Close(l)
	const most = 4 // ACCEL_MAX_BLOCKED
	for n := range uint64(most) {
		p.block(t, p.connectTo(t, l))
		if p.refused("blocking") != n+1 {
			t.Errorf("%+v", p.counts())
		}
	}
	again := p.connectTo(t, l)
	if _, known := p.end(again.client); known || p.refused("blocking") != most+1 {
		t.Errorf("its next connection takes part: %+v", p.counts())
	}
}

// block takes turns on a connection whose server blocks in recv: nothing is redirected, and the connection is removed.
func (p *plane) block(t *testing.T, c *conn) {
	t.Helper()
	for range 4 {
		done := blocks(unix.SYS_READ, func() error { return readAll(c.server, make([]byte, 100)) })
		c.send(c.client, noise(100))
		c.within("receive", func() error { return <-done })
		c.send(c.server, noise(100))
		c.receive(c.client, 100)
	}
	if p.redirects(c.client)+p.redirects(c.server) != 0 {
		t.Errorf("%+v", p.counts())
	}
	wait.Until(t, "the sockets leave the map", func() bool {
		c.turn(100)
		return p.enrolled() == 0
	})
}
