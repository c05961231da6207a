// SPDX-License-Identifier: Apache-2.0

package accelerator

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/cgroup"
	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/lab/cgrouptest"
	"github.com/kerb-edge/kerb/internal/lab/pintest"
	"github.com/kerb-edge/kerb/internal/lab/wait"
	"github.com/kerb-edge/kerb/sdk/sdktest"
)

// guardMissing skips a test on kernels without the BPF LSM. The emulated machines have it, except arm64, which has
// trampolines since Linux 6.4.
func guardMissing(t testing.TB, err error) {
	t.Helper()
	if os.Getenv("KERB_MATRIX") != "" && runtime.GOARCH == "amd64" {
		t.Fatal(err)
	}
	t.Skip(err)
}

// guarded is a data plane with its guard.
type guarded struct{ *plane }

// The tests share one data plane, since loading it takes most of the time on emulated machines.
func TestGuard(t *testing.T) {
	p := guarded{accelerate(t, usual)}
	if err := p.Guard(); err != nil {
		guardMissing(t, err)
	}
	t.Run("confirmed", p.confirmed)
	t.Run("stopped", p.stopped)
	t.Run("closed", p.closed)
	t.Run("into socket", p.intoSocket)
	t.Run("io.Copy", p.goCopy)
	t.Run("haproxy", p.haproxy)
	t.Run("python", p.python)
	t.Run("io_uring", p.uring)
	t.Run("splice", p.splice) // it sets the mode to off
}

// counted returns a function that returns the increase of p.counts.
func (p guarded) counted() func() (accelerated, messages uint64) {
	before := p.counts()
	return func() (accelerated, messages uint64) {
		now := p.counts()
		return now.Accelerated - before.Accelerated, now.Messages - before.Messages
	}
}

// splice moves up to 1,000 bytes from a socket to a pipe, and returns them.
func splice(t testing.TB, fd int) ([]byte, error) {
	t.Helper()
	var pipe [2]int
	check(t, unix.Pipe2(pipe[:], unix.O_CLOEXEC))
	defer unix.Close(pipe[0])
	defer unix.Close(pipe[1])
	n, err := unix.Splice(fd, nil, pipe[1], nil, 1000, unix.SPLICE_F_NONBLOCK)
	if err != nil {
		return nil, err
	}
	data := make([]byte, n)
	check(t, readAll(pipe[0], data))
	return data, nil
}

// splices checks the result of splice(2) for a message on a socket, and the data from read(2) or the pipe.
func (c *conn) splices(from, to int, want error) {
	c.t.Helper()
	data := noise(100)
	c.send(from, data)
	wait.Until(c.t, "it can be read", func() bool {
		fds := []unix.PollFd{{Fd: int32(to), Events: unix.POLLIN}}
		n, _ := unix.Poll(fds, 0)
		return n == 1
	})
	got, err := splice(c.t, to)
	if !errors.Is(err, want) {
		c.t.Fatalf("splice: %v, want %v", err, want)
	}
	if err != nil {
		got = c.receive(to, len(data))
	}
	if !bytes.Equal(got, data) {
		c.t.Fatal(difference(got, data))
	}
}

// splice(2) from an accelerated socket always fails and consumes nothing; from other sockets it works.
func (p guarded) splice(t *testing.T) {
	fresh := p.connect(t)
	fresh.splices(fresh.client, fresh.server, unix.EINVAL)
	fresh.splices(fresh.server, fresh.client, unix.EINVAL)
	c := p.connect(t)
	p.warm(c)
	before := p.redirects(c.client)
	for range 3 {
		c.splices(c.client, c.server, unix.EINVAL)
		c.splices(c.server, c.client, unix.EINVAL)
	}
	if n := p.redirects(c.client) - before; n < 3 {
		t.Errorf("%d messages were redirected: a program that splices is accelerated", n)
	}
	off := p.config
	off.Mode = modeOff
	p.configure(off)
	plain := p.connect(t)
	plain.splices(plain.client, plain.server, nil)
	if _, err := splice(t, c.server); err != unix.EINVAL {
		t.Errorf("splice from a socket that is still in the map: %v", err)
	}
	wait.Until(t, "the sockets are out of the map", func() bool {
		left, err := p.Drain()
		check(t, err)
		return left == 0
	})
	c.splices(c.client, c.server, nil)
	c.splices(c.server, c.client, nil)
}

