// SPDX-License-Identifier: Apache-2.0

package sockprobe

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// check tries one behaviour on a new connection. An error says what was otherwise than with TCP.
type check struct {
	name  string
	mode  mode
	try   func(*pair) error
	races bool // it passes by chance when one of its threads does not run in time
}

// Names of behaviours that decide which programs can be served.
const (
	QueuedRedirected = "fionreadRedirected"
	QueuedPassed     = "fionreadPassed"
	SpliceRedirected = "spliceRedirected"
	WaitAll          = "waitAll"
	Urgent           = "urgent"
	Interrupted      = "interrupted"
	Integrity        = "integrity"
)

var checks = []check{
	{Integrity, redirected, integrity, false},
	{QueuedRedirected, redirected, afterExchange(queued), false},
	{QueuedPassed, passed, afterExchange(queued), false},
	{SpliceRedirected, redirected, afterExchange(spliced), false},
	{WaitAll, redirected, afterExchange(waitAll), true},
	{"lowWater", redirected, afterExchange(lowWater), false},
	{Urgent, redirected, afterExchange(urgent), false},
	{"endWhileWaiting", redirected, afterExchange(closeWhileReceiving), true},
	{"waitAfterShutdown", redirected, afterExchange(waitAfterShutdown), true},
	{Interrupted, redirected, afterExchange(interrupted), true},
	{"backPressure", redirected, afterExchange(backPressure), false},
	{"zeroCopy", redirected, afterExchange(zeroCopy), false},
	{"resetUnread", redirected, afterExchange(resetUnread), false},
	{"ktlsRefused", redirected, afterExchange(ktls), false},
}

// run tries the behaviour in a thread that the Go runtime cannot interrupt: it sends SIGURG to preempt goroutines,
// which ends calls on sockets with limits to their time early, with plain TCP, too (signal(7)).
func (c *check) run(p *pair) (err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	blocked, before := unix.Sigset_t{Val: [16]uint64{1 << (unix.SIGURG - 1)}}, unix.Sigset_t{}
	if err := unix.PthreadSigmask(unix.SIG_BLOCK, &blocked, &before); err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, unix.PthreadSigmask(unix.SIG_SETMASK, &before, nil))
	}()
	return c.try(p)
}

// afterExchange makes both ends send first, as most checks are of what then is redirected.
func afterExchange(try func(*pair) error) func(*pair) error {
	return func(p *pair) error {
		if err := p.exchange(); err != nil {
			return err
		}
		return try(p)
	}
}

// integrity: random bytes in messages of random sizes, both ways at once.
func integrity(p *pair) error {
	data := make([]byte, 512<<10)
	random := rand.NewChaCha8([32]byte{})
	_, _ = random.Read(data) // never fails
	var wait sync.WaitGroup
	errs := make([]error, 4)
	for i, way := range [][2]int{{p.a, p.b}, {p.b, p.a}} {
		sizes := rand.New(rand.NewPCG(uint64(i), 0))
		wait.Go(func() {
			for rest := data; len(rest) > 0 && errs[2*i] == nil; {
				n := min(len(rest), 1+sizes.IntN(1<<sizes.IntN(16)))
				errs[2*i], rest = send(way[0], rest[:n]), rest[n:]
			}
		})
		wait.Go(func() { errs[2*i+1] = receive(way[1], data) })
	}
	wait.Wait()
	return errors.Join(errs...)
}

// queued: ioctl(FIONREAD) reports how many bytes wait.
func queued(p *pair) error {
	if err := send(p.a, hello); err != nil {
		return err
	}
	if ok, err := readable(p.b, patience); err != nil || !ok {
		return errors.Join(err, errors.New("not readable"))
	}
	n, err := unix.IoctlGetInt(p.b, unix.TIOCINQ) // the same number
	if err == nil && n != len(hello) {
		err = fmt.Errorf("ioctl(FIONREAD) says %d bytes while %d wait", n, len(hello))
	}
	return errors.Join(err, receive(p.b, hello))
}

