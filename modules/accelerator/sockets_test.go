// SPDX-License-Identifier: Apache-2.0

package accelerator

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
	pointer "unsafe" // reasons are named by verdicts

	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/kerbabi"
	"github.com/kerb-edge/kerb/internal/lab/cgrouptest"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/lab/wait"
)

func TestTurnsAreRedirected(t *testing.T) {
	p := accelerate(t, usual)
	c := p.connect(t)
	p.warm(c)
	for _, size := range []int{1, 24, 4096, 65536, 200000} {
		before := p.redirects(c.client)
		for range 20 {
			c.turn(size)
		}
		if p.redirects(c.client) < before+20 {
			t.Errorf("only %d of 20 messages of %d bytes were redirected", p.redirects(c.client)-before, size)
		}
	}
	c.close()
	p.empty(t)
	if n := p.counts(); n.Offered != 1 || n.Paired != 1 || n.Accelerated != 1 || n.Messages < 200 {
		t.Errorf("%+v", n)
	}
}

// A trace that starts late in a connection shows its messages, and why some use TCP.
func TestTrace(t *testing.T) {
	p := accelerate(t, usual)
	c := p.connect(t)
	p.warm(c)
	c.turn(100)
	trace, err := dataplane.NewTrace(dataplane.TraceFilter{Port: p.port})
	check(t, err)
	defer trace.Close()
	check(t, p.Trace(trace))
	next := func(length int) (verdict kerbabi.Verdict, note uint64) {
		t.Helper()
		e, err := trace.Read(time.Now().Add(10 * time.Second))
		check(t, err)
		key, note := e.Note()
		if !e.Message() || int(e.Len) != length || (key == 1) != (note != 0) {
			t.Fatalf("%+v, want a message of %d bytes", e, length)
		}
		return kerbabi.Verdict(e.Verdict), note
	}
	c.turn(100)
	for range 2 {
		if verdict, note := next(100); verdict != kerbabi.Redirect || note != 0 {
			t.Errorf("%s, note %d", verdict, note)
		}
	}
	const messages, size = 70, 64 // more than usual.LeaveMessages
	for range messages {
		check(t, writeAll(c.server, make([]byte, size)))
	}
	c.receive(c.client, messages*size)
	stays := ""
	for range messages {
		if verdict, note := next(size); note != 0 {
			stays = (&accelerator{}).NoteName("", note)
			if verdict != kerbabi.Next {
				t.Errorf("%s, though it stays with TCP", verdict)
			}
		}
	}
	if stays != "stream" {
		t.Errorf("the connection stays with TCP because of %q", stays)
	}
}

// All kinds of addresses of connections, which pairs ignore.
func TestAddresses(t *testing.T) {
	p := accelerate(t, usual)
	six := [16]byte{15: 1}
	for name, servers := range map[string]struct{ bind, connect unix.Sockaddr }{
		"IPv6":             {&unix.SockaddrInet6{Addr: six}, &unix.SockaddrInet6{Addr: six}},
		"IPv4 to IPv6":     {&unix.SockaddrInet6{}, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}},
		"mapped IPv4":      {&unix.SockaddrInet4{}, &unix.SockaddrInet6{Addr: [16]byte{10: 0xff, 11: 0xff, 12: 127, 15: 1}}},
		"another loopback": {&unix.SockaddrInet4{}, &unix.SockaddrInet4{Addr: [4]byte{127, 1, 2, 3}}},
	} {
		t.Run(name, func(t *testing.T) {
			l := p.listenAt(t, servers.bind)
			defer unix.Close(l)
			switch a := servers.connect.(type) {
			case *unix.SockaddrInet4:
				a.Port = int(p.port)
			case *unix.SockaddrInet6:
				a.Port = int(p.port)
			}
			client := socket(t, servers.connect)
			check(t, unix.Connect(client, servers.connect))
			p.warm(accepted(t, client, l))
		})
	}
}