// splice works on a connection that left acceleration before anything was redirected.
func (p guarded) stopped(t *testing.T) {
	c := p.connect(t)
	c.splices(c.client, c.server, unix.EINVAL)
	check(t, unix.SetsockoptInt(c.server, unix.SOL_SOCKET, unix.SO_RCVLOWAT, 10))
	c.turn(100)
	c.turn(100)
	if e, _ := p.end(c.client); reasons[e.Stop] != "option" {
		t.Fatalf("%+v", e)
	}
	c.splices(c.client, c.server, nil)
	c.splices(c.server, c.client, nil)
}

// The program answers the agent's request, 2, with 1. It sets no other value, also while programs splice.
func (p guarded) confirmed(t *testing.T) {
	c := p.connect(t)
	for _, step := range []struct{ put, want uint32 }{{0, 0}, {2, 1}, {1, 1}} {
		p.put(mapGuarded, uint32(0), step.put)
		for range 10 {
			_, _ = splice(t, c.client)
		}
		var is uint32
		check(t, p.Maps[mapGuarded].Lookup(uint32(0), &is))
		if is != step.want {
			t.Errorf("guarded is %d after %d, want %d", is, step.put, step.want)
		}
	}
}

// splice on a socket to which nothing was redirected also works after the peer has closed.
func (p guarded) closed(t *testing.T) {
	c := p.connect(t)
	check(t, unix.SetsockoptInt(c.server, unix.SOL_SOCKET, unix.SO_RCVLOWAT, 10))
	c.turn(100)
	c.turn(100)
	c.splices(c.client, c.server, nil)
	c.send(c.client, noise(100))
	server := p.closes(t, c)
	if server.Plain != 1 {
		t.Errorf("%+v", server)
	}
	if got, err := splice(t, c.server); len(got) != 100 || err != nil {
		t.Errorf("%d bytes spliced after the peer has closed, %v", len(got), err)
	}
}

// closes closes the client, and returns the server's end after the data plane has removed the client.
func (p *plane) closes(t testing.TB, c *conn) endEntry {
	t.Helper()
	e, known := p.end(c.server)
	if !known {
		t.Fatal("the server does not take part")
	}
	check(t, unix.Close(c.client))
	c.client = -1
	wait.Until(t, "the client is forgotten", func() bool {
		_, known := entries[uint64, endEntry](p, mapEnds)[e.Peer]
		return !known
	})
	e, _ = p.end(c.server)
	return e
}

// After its peer has closed, an end still records whether anything was redirected to it. splice works only if nothing
// was.
func TestPeerHasRedirectedNothing(t *testing.T) {
	p := accelerate(t, usual)
	c := p.connect(t)
	c.turn(100)
	if e := p.closes(t, c); e.Plain != 1 || e.Stop == 0 {
		t.Errorf("nothing was redirected: %+v", e)
	}
	c = p.connect(t)
	p.warm(c)
	if e := p.closes(t, c); e.Plain != 0 || e.Stop == 0 {
		t.Errorf("messages were redirected: %+v", e)
	}
}

// The kernel's error for the program is reported, not a missing LSM.
func TestGuardIsRefused(t *testing.T) {
	p := load(t, usual)
	if p.Programs()["guard"] != nil {
		t.Skip("the kernel loads it")
	}
	if err := p.Guard(); err == nil || !strings.HasPrefix(err.Error(), "load the guard: ") {
		t.Error(err)
	}
}