// spliced: splice(2) takes bytes out of the socket that receives them.
func spliced(p *pair) error {
	if err := send(p.a, hello); err != nil {
		return err
	}
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return err
	}
	defer unix.Close(pipe[0])
	defer unix.Close(pipe[1])
	if ok, err := readable(p.b, patience); err != nil || !ok {
		return errors.Join(err, errors.New("not readable"))
	}
	n, err := unix.Splice(p.b, nil, pipe[1], nil, 1<<16, unix.SPLICE_F_NONBLOCK)
	if err == unix.EAGAIN {
		return errors.New("splice(2) finds nothing in a socket that is readable: programs that use it hang")
	}
	if err == nil && int(n) != len(hello) {
		err = fmt.Errorf("splice(2) found %d of %d bytes", n, len(hello))
	}
	if err != nil {
		return err
	}
	return receivePipe(pipe[0])
}

func receivePipe(fd int) error {
	got := make([]byte, 2*len(hello))
	n, err := unix.Read(fd, got)
	if err == nil && !bytes.Equal(got[:n], hello) {
		err = errors.New("other bytes came out of the pipe than were sent")
	}
	return err
}

// waitAll: MSG_WAITALL waits for all that was asked for.
func waitAll(p *pair) error {
	if err := send(p.a, hello[:4]); err != nil {
		return err
	}
	sent := make(chan error, 1)
	time.AfterFunc(20*time.Millisecond, func() { sent <- send(p.a, hello[4:]) })
	got, begun := make([]byte, len(hello)), time.Now()
	n, _, err := unix.Recvfrom(p.b, got, unix.MSG_WAITALL)
	late := time.Since(begun) >= patience
	err = errors.Join(err, <-sent)
	if err == nil && n != len(got) && late {
		err = unix.EAGAIN // the rest was not sent in time
	} else if err == nil && n != len(got) {
		err = fmt.Errorf("recv(MSG_WAITALL) returns with %d of %d bytes", n, len(got))
	}
	return err
}

// lowWater: with SO_RCVLOWAT fewer bytes are not worth waking for.
func lowWater(p *pair) error {
	if err := errors.Join(unix.SetsockoptInt(p.b, unix.SOL_SOCKET, unix.SO_RCVLOWAT, len(hello)),
		send(p.a, hello[:4])); err != nil {
		return err
	}
	if ok, err := readable(p.b, 20*time.Millisecond); err != nil || ok {
		return errors.Join(err, fmt.Errorf("readable with 4 bytes where SO_RCVLOWAT is %d", len(hello)))
	}
	return errors.Join(send(p.a, hello[4:]), receive(p.b, hello))
}

// urgent: the byte of MSG_OOB is not among the others, and can be read before them.
func urgent(p *pair) error {
	if err := send(p.a, hello); err != nil {
		return err
	}
	if err := unix.Sendto(p.a, []byte("!"), unix.MSG_OOB|unix.MSG_NOSIGNAL, nil); err != nil {
		return fmt.Errorf("send(MSG_OOB): %w", err)
	}
	if err := send(p.a, hello); err != nil {
		return err
	}
	got := make([]byte, 1)
	if _, _, err := unix.Recvfrom(p.b, got, unix.MSG_OOB); err != nil || got[0] != '!' {
		return errors.Join(err, errors.New("urgent data is delivered inline"))
	}
	return errors.Join(receive(p.b, hello), receive(p.b, hello))
}

// ends: end of file.
func ends(fd int) error {
	n, _, err := unix.Recvfrom(fd, make([]byte, 1), 0)
	if err == nil && n > 0 {
		err = fmt.Errorf("%d bytes after the end", n)
	}
	if err != nil {
		return fmt.Errorf("at the end: %w", err)
	}
	return nil
}

// closeWhileReceiving: who waits in recv(2) learns of the end.
func closeWhileReceiving(p *pair) error {
	shut := make(chan error, 1)
	time.AfterFunc(20*time.Millisecond, func() { shut <- unix.Shutdown(p.a, unix.SHUT_WR) })
	begun := time.Now()
	err := ends(p.b)
	if errors.Is(err, unix.EAGAIN) && time.Since(begun) < patience {
		err = errors.New("a recv(2) that waits ends with EAGAIN instead of end of file")
	}
	return errors.Join(err, <-shut)
}

// waitAfterShutdown: who has sent all waits for the answer.
func waitAfterShutdown(p *pair) error {
	if err := errors.Join(send(p.a, hello), unix.Shutdown(p.a, unix.SHUT_WR), receive(p.b, hello)); err != nil {
		return err
	}
	sent := make(chan error, 1)
	time.AfterFunc(20*time.Millisecond, func() { sent <- send(p.b, hello) })
	err := receive(p.a, hello)
	if errors.Is(err, unix.EAGAIN) {
		err = errors.New("after shutdown(WR), a recv(2) that waits ends with EAGAIN instead of data")
	}
	return errors.Join(err, <-sent)
}