// A side that keeps sending without waiting uses TCP, in order; both sockets are then removed from the map while the
// connection continues.
func TestStreamLeaves(t *testing.T) {
	p := accelerate(t, usual)
	for _, size := range []int{64, 100000} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			c := p.connect(t)
			p.warm(c)
			total := size * 1000
			sent := noise(total)
			done := make(chan error, 1)
			go func() {
				for at := 0; at < total; at += size {
					if err := writeAll(c.server, sent[at:at+size]); err != nil {
						done <- err
						return
					}
				}
				done <- nil
			}()
			if got := c.receive(c.client, total); !bytes.Equal(got, sent) {
				t.Fatal(difference(got, sent))
			}
			c.within("send", func() error { return <-done })
			for range 20 { // each is acknowledged
				c.turn(100)
				time.Sleep(time.Millisecond) // sending interval
			}
			if e, known := p.end(c.client); !known || e.Out != 1 || p.enrolled() != 0 {
				t.Errorf("%d sockets are still in the map: %+v", p.enrolled(), e)
			}
			p.plain(c)
			c.close()
			p.empty(t)
		})
	}
	if n := p.counts(); p.refused("stream") != 2 || n.Left != 2 {
		t.Errorf("%+v", n)
	}
}

// Several messages without an answer use TCP; redirection restarts with the next turn.
func TestChangesItsMind(t *testing.T) {
	p := accelerate(t, usual)
	c := p.connect(t)
	p.warm(c)
	for range 50 {
		sent := noise(20 * 500)
		for at := 0; at < len(sent); at += 500 {
			c.send(c.client, sent[at:at+500])
		}
		if got := c.receive(c.server, len(sent)); !bytes.Equal(got, sent) {
			t.Fatal(difference(got, sent))
		}
		before := p.redirects(c.client)
		c.turn(100)
		c.turn(100)
		if p.redirects(c.client) == before {
			t.Fatal("does not begin again")
		}
	}
}

func TestShortConnectionsAreLeftAlone(t *testing.T) {
	config := usual
	config.MinTurns, config.Retry = 16*4, 16
	p := accelerate(t, config)
	l := p.listen(t)
	defer unix.Close(l)
	for range 100 {
		c := p.connectTo(t, l)
		c.turn(100)
		c.close()
	}
	if n := p.counts(); n.Offered > 20 || n.Offered < 10 || p.refused("short") != 100-n.Offered {
		t.Errorf("of 100 short connections %d enrolled, and %d were left alone", n.Offered, p.refused("short"))
	}
	for range 100 { // now connections last, as the few attempts show
		c := p.connectTo(t, l)
		for range 20 {
			c.turn(100)
		}
		c.close()
	}
	before := p.counts().Offered
	p.warm(p.connectTo(t, l))
	if p.counts().Offered != before+1 {
		t.Error("a destination whose connections last is still left alone")
	}
}

// Pools of long connections often start with a short one.
func TestSomeShortConnectionsMakeNoDestinationShort(t *testing.T) {
	config := usual
	config.MinTurns = 16 * 4
	p := accelerate(t, config)
	l := p.listen(t)
	defer unix.Close(l)
	for range 5 {
		c := p.connectTo(t, l)
		c.turn(100)
		c.close()
	}
	p.warm(p.connectTo(t, l))
}

// With a server that is not accelerated, clients stop offering after two connections, except one in many.
func TestServerNotAccelerated(t *testing.T) {
	p := load(t, usual)
	l := p.listen(t) // outside the data plane's cgroup
	defer unix.Close(l)
	p.enter(chain.All)
	unix.Close(p.listen(t))
	p.judge(allowed, asked)
	check(t, p.Maps["listeners"].Put(portKey{cookieOf(t, l), uint64(p.port)}, listenerEntry{}))
	for range 100 {
		c := p.connectTo(t, l)
		c.turn(100)
		c.turn(100)
		if n := p.enrolled(); n != 0 {
			t.Fatalf("%d sockets are in the map", n)
		}
		c.close()
	}
	if n := p.counts(); n.Offered != 3 || n.Paired != 0 || p.refused("remote") != 100 {
		t.Errorf("%+v", n)
	}
}

