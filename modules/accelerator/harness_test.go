// SPDX-License-Identifier: Apache-2.0

package accelerator

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/lab/cgrouptest"
	"github.com/kerb-edge/kerb/internal/lab/wait"
	"github.com/kerb-edge/kerb/internal/pkgs/pkgstest"
	"github.com/kerb-edge/kerb/sdk/sdktest"
)

// TestMain disables the preemption signals of Go's scheduler, on which a recv that waits on a socket in a map returns
// EAGAIN.
func TestMain(m *testing.M) {
	const quiet = "asyncpreemptoff=1"
	if settings := os.Getenv("GODEBUG"); !strings.Contains(settings, quiet) {
		os.Setenv("GODEBUG", strings.TrimPrefix(settings+","+quiet, ","))
		fmt.Fprintln(os.Stderr, "run the tests again:", unix.Exec("/proc/self/exe", os.Args, os.Environ()))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// plane is the data plane, attached to this process's cgroup.
type plane struct {
	*dataplane.LoadedSockets
	t      testing.TB
	config configEntry
	port   uint16 // of the last server
}

// usual are the thresholds of most tests.
var usual = configEntry{Mode: modeAdaptive, Warm: 1, PassMessages: 8, PassBytes: 1 << 20, LeaveMessages: 64,
	LeaveBytes: 8 << 20, Backlog: 256 << 10, Retry: 64}

func module(t testing.TB) dataplane.Module {
	p := pkgstest.Package(t)
	return dataplane.Module{
		Name: "accel", ID: "0123456789", ConfigMaps: p.Maps.Config,
		Spec: func(h chain.Hook) (*ebpf.CollectionSpec, error) {
			if h != chain.Sockets {
				return nil, nil
			}
			return p.Spec(string(h))
		},
	}
}

// load attaches the data plane without any verdict on programs, until the test ends.
func load(t testing.TB, config configEntry) *plane {
	t.Helper()
	sdktest.NeedRoot(t)
	l, err := dataplane.LoadSockets(module(t))
	sdktest.Explain(t, err)
	p := &plane{LoadedSockets: l, t: t}
	t.Cleanup(l.Close)
	p.configure(config)
	for word := range uint32(portWords) {
		p.put(mapPorts, word, ^uint64(0))
	}
	return p
}

// accelerate is load in a separate cgroup, with a verdict that this program is safe.
func accelerate(t testing.TB, config configEntry) *plane {
	t.Helper()
	p := load(t, config)
	p.enter(chain.All)
	unix.Close(p.listen(t))
	p.judge(allowed, asked)
	return p
}

func (p *plane) enter(entry chain.Entry) {
	p.t.Helper()
	dir := cgrouptest.New(p.t, "", "kerb-accelerator")
	if err := p.Attach(dir, entry); err != nil {
		p.t.Fatal(err)
	}
	cgrouptest.Enter(p.t, dir)
}

func (p *plane) configure(c configEntry) {
	p.t.Helper()
	p.config = c
	p.put(mapConfig, uint32(0), c)
}

func (p *plane) put(name string, key, value any) {
	p.t.Helper()
	if err := p.Maps[name].Put(key, value); err != nil {
		p.t.Fatalf("map %s: %v", name, err)
	}
}

// judge sends verdicts for the executables whose verdict is outdated.
func (p *plane) judge(verdict, old uint32) {
	p.t.Helper()
	for file, e := range entries[fileKey, executableEntry](p, mapExecutables) {
		if e.Verdict == old {
			p.put(mapExecutables, file, executableEntry{Verdict: verdict})
		}
	}
}

func entries[K comparable, V any](p *plane, name string) map[K]V {
	p.t.Helper()
	all := map[K]V{}
	var k K
	var v V
	it := p.Maps[name].Iterate()
	for it.Next(&k, &v) {
		all[k] = v
	}
	if err := it.Err(); err != nil {
		p.t.Fatalf("map %s: %v", name, err)
	}
	return all
}

// counts returns the counts over all pairs of services.
func (p *plane) counts() (sum countsEntry) {
	p.t.Helper()
	for _, c := range entries[routeKey, countsEntry](p, mapCounts) {
		sum.Offered += c.Offered
		sum.Paired += c.Paired
		sum.Accelerated += c.Accelerated
		sum.Left += c.Left
		sum.Messages += c.Messages
		sum.Bytes += c.Bytes
		for i := range c.Refused {
			sum.Refused[i] += c.Refused[i]
		}
	}
	return sum
}

func (p *plane) refused(reason string) uint64 {
	p.t.Helper()
	c := p.counts()
	for i, name := range reasons {
		if name == reason {
			return c.Refused[i]
		}
	}
	p.t.Fatalf("no reason %s", reason)
	return 0
}

// end returns the data plane's state of a socket.
func (p *plane) end(fd int) (e endEntry, known bool) {
	p.t.Helper()
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_COOKIE)
	if err != nil {
		p.t.Fatal(err)
	}
	err = p.Maps[mapEnds].Lookup(cookie, &e)
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		p.t.Fatal(err)
	}
	return e, err == nil
}

// enrolled counts the sockets in the map.
func (p *plane) enrolled() (n int) {
	var k, v uint64
	it := p.Maps["sockets"].Iterate()
	for it.Next(&k, &v) {
		n++
	}
	return n
}

// empty waits until the state of all connections is removed.
func (p *plane) empty(t testing.TB) {
	t.Helper()
	wait.Until(t, "no socket, end or offer is left", func() bool {
		return p.enrolled() == 0 && len(entries[uint64, endEntry](p, mapEnds)) == 0 &&
			len(entries[pairKey, offerEntry](p, "offers")) == 0
	}, func() any { return p.counts() })
}