// interrupted: a recv(2) that waits continues waiting after a signal (SA_RESTART).
func interrupted(p *pair) error {
	if err := unix.SetsockoptTimeval(p.b, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{}); err != nil {
		return err // with a limit to its time it would not continue
	}
	thread, received := make(chan int, 1), make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		thread <- unix.Gettid()
		received <- receive(p.b, hello)
	}()
	id := <-thread
	pause()
	err := unix.Tgkill(unix.Getpid(), id, unix.SIGURG) // which Go's runtime sends to its threads, too
	pause()
	err = errors.Join(err, send(p.a, hello))
	receiveErr := <-received
	if errors.Is(receiveErr, unix.EAGAIN) {
		receiveErr = errors.New("a recv(2) that waits ends with EAGAIN when a signal comes")
	}
	return errors.Join(err, receiveErr)
}

// pause lets what was begun take effect.
func pause() { time.Sleep(20 * time.Millisecond) }

// mostUnread is far more than the buffers of both ends together are by default.
const mostUnread = 64 << 20 // bytes

// backPressure: a sender blocks while the receiver does not read.
func backPressure(p *pair) error {
	piece := make([]byte, 256<<10)
	for sent := 0; sent < mostUnread; {
		n, err := unix.SendmsgN(p.a, piece, nil, nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
		if err == unix.EAGAIN || n < 0 {
			return nil
		}
		if err != nil {
			return err
		}
		sent += n
	}
	return fmt.Errorf("%d MiB were accepted although the receiver does not read", mostUnread>>20)
}

// zeroCopy: MSG_ZEROCOPY reports when the buffer can be used again.
func zeroCopy(p *pair) error {
	if err := unix.SetsockoptInt(p.a, unix.SOL_SOCKET, unix.SO_ZEROCOPY, 1); err != nil {
		return err
	}
	data := bytes.Repeat(hello, 1024)
	if n, err := unix.SendmsgN(p.a, data, nil, nil, unix.MSG_ZEROCOPY|unix.MSG_NOSIGNAL); err != nil || n != len(data) {
		return errors.Join(err, fmt.Errorf("%d of %d bytes were sent", n, len(data)))
	}
	if err := receive(p.b, data); err != nil {
		return err
	}
	fds := []unix.PollFd{{Fd: int32(p.a)}} // POLLERR is always reported
	if _, err := unix.Poll(fds, int(patience.Milliseconds())); err != nil || fds[0].Revents&unix.POLLERR == 0 {
		return errors.Join(err, errors.New("the completion of a send with MSG_ZEROCOPY does not come"))
	}
	_, _, _, _, err := unix.Recvmsg(p.a, nil, make([]byte, 256), unix.MSG_ERRQUEUE)
	return err
}

// resetUnread: closing with data that was not read is an error at the other end.
func resetUnread(p *pair) error {
	if err := send(p.b, hello); err != nil {
		return err
	}
	if ok, err := readable(p.a, patience); err != nil || !ok {
		return errors.Join(err, errors.New("not readable"))
	}
	return p.abort()
}

func (p *pair) abort() error {
	if err := unix.Close(p.a); err != nil {
		return err
	}
	p.a = -1
	switch n, _, err := unix.Recvfrom(p.b, make([]byte, 1), 0); {
	case err == unix.ECONNRESET:
		return nil
	case err == nil && n == 0:
		return errors.New("the other end sees end of file instead of a reset")
	case err == nil:
		return errors.New("the other end sees data instead of a reset")
	default:
		return fmt.Errorf("the other end sees %w instead of a reset", err)
	}
}

// ktls: the kernel's TLS cannot be put upon a socket that is redirected, so that nothing goes past it in plain text.
func ktls(p *pair) error {
	switch err := unix.SetsockoptString(p.a, unix.IPPROTO_TCP, unix.TCP_ULP, "tls"); err {
	case nil:
		return errors.New("the kernel's TLS is put upon a socket in the map")
	case unix.ENOENT:
		return &notTestedError{"this kernel has no TLS"}
	}
	return p.exchange()
}