// The same with a server whose program is excluded; when it is included, one in many connections discovers it.
func TestServerKeptOut(t *testing.T) {
	p := accelerate(t, usual)
	l := p.listen(t)
	defer unix.Close(l)
	server := fileKey{Inode: 1}
	p.put(mapExecutables, server, executableEntry{Verdict: unsafe})
	key := portKey{cookieOf(t, l), uint64(p.port)}
	p.put("listeners", key, listenerEntry{File: server})
	talk := func() {
		c := p.connectTo(t, l)
		defer c.close()
		for range usual.Warm + 5 {
			c.turn(100)
		}
	}
	for range 100 {
		talk()
	}
	if n := p.counts(); n.Offered != 3 || n.Paired != 0 || p.refused("executable") != 3 || p.refused("remote") != 97 {
		t.Errorf("%+v", n)
	}
	p.judge(allowed, unsafe)
	for range 70 {
		talk()
	}
	if n := p.counts(); n.Paired == 0 {
		t.Errorf("%+v", n)
	}
	p.warm(p.connectTo(t, l))
}

// A server that listened before: its first closed connection identifies its program.
func TestListenedBefore(t *testing.T) {
	p := accelerate(t, usual)
	l := p.listen(t)
	defer unix.Close(l)
	for key := range entries[portKey, listenerEntry](p, "listeners") {
		check(t, p.Maps["listeners"].Delete(key))
	}
	c := p.connectTo(t, l)
	p.plain(c)
	c.close()
	if p.refused("serverUnexamined") != 1 {
		t.Errorf("%+v", p.counts())
	}
	p.warm(p.connectTo(t, l))
}

// Programs that listened before their service was attached are found and classified before the first connection.
func TestListenersAreFound(t *testing.T) {
	p := load(t, usual)
	p.enter(chain.Services)
	l := p.listen(t) // in no service yet
	defer unix.Close(l)
	programs := p.programs(t)
	netns, err := unix.GetsockoptUint64(l, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	check(t, err)
	p.put(mapMembers, netns, serviceEntry{ID: 7})
	defer p.ageIdle(t)()
	var paths []string
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("asked about %q; listeners %+v; programs %+v; %+v", paths, entries[portKey, listenerEntry](p, "listeners"),
				entries[fileKey, executableEntry](p, mapExecutables), p.counts())
		}
	})
	// Others may listen on this machine. In a chroot environment the path may have further directories in front: the root
	// directory of the main thread is above if an earlier test has used that thread for another mount namespace.
	for self, path := programPath(t), ""; !strings.HasSuffix(path, self); paths = append(paths, path) {
		path = programs().Path
	}
	p.judge(allowed, asked)
	p.warm(p.connectTo(t, l))
	if p.refused("unexamined") != 0 || p.refused("serverUnexamined") != 0 {
		t.Errorf("%+v", p.counts())
	}
}

// If a server's verdict was evicted or never arrived, it is requested when one of its connections closes.
func TestAsksAgainAboutAServer(t *testing.T) {
	p := accelerate(t, usual)
	l := p.listen(t, option{unix.IPPROTO_TCP, unix.TCP_DEFER_ACCEPT, 5}) // established by the first byte
	defer unix.Close(l)
	addr, err := unix.Getsockname(l)
	check(t, err)
	client := socket(t, addr)
	check(t, unix.Connect(client, addr))
	for file := range entries[fileKey, executableEntry](p, mapExecutables) {
		check(t, p.Maps[mapExecutables].Delete(file))
	}
	check(t, writeAll(client, noise(100)))
	c := accepted(t, client, l)
	if n := len(entries[fileKey, executableEntry](p, mapExecutables)); n != 0 || p.refused("serverUnexamined") != 1 {
		t.Fatalf("%d programs are known; %+v", n, p.counts())
	}
	c.receive(c.server, 100)
	c.close()
	p.judge(allowed, asked)
	p.warm(p.connect(t))
}