// Data that is spliced into a socket, or sent by sendfile(2), is redirected like other messages, in order.
func (p guarded) intoSocket(t *testing.T) {
	c := p.connect(t)
	p.warm(c)
	before := p.redirects(c.client)
	var pipe [2]int
	check(t, unix.Pipe2(pipe[:], unix.O_CLOEXEC))
	defer unix.Close(pipe[0])
	defer unix.Close(pipe[1])
	file, err := os.CreateTemp(t.TempDir(), "")
	check(t, err)
	defer file.Close()
	for range 5 {
		data := noise(300)
		check(t, writeAll(pipe[1], data[:100]))
		if n, err := unix.Splice(pipe[0], nil, c.client, nil, 100, 0); n != 100 || err != nil {
			t.Fatal(n, err)
		}
		_, err = file.WriteAt(data[100:200], 0)
		check(t, err)
		offset := int64(0)
		if n, err := unix.Sendfile(c.client, int(file.Fd()), &offset, 100); n != 100 || err != nil {
			t.Fatal(n, err)
		}
		c.send(c.client, data[200:])
		if got := c.receive(c.server, 300); !bytes.Equal(got, data) {
			t.Fatal(difference(got, data))
		}
		c.send(c.server, data[:1])
		c.receive(c.client, 1)
	}
	if n := p.redirects(c.client) - before; n < 10 {
		t.Errorf("%d messages were redirected", n)
	}
}

const uringSplice = 30

// Worker threads of io_uring use splice, too.
func (p guarded) uring(t *testing.T) {
	onOwnThread(func() {
		c := p.connect(t)
		p.warm(c)
		data := noise(100)
		c.send(c.client, data)
		u := newUring(t)
		defer unix.Close(u.fd)
		var pipe [2]int
		check(t, unix.Pipe2(pipe[:], unix.O_CLOEXEC))
		defer unix.Close(pipe[0])
		defer unix.Close(pipe[1])
		if n := u.splice(t, c.server, pipe[1], 100); n != -int(unix.EINVAL) {
			t.Fatalf("splice by io_uring: %d", n)
		}
		if got := c.receive(c.server, 100); !bytes.Equal(got, data) {
			t.Fatal(difference(got, data))
		}
		plain, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		check(t, err)
		defer unix.Close(plain[0])
		defer unix.Close(plain[1])
		check(t, writeAll(plain[0], data))
		if n := u.splice(t, plain[1], pipe[1], 100); n != 100 {
			t.Fatalf("splice of another socket by io_uring: %d", n)
		}
	})
}

// splice submits a request to move n bytes from a socket to a pipe.
func (u *uring) splice(t testing.TB, from, to, n int) int {
	t.Helper()
	return u.submit(t, uringSplice, to, n, func(entry []byte) {
		binary.NativeEndian.PutUint64(entry[8:], ^uint64(0))
		binary.NativeEndian.PutUint64(entry[16:], ^uint64(0))
		binary.NativeEndian.PutUint32(entry[44:], uint32(from))
	})
}

// A proxy copies with io.Copy, which uses splice if possible, between two accelerated connections.
func (p guarded) goCopy(t *testing.T) {
	back := serveGo(t, func(c net.Conn) error {
		buffer := make([]byte, 64<<10)
		for {
			n, err := c.Read(buffer)
			if _, writeErr := c.Write(buffer[:n]); err != nil || writeErr != nil {
				return errors.Join(err, writeErr)
			}
		}
	})
	copied := make(chan error, 2)
	front := serveGo(t, func(in net.Conn) error {
		out, err := net.Dial("tcp", back)
		if err != nil {
			return err
		}
		defer out.Close()
		both := func(to, from net.Conn) {
			_, err := io.Copy(to.(*net.TCPConn), from.(*net.TCPConn))
			copied <- errors.Join(err, to.(*net.TCPConn).CloseWrite())
		}
		go both(out, in)
		both(in, out)
		return nil
	})
	count := p.counted()
	conn := dial(t, front)
	for range 150 {
		turn(t, conn, 100)
	}
	if connections, messages := count(); connections != 2 || messages < 4*100 {
		t.Errorf("%d connections are accelerated, with %d messages", connections, messages)
	}
	turn(t, conn, 1<<20)
	check(t, conn.(*net.TCPConn).CloseWrite())
	for range 2 {
		if err := <-copied; err != nil {
			t.Error("io.Copy:", err)
		}
	}
}