// listen opens a server on a free port of 127.0.0.1.
func (p *plane) listen(t testing.TB, options ...option) int {
	t.Helper()
	return p.listenAt(t, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}, options...)
}

type option struct{ level, name, value int }

func (p *plane) listenAt(t testing.TB, addr unix.Sockaddr, options ...option) int {
	t.Helper()
	fd := socket(t, addr, options...)
	check(t, unix.Bind(fd, addr))
	check(t, unix.Listen(fd, 512))
	bound, err := unix.Getsockname(fd)
	check(t, err)
	switch a := bound.(type) {
	case *unix.SockaddrInet4:
		p.port = uint16(a.Port)
	case *unix.SockaddrInet6:
		p.port = uint16(a.Port)
	}
	return fd
}

func socket(t testing.TB, addr unix.Sockaddr, options ...option) int {
	t.Helper()
	family := unix.AF_INET
	if _, six := addr.(*unix.SockaddrInet6); six {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	check(t, err)
	for _, o := range options {
		check(t, unix.SetsockoptInt(fd, o.level, o.name, o.value))
	}
	return fd
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// conn is a connection with both ends in this process, on blocking descriptors. Calls that take longer than patience
// fail the test, to detect hangs.
type conn struct {
	t              testing.TB
	client, server int
}

const patience = 30 * time.Second

// connect returns a new connection to a new server.
func (p *plane) connect(t testing.TB, options ...option) *conn {
	t.Helper()
	l := p.listen(t)
	defer unix.Close(l)
	return p.connectTo(t, l, options...)
}

func (p *plane) connectTo(t testing.TB, listener int, options ...option) *conn {
	t.Helper()
	addr, err := unix.Getsockname(listener)
	check(t, err)
	client := socket(t, addr, options...)
	check(t, unix.Connect(client, addr))
	return accepted(t, client, listener)
}

func accepted(t testing.TB, client, listener int) *conn {
	t.Helper()
	server, _, err := unix.Accept(listener)
	check(t, err)
	c := &conn{t, client, server}
	for _, fd := range []int{client, server} {
		check(t, unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1))
	}
	t.Cleanup(c.close)
	return c
}

func (c *conn) close() {
	for _, fd := range []*int{&c.client, &c.server} {
		if *fd >= 0 {
			unix.Close(*fd)
		}
		*fd = -1
	}
}

// within runs a call that may block.
func (c *conn) within(what string, call func() error) {
	c.t.Helper()
	done := make(chan error, 1)
	go func() { done <- call() }()
	select {
	case err := <-done:
		if err != nil {
			c.t.Fatalf("%s: %v", what, err)
		}
	case <-time.After(patience):
		c.t.Fatalf("%s: hangs", what)
	}
}

func (c *conn) send(fd int, data []byte) {
	c.t.Helper()
	c.within("send", func() error { return writeAll(fd, data) })
}

func (c *conn) receive(fd, n int) []byte {
	c.t.Helper()
	data := make([]byte, n)
	c.within("receive", func() error { return readAll(fd, data) })
	return data
}

func writeAll(fd int, data []byte) error {
	for len(data) > 0 {
		n, err := unix.Write(fd, data)
		if err != nil {
			return err
		}
		data = data[n:]
	}
	return nil
}

func readAll(fd int, data []byte) error {
	for len(data) > 0 {
		n, err := unix.Read(fd, data)
		if err != nil {
			return err
		}
		if n == 0 {
			return errors.New("end of stream")
		}
		data = data[n:]
	}
	return nil
}

// turn sends a message from the client to the server and one back, and checks both.
func (c *conn) turn(size int) {
	c.t.Helper()
	for _, way := range [][2]int{{c.client, c.server}, {c.server, c.client}} {
		data := noise(size)
		c.send(way[0], data)
		if got := c.receive(way[1], size); !bytes.Equal(got, data) {
			c.t.Fatalf("%d bytes arrive changed: %s", size, difference(got, data))
		}
	}
}

// redirects returns the number of messages of an end that did not use TCP.
func (p *plane) redirects(fd int) uint64 {
	e, _ := p.end(fd)
	return e.Redirects
}

// warm exchanges messages until both ends redirect.
func (p *plane) warm(c *conn) {
	c.t.Helper()
	for range 4 { // the default requires one more than the thresholds usual
		c.turn(100)
		if p.redirects(c.client) >= 2 && p.redirects(c.server) >= 2 {
			return
		}
	}
	client, _ := p.end(c.client)
	server, _ := p.end(c.server)
	c.t.Fatalf("after 4 turns the client has redirected %d messages, the server %d\n%+v\n%+v\n%+v", client.Redirects,
		server.Redirects, client, server, p.counts())
}

// plain checks that three turns arrive, and that nothing is redirected.
func (p *plane) plain(c *conn) {
	c.t.Helper()
	before := p.redirects(c.client) + p.redirects(c.server)
	for range 3 {
		c.turn(100)
	}
	if n := p.redirects(c.client) + p.redirects(c.server) - before; n != 0 {
		c.t.Fatalf("%d messages were redirected", n)
	}
}

var (
	random   = rand.NewChaCha8([32]byte([]byte("accelerated sockets, every byte.")))
	randomMu sync.Mutex
)

func noise(n int) []byte {
	randomMu.Lock()
	defer randomMu.Unlock()
	b := make([]byte, n)
	random.Read(b)
	return b
}

func difference(got, want []byte) string {
	for i := range min(len(got), len(want)) {
		if got[i] != want[i] {
			return fmt.Sprintf("%d and %d bytes, first at %d", len(got), len(want), i)
		}
	}
	return fmt.Sprintf("%d instead of %d bytes", len(got), len(want))
}