// Unread redirected data is discarded with its connection when the socket connects again.
func TestConnectsAgain(t *testing.T) {
	p := accelerate(t, usual)
	l := p.listen(t)
	defer unix.Close(l)
	addr, err := unix.Getsockname(l)
	check(t, err)
	c := p.connectTo(t, l)
	p.warm(c)
	before := p.redirects(c.server)
	c.send(c.server, noise(100))
	if p.redirects(c.server) != before+1 {
		t.Fatal("the message was not redirected")
	}
	client := c.client
	c.client = -1
	none := unix.RawSockaddr{Family: unix.AF_UNSPEC}
	if _, _, errno := unix.Syscall(unix.SYS_CONNECT, uintptr(client), uintptr(pointer.Pointer(&none)),
		unix.SizeofSockaddrInet4); errno != 0 {
		t.Fatal(errno)
	}
	c.close()
	check(t, unix.Connect(client, addr))
	p.warm(accepted(t, client, l))
}

// Existing connections stay plain.
func TestConnectedBefore(t *testing.T) {
	p := load(t, usual)
	c := p.connect(t)
	p.enter(chain.All)
	unix.Close(p.listen(t))
	p.judge(allowed, asked)
	p.plain(c)
	if _, known := p.end(c.client); known {
		t.Error("it is enrolled")
	}
}

// The verdict of a program is requested once. The program is excluded until then, and if it is unsafe.
func TestExecutables(t *testing.T) {
	p := load(t, usual)
	p.enter(chain.All)
	programs := p.programs(t)
	for range 3 {
		p.plain(p.connect(t))
	}
	var self unix.Stat_t
	check(t, unix.Stat("/proc/self/exe", &self))
	if got := programs(); got.File.Inode != self.Ino || got.Path != programPath(t) || got.Comm == "" || got.PID == 0 {
		t.Errorf("%+v", got)
	}
	more, err := ringbuf.NewReader(p.Maps[mapUnjudged])
	check(t, err)
	defer more.Close()
	more.SetDeadline(time.Now())
	if _, err := more.Read(); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("asked twice: %v", err)
	}
	p.judge(unsafe, asked)
	p.plain(p.connect(t))
	if p.refused("executable") != 1 || p.refused("unexamined") != 3 {
		t.Errorf("%+v", p.counts())
	}
	p.judge(allowed, unsafe)
	c := p.connect(t)
	p.warm(c)
	if n := p.enrolled(); n != 2 {
		t.Errorf("%d sockets are in the map", n)
	}
}

// A child with an inherited socket is another program.
func TestInheritedByAnotherProgram(t *testing.T) {
	p := accelerate(t, usual)
	c := p.connect(t)
	p.warm(c)
	file := os.NewFile(uintptr(c.server), "server")
	cmd := exec.Command("cat", "/proc/self/status") // writes several lines to its output, the socket
	cmd.Stdout = file
	check(t, cmd.Run())
	c.server = int(file.Fd())
	got := make([]byte, 5)
	c.within("receive", func() error { return readAll(c.client, got) })
	if string(got) != "Name:" {
		t.Errorf("%q", got)
	}
	if p.refused("unexamined") != 1 {
		t.Errorf("%+v", p.counts())
	}
	c.server = -1
	check(t, file.Close())
}

// A process that executes another program keeps its PID.
func TestBecomesAnotherProgram(t *testing.T) {
	p := accelerate(t, usual)
	p.shell(t, p.connect(t), "echo hello")
	p.judge(allowed, asked)
	c := p.connect(t)
	p.warm(c)
	path, err := exec.LookPath("cat")
	check(t, err)
	program, err := os.ReadFile(path)
	check(t, err)
	other := filepath.Join(t.TempDir(), "cat") // not another name of the shell's file, as with busybox
	check(t, os.WriteFile(other, program, 0o755))
	p.shell(t, c, "echo hello; exec "+other+" /proc/self/status")
	got := make([]byte, 11)
	c.within("receive", func() error { return readAll(c.client, got) })
	if string(got) != "hello\nName:" {
		t.Errorf("%q", got)
	}
	if p.refused("unexamined") != 2 { // the shell when it was new, and cat
		t.Errorf("%+v", p.counts())
	}
}

// shell makes a shell write to the server's end.
func (p *plane) shell(t *testing.T, c *conn, command string) {
	t.Helper()
	fd, err := unix.FcntlInt(uintptr(c.server), unix.F_DUPFD_CLOEXEC, 0)
	check(t, err)
	end := os.NewFile(uintptr(fd), "server")
	defer end.Close()
	cmd := exec.Command("sh", "-c", command)
	cmd.Stdout = end
	check(t, cmd.Run())
}

