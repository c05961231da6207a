// SPDX-License-Identifier: Apache-2.0

package sockprobe

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/sdk/sdktest"
)

// unchanged is what redirection changed on no kernel that the test has run on: 6.1.0-56 and 6.12.117 of Debian,
// emulated, and 6.18. Nodes do not spend time on it. To run it on others:
// go run ./test/kernels -kernels NAMES -pkgs ./internal/sockprobe -run Unchanged.
var unchanged = []check{
	{"integrityPassed", passed, integrity, false},
	{"splicePassed", passed, afterExchange(spliced), false},
	{"waitAllPassed", passed, afterExchange(waitAll), true},
	{"poll", redirected, afterExchange(polled), false},
	{"epollEdge", redirected, afterExchange(edges), false},
	{"peek", redirected, afterExchange(peek), false},
	{"halfClose", redirected, afterExchange(halfClose), false},
	{"sendfile", redirected, afterExchange(sendfile), false},
	{"reset", redirected, afterExchange(reset), false},
	{"tcpInfo", redirected, afterExchange(tcpInfo), false},
	{"memory", redirected, memory, false},
	{"keepalive", redirected, keepAlive, false},
}

func TestUnchanged(t *testing.T) {
	sdktest.NeedRoot(t)
	result, err := run(t.Context(), unchanged)
	if err != nil || len(result.Checks) != len(unchanged) {
		t.Fatalf("%d of %d checks, %v", len(result.Checks), len(unchanged), err)
	}
	for _, c := range result.Checks {
		if !c.OK {
			t.Errorf("%s is not as it is with TCP: %s", c.Name, c.Detail)
		}
	}
}

// polled: poll(2) reports data as long as there is some, and nothing otherwise.
func polled(p *pair) error {
	if ok, err := readable(p.b, 0); err != nil || ok {
		return errors.Join(err, errors.New("readable without data"))
	}
	if err := send(p.a, hello); err != nil {
		return err
	}
	for _, part := range [][]byte{hello[:5], hello[5:]} {
		if ok, err := readable(p.b, patience); err != nil || !ok {
			return errors.Join(err, errors.New("not readable with data"))
		}
		if err := receive(p.b, part); err != nil {
			return err
		}
	}
	return nil
}

// edges: edge-triggered epoll reports each message that comes, once.
func edges(p *pair) error {
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return err
	}
	defer unix.Close(ep)
	const edge = unix.EPOLLIN | unix.EPOLLET&0xffffffff
	if err := unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, p.b, &unix.EpollEvent{Events: edge, Fd: int32(p.b)}); err != nil {
		return err
	}
	for range 3 {
		if err := send(p.a, hello); err != nil {
			return err
		}
		if n, err := epollWait(ep, patience); err != nil || n != 1 {
			return errors.Join(err, fmt.Errorf("%d events for a message", n))
		}
		if err := receive(p.b, hello); err != nil {
			return err
		}
		if n, err := epollWait(ep, 0); err != nil || n != 0 {
			return errors.Join(err, fmt.Errorf("%d events without a message", n))
		}
	}
	return nil
}

// epollWait repeats a wait that a signal interrupted (the Go runtime sends SIGURG to preempt threads), with the whole
// time again.
func epollWait(ep int, wait time.Duration) (int, error) {
	events := make([]unix.EpollEvent, 4)
	for {
		n, err := unix.EpollWait(ep, events, int(wait.Milliseconds()))
		if err != unix.EINTR {
			return n, err
		}
	}
}

// peek: MSG_PEEK leaves the bytes where they are.
func peek(p *pair) error {
	if err := send(p.a, hello); err != nil {
		return err
	}
	got := make([]byte, len(hello))
	if n, _, err := unix.Recvfrom(p.b, got, unix.MSG_PEEK); err != nil || !bytes.Equal(got[:n], hello) {
		return errors.Join(err, fmt.Errorf("peeked at %d bytes", n))
	}
	return receive(p.b, hello)
}

// halfClose: what was sent before shutdown(WR) arrives, then the end, and the other direction continues.
func halfClose(p *pair) error {
	if err := errors.Join(send(p.a, hello), unix.Shutdown(p.a, unix.SHUT_WR), receive(p.b, hello)); err != nil {
		return err
	}
	if err := ends(p.b); err != nil {
		return err
	}
	return errors.Join(send(p.b, hello), receive(p.a, hello))
}