// serveGo runs a server in Go, and returns its address.
func serveGo(t testing.TB, each func(net.Conn) error) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_ = each(c) // at the end of the test
			}()
		}
	}()
	return l.Addr().String()
}

// turn sends bytes and receives their echo.
func turn(t testing.TB, c net.Conn, size int) {
	t.Helper()
	data, got := noise(size), make([]byte, size)
	sent := make(chan error, 1)
	go func() {
		_, err := c.Write(data)
		sent <- err
	}()
	_, err := io.ReadFull(c, got)
	check(t, errors.Join(err, <-sent))
	if !bytes.Equal(got, data) {
		t.Fatal(difference(got, data))
	}
}

// HAProxy uses splice for HTTP and TCP until it fails.
func (p guarded) haproxy(t *testing.T) {
	back := serveGo(t, func(c net.Conn) error {
		_, err := io.Copy(struct{ io.Writer }{c}, c) // without splice
		return err
	})
	front := freePort(t)
	p.daemon(t, front, "/usr/sbin/haproxy", "-db", "-f", file(t, "haproxy.cfg", `
defaults
	mode tcp
	timeout connect 30s
	timeout client 30s
	timeout server 30s
	option splice-auto
	option splice-request
	option splice-response
listen bytes
	bind `+front+`
	server echo `+back+`
`))
	conn := dial(t, front)
	turn(t, conn, 100)
	p.judge(safe, asked)
	count := p.counted()
	conn = dial(t, front)
	for range 100 {
		turn(t, conn, 100)
	}
	if connections, messages := count(); connections < 2 || messages < 4*60 {
		t.Errorf("%d connections are accelerated, with %d messages", connections, messages)
	}
	turn(t, conn, 1<<20)
}

// Python: an echo with blocking sockets, and os.splice.
func (p guarded) python(t *testing.T) {
	at := freePort(t)
	p.daemon(t, at, "/usr/bin/python3", "-Ic", `
import os, socket, sys
host, port = sys.argv[1].split(":")
server = socket.create_server((host, int(port)))
while True:
	with server.accept()[0] as c:
		read, write = os.pipe()
		while data := c.recv(1 << 16):
			c.sendall(data)
			if data == b"splice":
				c.recv(1, socket.MSG_PEEK)
				try:
					os.splice(c.fileno(), write, 1)
				except OSError as e:
					c.sendall(b"%d" % e.errno)
`, at)
	conn := dial(t, at)
	turn(t, conn, 100)
	conn.Close() // it serves one at a time
	p.judge(allowed, asked)
	count := p.counted()
	conn = dial(t, at)
	for range 100 {
		turn(t, conn, 100)
	}
	if connections, messages := count(); connections != 1 || messages < 2*60 {
		t.Errorf("%d connections are accelerated, with %d messages", connections, messages)
	}
	for _, c := range []struct{ say, hear string }{{"splice", "splice"}, {"next", "22next"}} {
		if _, err := io.WriteString(conn, c.say); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len(c.hear))
		if _, err := io.ReadFull(conn, got); err != nil || string(got) != c.hear {
			t.Fatalf("%q, %v, want %q", got, err, c.hear)
		}
	}
}