func TestPolicy(t *testing.T) {
	p := accelerate(t, usual)
	for name, c := range map[string]struct {
		set    func()
		reason string
	}{
		"port":    {func() { p.put(mapPorts, uint32(p.port/64), uint64(0)) }, "port"},
		"visible": {func() { p.see(visibleEntry{First: p.port, Last: p.port}) }, "visible"},
		"network": {func() {
			p.see(visibleEntry{Address: [16]byte{10: 0xff, 11: 0xff, 12: 127}, Mask: [16]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
				0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, Last: 65535})
		}, "visible"},
	} {
		t.Run(name, func(t *testing.T) {
			l := p.listen(t)
			defer unix.Close(l)
			c.set()
			before := p.refused(c.reason)
			p.plain(p.connectTo(t, l))
			if p.refused(c.reason) != before+1 {
				t.Errorf("%+v", p.counts())
			}
			p.put(mapPorts, uint32(p.port/64), ^uint64(0))
			p.configure(usual)
		})
	}
	p.see(visibleEntry{First: 1, Last: 1})
	p.warm(p.connect(t))
}

func (p *plane) see(v visibleEntry) {
	c := usual
	c.Visibles = 1
	p.put(mapVisibles, uint32(0), v)
	p.configure(c)
}

// Mode off: nothing is lost, and all data uses TCP. After switching on again, running connections stay plain.
func TestSwitchedOff(t *testing.T) {
	p := accelerate(t, usual)
	c := p.connect(t)
	p.warm(c)
	waiting := noise(5000)
	c.send(c.client, waiting[:1000])
	off := usual
	off.Mode = modeOff
	p.configure(off)
	c.send(c.client, waiting[1000:])
	if got := c.receive(c.server, 5000); !bytes.Equal(got, waiting) {
		t.Fatal(difference(got, waiting))
	}
	p.plain(c)
	p.plain(p.connect(t))
	p.configure(usual)
	p.warm(p.connect(t))
}

// Removal: sockets are removed when their queues are empty, not before.
func TestDrain(t *testing.T) {
	p := accelerate(t, usual)
	var conns []*conn
	for range 10 {
		c := p.connect(t)
		p.warm(c)
		conns = append(conns, c)
	}
	waiting := noise(5000)
	conns[0].send(conns[0].client, waiting)
	left, err := p.Drain()
	check(t, err)
	if left != 2 {
		t.Errorf("%d sockets are left while one connection has not read", left)
	}
	if got := conns[0].receive(conns[0].server, 5000); !bytes.Equal(got, waiting) {
		t.Fatal(difference(got, waiting))
	}
	wait.Until(t, "all sockets are drained", func() bool {
		left, err := p.Drain()
		check(t, err)
		return left == 0
	})
	for _, c := range conns {
		p.plain(c)
	}
	p.plain(p.connect(t))
}

// A reset connection leaves no state, also while a program keeps its descriptor.
func TestResetButOpen(t *testing.T) {
	p := accelerate(t, usual)
	c := p.connect(t)
	p.warm(c)
	check(t, unix.SetsockoptLinger(c.client, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}))
	check(t, unix.Close(c.client))
	c.client = -1
	p.empty(t)
	if left, err := p.Drain(); left != 0 || err != nil {
		t.Errorf("%d sockets are left (%v)", left, err)
	}
}

// A service is limited to its share of connections, which it regains when they close.
func TestQuota(t *testing.T) {
	config := usual
	config.Quota = 2
	p := accelerate(t, config)
	l := p.listen(t)
	defer unix.Close(l)
	p.put(mapMembers, cookieOf(t, l), serviceEntry{ID: 7})
	first, second := p.connect(t), p.connect(t)
	p.warm(first)
	p.warm(second)
	p.plain(p.connect(t))
	if p.refused("quota") != 1 {
		t.Errorf("%+v", p.counts())
	}
	second.close()
	wait.Until(t, "the share is given back", func() bool {
		c := p.connect(t)
		defer c.close()
		c.turn(100)
		c.turn(100)
		return p.redirects(c.client) > 0
	})
}