// sendfile: sendfile(2) from a file.
func sendfile(p *pair) error {
	fd, err := unix.MemfdCreate("kerb", unix.MFD_CLOEXEC)
	if err != nil {
		return err
	}
	file := os.NewFile(uintptr(fd), "memfd")
	defer file.Close()
	data := bytes.Repeat(hello, 4096)
	if _, err := file.WriteAt(data, 0); err != nil {
		return err
	}
	sent := make(chan error, 1)
	go func() {
		var at int64
		for int(at) < len(data) {
			if _, err := unix.Sendfile(p.a, fd, &at, len(data)-int(at)); err != nil {
				sent <- fmt.Errorf("sendfile: %w", err)
				return
			}
		}
		sent <- nil
	}()
	return errors.Join(receive(p.b, data), <-sent)
}

// reset: an aborted connection is an error at the other end.
func reset(p *pair) error {
	if err := unix.SetsockoptLinger(p.a, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}); err != nil {
		return err
	}
	return p.abort()
}

// tcpInfo: what `ss` shows of the connection stays sane.
func tcpInfo(p *pair) error {
	for _, fd := range []int{p.a, p.b} {
		info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		if err != nil {
			return err
		}
		const established = 1
		if info.State != established || info.Unacked != 0 || info.Retransmits != 0 {
			return fmt.Errorf("state %d, %d segments without acknowledgement, %d retransmissions", info.State, info.Unacked,
				info.Retransmits)
		}
		unsent, err := unix.IoctlGetInt(fd, unix.TIOCOUTQ)
		if err == nil && unsent != 0 {
			err = fmt.Errorf("%d bytes in the queue of an end that has sent all", unsent)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// memory: what was read, or sent, is charged to neither end any more.
func memory(p *pair) error {
	data := bytes.Repeat(hello, 16<<10)
	for range 8 {
		sent := make(chan error, 1)
		go func() { sent <- send(p.a, data) }()
		if err := errors.Join(receive(p.b, data), <-sent); err != nil {
			return err
		}
	}
	for _, fd := range []int{p.a, p.b} {
		m, err := memoryOf(fd)
		if err != nil {
			return err
		}
		if m.receive != 0 || m.send != 0 {
			return fmt.Errorf("%d bytes of received data and %d of sent data are still charged", m.receive, m.send)
		}
	}
	return nil
}

// keepAliveAfter is the least that TCP_KEEPIDLE can be.
const keepAliveAfter = 1 // s

// keepAlive: an end that has only sent and received by redirection is asked whether it is alive, and answers.
func keepAlive(p *pair) error {
	for _, fd := range []int{p.a, p.b} {
		for _, o := range [][3]int{{unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
			{unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, keepAliveAfter},
			{unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, 1}, {unix.IPPROTO_TCP, unix.TCP_KEEPCNT, 1}} {
			if err := unix.SetsockoptInt(fd, o[0], o[1], o[2]); err != nil {
				return err
			}
		}
	}
	if err := p.exchange(); err != nil {
		return err
	}
	return p.stillAlive()
}

// stillAlive waits for a keep-alive probe to be answered, which the counter of received segments shows, and exchanges
// data then.
func (p *pair) stillAlive() error {
	for end := time.Now().Add(3 * keepAliveAfter * time.Second); ; time.Sleep(20 * time.Millisecond) {
		info, err := unix.GetsockoptTCPInfo(p.a, unix.IPPROTO_TCP, unix.TCP_INFO)
		if err != nil {
			return err
		}
		if info.Segs_in > segmentsOfHandshake { // the answer
			return p.exchange()
		}
		if time.Now().After(end) {
			return errors.New("no keep-alive probe was answered in three times the time")
		}
	}
}

// segmentsOfHandshake: SYN-ACK. The bytes went another way.
const segmentsOfHandshake = 1

type meminfo struct{ receive, send uint32 }

// memoryOf reads SO_MEMINFO (sock_diag(7), INET_DIAG_SKMEMINFO).
func memoryOf(fd int) (meminfo, error) {
	var words [9]uint32
	size := uint32(unsafe.Sizeof(words))
	const receive, queued = 0, 5 // SK_MEMINFO_RMEM_ALLOC, SK_MEMINFO_WMEM_QUEUED
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_MEMINFO,
		uintptr(unsafe.Pointer(&words)), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return meminfo{}, fmt.Errorf("getsockopt(SO_MEMINFO): %w", errno)
	}
	return meminfo{words[receive], words[queued]}, nil
}