// daemon starts a server in this cgroup, and waits until it listens.
func (p *plane) daemon(t testing.TB, at, name string, args ...string) {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skip(err)
	}
	cmd := exec.Command(path, args...)
	cmd.Stderr = os.Stderr
	check(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	wait.Until(t, name+" listens", func() bool {
		c, err := net.Dial("tcp", at)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
}

func freePort(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	defer l.Close()
	return l.Addr().String()
}

func file(t testing.TB, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	check(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func dial(t testing.TB, to string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", to)
	check(t, err)
	t.Cleanup(func() { c.Close() })
	check(t, c.SetDeadline(time.Now().Add(patience)))
	return c
}

// Programs that use splice are accelerated while the data plane reports a guard.
func TestGuardedPrograms(t *testing.T) {
	c := governed(t, "")
	haproxy, node := fileKey{Inode: 1}, fileKey{Inode: 2}
	c.asks(haproxy, "/usr/sbin/haproxy")
	c.asks(node, "/usr/bin/node")
	for _, guarded := range []uint32{0, 1, 0, 2} { // 2: the agent asks, and has no answer
		c.put(mapGuarded, uint32(0), guarded)
		c.use("") // the agent has restarted
		want := uint32(unsafe)
		if guarded == 1 {
			want = safe
		}
		if got := c.verdict(haproxy); got != want || c.verdict(node) != safe {
			t.Errorf("guarded: %d, verdicts %d, %d", guarded, got, c.verdict(node))
		}
		said := strings.Contains(c.condition("Accelerating").Message, "splice(2) is guarded")
		if want := guarded == 1; said != want || c.a.guarded() != want {
			t.Errorf("guarded: %d, %v, %+v", guarded, c.a.guarded(), c.condition("Accelerating"))
		}
	}
}

// The guard's link is pinned with the programs: it survives the agent, and is removed with the module.
func TestGuardIsPinned(t *testing.T) {
	sdktest.NeedRoot(t)
	root := pintest.New(t)
	open := func(without bool) *dataplane.Dataplane {
		d, err := dataplane.Open(dataplane.Options{Root: root, NoGuard: without})
		check(t, err)
		check(t, d.SetGuards())
		return d
	}
	d := open(false)
	m := module(t)
	m.Sockets = true
	dir := cgrouptest.New(t, "", "kerb-accelerator")
	found, err := cgroup.Find(dir)
	check(t, err)
	spec := chain.Spec{Side: chain.OnSockets, Direction: chain.Both, Members: []chain.Member{{Name: m.Name, ID: m.ID}}}
	point := chain.Point{Side: chain.OnSockets, Cgroup: found.ID, Entry: chain.All, Module: m.Name}
	b := d.Bind(map[string]dataplane.Module{m.Name: m})
	check(t, b.CreateMapSet(m.Name, m.ID, m.Values, ""))
	b.Close()
	check(t, d.CreateChain(spec, map[string]dataplane.Module{m.Name: m}))
	check(t, d.Attach(point, spec))
	maps, err := d.Maps(m.Name, m.ID)
	check(t, err)
	defer func() {
		for _, one := range maps {
			one.Close()
		}
	}()
	isGuarded := func() bool {
		var is uint32
		check(t, maps[mapGuarded].Lookup(uint32(0), &is))
		return is == 1
	}
	if !isGuarded() {
		for _, without := range []bool{true, false} { // a killed agent had requested, or assumed it
			for stale := range uint32(3) {
				check(t, maps[mapGuarded].Put(uint32(0), stale))
				open(without)
				if isGuarded() {
					t.Errorf("guarded without a guard, after %d, without: %v", stale, without)
				}
			}
		}
		check(t, d.Purge())
		guardMissing(t, errors.New("the kernel does not call the guard"))
	}
	cgrouptest.Enter(t, dir)
	p := &plane{LoadedSockets: &dataplane.LoadedSockets{Maps: maps}, t: t}
	p.configure(usual)
	for word := range uint32(portWords) {
		p.put(mapPorts, word, ^uint64(0))
	}
	unix.Close(p.listen(t))
	p.judge(allowed, asked)
	c := p.connect(t)
	p.warm(c)
	for _, without := range []bool{false, true, false} {
		d = open(without) // the agent was killed
		if !isGuarded() {
			t.Fatalf("the guard has gone, without: %v", without)
		}
		c.splices(c.client, c.server, unix.EINVAL)
		c = p.connect(t)
		p.warm(c)
	}
	d = open(true)
	check(t, d.Detach(point))
	check(t, d.Purge())
	c.splices(c.client, c.server, nil)
	if _, err := os.Stat(root); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("purge left %s: %v", root, err)
	}
}