// Pending connections, such as those to unused addresses, count towards the share.
func TestQuotaOfConnecting(t *testing.T) {
	config := usual
	config.Quota = 2
	p := accelerate(t, config)
	full := p.listen(t)
	defer unix.Close(full)
	check(t, unix.Listen(full, 0))
	p.put(mapMembers, cookieOf(t, full), serviceEntry{ID: 7})
	addr, err := unix.Getsockname(full)
	check(t, err)
	var fds []int
	for range 8 { // the first are accepted by the kernel
		fd := socket(t, addr)
		fds = append(fds, fd)
		check(t, unix.SetNonblock(fd, true))
		if err := unix.Connect(fd, addr); err != nil && err != unix.EINPROGRESS {
			t.Fatal(err)
		}
	}
	clients := 0
	for _, e := range entries[uint64, endEntry](p, mapEnds) {
		clients += int(e.IsClient)
	}
	if clients != 2 || p.refused("quota") != 6 {
		t.Errorf("%d clients, %+v", clients, p.counts())
	}
	for _, fd := range fds {
		check(t, unix.Close(fd))
	}
	wait.Until(t, "the share is given back", func() bool {
		for _, share := range entries[uint32, uint32](p, "shares") {
			return share == 0
		}
		return false
	})
}

// A socket that is in another program's map is ignored.
func TestOwnedByAnother(t *testing.T) {
	first, second := load(t, usual), load(t, usual)
	dir := cgrouptest.New(t, "", "kerb-accelerator")
	for _, p := range []*plane{first, second} {
		check(t, p.Attach(dir, chain.All))
	}
	cgrouptest.Enter(t, dir)
	unix.Close(first.listen(t))
	for _, p := range []*plane{first, second} {
		p.judge(allowed, asked)
	}
	first.warm(first.connect(t))
	if second.refused("foreignMap") != 1 || second.enrolled() != 0 {
		t.Errorf("%+v", second.counts())
	}
}

func TestNothingIsLeftOfManyConnections(t *testing.T) {
	p := accelerate(t, usual)
	l := p.listen(t)
	defer unix.Close(l)
	for i := range 3000 {
		addr, err := unix.Getsockname(l)
		check(t, err)
		client := socket(t, addr)
		check(t, unix.Connect(client, addr))
		server, _, err := unix.Accept(l)
		check(t, err)
		if i%3 != 0 {
			check(t, writeAll(client, []byte("question")))
			check(t, readAll(server, make([]byte, 8)))
			check(t, writeAll(server, []byte("answer")))
		}
		if i%2 == 0 {
			check(t, unix.SetsockoptLinger(client, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}))
		}
		unix.Close(client)
		unix.Close(server)
	}
	refused := socket(t, &unix.SockaddrInet4{})
	if err := unix.Connect(refused, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}, Port: 1}); !errors.Is(err,
		unix.ECONNREFUSED) {
		t.Error(err)
	}
	unix.Close(refused)
	p.empty(t)
}

// A program that can set sequence numbers (TCP_REPAIR) uses those of another connection. The pair becomes plain: no
// socket receives data of another connection.
func TestThirdWithTheSamePair(t *testing.T) {
	p := accelerate(t, usual)
	c := p.connect(t)
	p.warm(c)
	e, _ := p.end(c.client)
	third := socket(t, &unix.SockaddrInet4{}, option{unix.IPPROTO_TCP, unix.TCP_REPAIR, 1},
		option{unix.IPPROTO_TCP, unix.TCP_REPAIR_QUEUE, 2}, option{unix.IPPROTO_TCP, unix.TCP_QUEUE_SEQ,
			int(int32(e.Pair.Client))},
		option{unix.IPPROTO_TCP, unix.TCP_REPAIR_QUEUE, 1}, option{unix.IPPROTO_TCP, unix.TCP_QUEUE_SEQ,
			int(int32(e.Pair.Server))})
	defer unix.Close(third)
	check(t, unix.Connect(third, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}, Port: int(p.port)}))
	if _, known := p.end(third); known || p.refused("ambiguous") != 2 {
		t.Errorf("%+v", p.counts())
	}
	p.plain(c)
}

// lab returns two services on a bridge.
func lab(t *testing.T) (a, b *netlab.Host) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root for network namespaces")
	}
	l, err := netlab.New("acplane")
	check(t, err)
	t.Cleanup(func() { l.Close() })
	hosts, err := l.Hosts(2, netlab.HostOptions{})
	check(t, err)
	return hosts[0], hosts[1]
}

// inside returns a socket in another namespace.
func inside(t *testing.T, h *netlab.Host, f func() int) (fd int) {
	t.Helper()
	check(t, h.Do(func() error { fd = f(); return nil }))
	return fd
}

func cookieOf(t *testing.T, fd int) uint64 {
	t.Helper()
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	check(t, err)
	return cookie
}

// Services in two namespaces, identified by cookies: equal addresses in both are never confused, and DNAT between them
// does not matter.
func TestServices(t *testing.T) {
	a, b := lab(t)
	p := load(t, usual)
	p.enter(chain.Services)
	listen := func(h *netlab.Host, port int) int {
		return inside(t, h, func() int {
			return p.listenAt(t, &unix.SockaddrInet4{Port: port}, option{unix.SOL_SOCKET, unix.SO_REUSEADDR, 1})
		})
	}
	first := listen(a, 8080)
	p.put(mapMembers, cookieOf(t, first), serviceEntry{ID: 1})
	unix.Close(first)
	atA, atB := listen(a, 8080), listen(b, 8080)
	defer unix.Close(atA)
	defer unix.Close(atB)
	p.judge(allowed, asked)
	connect := func(from *netlab.Host, to unix.Sockaddr, l int) *conn {
		client := inside(t, from, func() int {
			fd := socket(t, to)
			check(t, unix.Connect(fd, to))
			return fd
		})
		return accepted(t, client, l)
	}
	toB := &unix.SockaddrInet4{Addr: b.Addr4().As4(), Port: 8080}
	loopback := &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}, Port: 8080}

	p.plain(connect(a, toB, atB)) // b is no service yet
	if p.refused("remote") != 1 {
		t.Errorf("%+v", p.counts())
	}
	p.put(mapMembers, cookieOf(t, atB), serviceEntry{ID: 2})
	unix.Close(atB)
	atB = listen(b, 8080)
	p.warm(connect(a, toB, atB))
	one, two := connect(a, loopback, atA), connect(b, loopback, atB)
	for range 20 {
		one.turn(100)
		two.turn(100)
	}
	p.warm(one)
	p.warm(two)
	if c := entries[routeKey, countsEntry](p, mapCounts)[routeKey{1, 2}]; c.Paired != 1 {
		t.Errorf("service 1 to 2: %+v", c)
	}

	established := connect(a, toB, atB)
	p.warm(established)
	p.put(mapMembers, cookieOf(t, atB), serviceEntry{ID: 2, Flags: within})
	for range 16 {
		established.turn(100)
	}
	p.plain(established)
	p.plain(connect(a, toB, atB))
	p.warm(connect(b, loopback, atB))
	if p.refused("policy") != 2 {
		t.Errorf("%+v", p.counts())
	}
	p.put(mapMembers, cookieOf(t, atB), serviceEntry{ID: 2})

	virtual := &unix.SockaddrInet4{Addr: b.Addr4().As4(), Port: 80} // no listener
	translate(t, a, virtual, toB)
	p.warm(connect(a, virtual, atB))
}

// translate adds DNAT in a host's namespace.
func translate(t *testing.T, h *netlab.Host, from, to *unix.SockaddrInet4) {
	t.Helper()
	rules := fmt.Sprintf("table ip kerbtest { chain out { type nat hook output priority -100; ip daddr %s tcp dport %d "+
		"dnat to %s:%d; }; }",
		net.IP(from.Addr[:]), from.Port, net.IP(to.Addr[:]), to.Port)
	cmd := h.Command(t.Context(), "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(rules)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Skipf("no DNAT here: %s", out)
	}
}
