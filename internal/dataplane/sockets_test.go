// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"

	"github.com/kerb-edge/kerb/internal/cgroup"
	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/lab/cgrouptest"
	"github.com/kerb-edge/kerb/internal/lab/pintest"
	"github.com/kerb-edge/kerb/sdk"
)

// socketsModule is testdata/sockets, which redirects every byte between sockets of its cgroups.
func socketsModule(t testing.TB, name string, constants map[string]any) Module {
	m := testModule(t, "sockets", name, constants)
	m.Sockets = true
	return m
}

// redirected is a counter of testdata/sockets.
func redirected(t testing.TB, maps sdk.Maps) uint64 {
	t.Helper()
	var n uint64
	if err := maps["counts"].Lookup(uint32(1), &n); err != nil {
		t.Fatal(err)
	}
	return n
}

// pair is a connection with both ends in this process.
type pair struct{ client, server *net.TCPConn }

func connect(t testing.TB) pair {
	t.Helper()
	return connectTo(t, "127.0.0.1", "127.0.0.1")
}

// connectTo connects to an address of this host, at which a server listens that may be for others, too.
func connectTo(t testing.TB, listen, to string) pair {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(listen, "0"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client, err := net.Dial("tcp", net.JoinHostPort(to, strconv.Itoa(l.Addr().(*net.TCPAddr).Port)))
	if err != nil {
		t.Fatal(err)
	}
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close(); server.Close() })
	return pair{client.(*net.TCPConn), server.(*net.TCPConn)}
}

func (p pair) send(t testing.TB, text string) {
	t.Helper()
	if _, err := io.WriteString(p.client, text); err != nil {
		t.Fatal(err)
	}
}

func (p pair) expect(t testing.TB, text string) {
	t.Helper()
	got := make([]byte, len(text))
	_ = p.server.SetReadDeadline(time.Now().Add(30 * time.Second))
	if _, err := io.ReadFull(p.server, got); err != nil || string(got) != text {
		t.Fatalf("read %q, %v, want %q", got, err, text)
	}
}

// needSockets skips on kernels that testdata/sockets does not run on (before Linux 5.15).
func needSockets(t *testing.T) {
	t.Helper()
	if err := features.HaveProgramHelper(ebpf.SockOps, asm.FnGetNetnsCookie); errors.Is(err, ebpf.ErrNotSupported) {
		t.Skip(err)
	}
}

// loadSocketsAlone loads the module of testdata/sockets, and puts the test into a cgroup of its own, to which it can be
// attached.
func loadSocketsAlone(t *testing.T) (l *LoadedSockets, dir string) {
	t.Helper()
	needSockets(t)
	dir = cgrouptest.New(t, "", "kdp")
	cgrouptest.Enter(t, dir)
	l, err := LoadSockets(socketsModule(t, "sockets", nil))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return l, dir
}

func TestSocketsLoadedAlone(t *testing.T) {
	l, dir := loadSocketsAlone(t)
	if err := l.Attach(dir, chain.All); err != nil {
		t.Fatal(err)
	}
	p := connect(t)
	p.send(t, "hello")
	p.expect(t, "hello")
	if n := redirected(t, l.Maps); n != 1 {
		t.Errorf("%d messages were redirected, want 1", n)
	}
	p.send(t, "unread")
	if left, err := l.Drain(); err != nil || left != 1 {
		t.Errorf("left %d, %v, want the socket that has bytes to read", left, err)
	}
	p.expect(t, "unread")
	if left, err := l.Drain(); err != nil || left != 0 {
		t.Errorf("left %d, %v, want none", left, err)
	}
}

// socketsWorld is a data plane with a module on a cgroup that this process is in.
type socketsWorld struct {
	*Dataplane
	root, dir string
	point     chain.Point
}

func newSocketsWorld(t *testing.T) *socketsWorld {
	t.Helper()
	needSockets(t)
	w := &socketsWorld{root: pintest.New(t), dir: cgrouptest.New(t, "", "kdp")}
	cgrouptest.Enter(t, w.dir)
	found, err := cgroup.Find(w.dir)
	if err != nil {
		t.Fatal(err)
	}
	w.point = chain.Point{Side: chain.OnSockets, Cgroup: found.ID, Entry: chain.All, Module: "sockets"}
	w.reopen(t)
	t.Cleanup(func() {
		if err := w.Purge(); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(w.root); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("purge left %s: %v", w.root, err)
		}
	})
	return w
}

// reopen is what a new agent does.
func (w *socketsWorld) reopen(t *testing.T) {
	t.Helper()
	var err error
	if w.Dataplane, err = Open(Options{Root: w.root}); err != nil {
		t.Fatal(err)
	}
}

func (w *socketsWorld) deploy(t *testing.T, m Module, from string) chain.Spec {
	t.Helper()
	spec := chain.Spec{Side: chain.OnSockets, Direction: chain.Both, Members: []chain.Member{{Name: m.Name, ID: m.ID}}}
	for _, err := range []error{create(w.Dataplane, m, from), w.CreateChain(spec, map[string]Module{m.Name: m}),
		w.Attach(w.point, spec)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return spec
}

func (w *socketsWorld) maps(t *testing.T, m Module) sdk.Maps {
	t.Helper()
	maps, err := w.Maps(m.Name, m.ID)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, one := range maps {
			one.Close()
		}
	})
	return maps
}

func (w *socketsWorld) observe(t *testing.T) chain.State {
	t.Helper()
	s, err := w.Observe()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestSocketsArePinned(t *testing.T) {
	w := newSocketsWorld(t)
	m := socketsModule(t, "sockets", nil)
	spec := w.deploy(t, m, "")
	maps := w.maps(t, m)
	p := connect(t)
	w.reopen(t) // the agent was killed
	p.send(t, "hello")
	p.expect(t, "hello")
	if n := redirected(t, maps); n != 1 {
		t.Errorf("%d messages were redirected, want 1", n)
	}
	s := w.observe(t)
	if len(s.Chains) != 1 || len(s.Points) != 1 || s.Chains[0].ID != spec.ID() || s.Points[0].Point != w.point ||
		s.Points[0].Program != s.Chains[0].Entries[chain.All] || s.Points[0].Mode != ModeCgroup {
		t.Fatalf("observed %+v", s)
	}
	if err := w.Detach(w.point); err != nil {
		t.Fatal(err)
	}
	late := connect(t)
	late.send(t, "late")
	late.expect(t, "late")
	if n := redirected(t, maps); n != 1 {
		t.Errorf("a connection made after the module was taken off was redirected")
	}
}

// A module that leaves waits for bytes that were redirected and not read, and then no byte is lost.
func TestSocketsAreDrained(t *testing.T) {
	w := newSocketsWorld(t)
	m := socketsModule(t, "sockets", nil)
	w.deploy(t, m, "")
	maps := w.maps(t, m)
	for range 50 { // more sockets than drain finds at once
		connect(t)
	}
	idle, busy := connect(t), connect(t)
	busy.send(t, "before")
	if err := w.Detach(w.point); err != nil {
		t.Fatal(err)
	}
	pinned := w.observe(t).Chains[0]
	var draining *chain.DrainingError
	if err := w.RemoveChain(pinned); !errors.As(err, &draining) || draining.Left != 1 {
		t.Fatalf("remove with one socket that holds bytes: %v", err)
	}
	busy.send(t, "after")
	idle.send(t, "plain")
	idle.expect(t, "plain")
	if n := redirected(t, maps); n != 1 {
		t.Errorf("%d messages were redirected, one of them after the module was asked to leave", n)
	}
	w.reopen(t) // the agent was killed meanwhile
	if err := w.RemoveChain(pinned); !errors.As(err, &draining) {
		t.Fatalf("remove after a restart: %v", err)
	}
	busy.expect(t, "beforeafter")
	if err := w.RemoveChain(pinned); err != nil {
		t.Fatal(err)
	}
	if n := count(maps["peers"]); n != 0 {
		t.Errorf("%d sockets are left in the map", n)
	}
	busy.send(t, "plain")
	busy.expect(t, "plain")
}

// Connections that do not read in time keep what the kernel has of the module, and their bytes.
func TestSocketsStayWithWhoDoesNotRead(t *testing.T) {
	before := drainTimeout
	drainTimeout = 200 * time.Millisecond
	defer func() { drainTimeout = before }()
	w := newSocketsWorld(t)
	m := socketsModule(t, "sockets", nil)
	w.deploy(t, m, "")
	p := connect(t)
	p.send(t, "redirected")
	if err := w.Detach(w.point); err != nil {
		t.Fatal(err)
	}
	chain := w.observe(t).Chains[0]
	for end := time.Now().Add(time.Minute); w.RemoveChain(chain) != nil; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the chain cannot be removed")
		}
	}
	if err := w.RemoveMapSet(m.Name, m.ID); err != nil {
		t.Fatal(err)
	}
	p.send(t, "plain")
	p.expect(t, "redirectedplain")
}

// A module that comes back before it has gone is as it was.
func TestSocketsComeBack(t *testing.T) {
	w := newSocketsWorld(t)
	m := socketsModule(t, "sockets", nil)
	w.deploy(t, m, "")
	maps := w.maps(t, m)
	p := connect(t)
	p.send(t, "hello")
	if err := w.Detach(w.point); err != nil {
		t.Fatal(err)
	}
	var draining *chain.DrainingError
	if err := w.RemoveChain(w.observe(t).Chains[0]); !errors.As(err, &draining) {
		t.Fatal(err)
	}
	w.deploy(t, m, "")
	next := connect(t)
	next.send(t, "hello")
	next.expect(t, "hello")
	if n := redirected(t, maps); n != 2 {
		t.Errorf("%d messages were redirected, want 2", n)
	}
	p.expect(t, "hello")
}

// Another config keeps the connections; another size of the table, or of what is known of its sockets, leaves them to
// the old one, which goes when they have.
func TestSocketsAreReplaced(t *testing.T) {
	for _, table := range []string{"peers", "enrolled"} {
		t.Run(table, func(t *testing.T) { replaceSockets(t, table) })
	}
}

func replaceSockets(t *testing.T, table string) {
	w := newSocketsWorld(t)
	first := socketsModule(t, "sockets", nil)
	w.deploy(t, first, "")
	p := connect(t)
	second := socketsModule(t, "sockets", map[string]any{"only_port": 0xffff})
	w.deploy(t, second, first.ID)
	maps := w.maps(t, second)
	if n := count(maps["peers"]); n != 2 {
		t.Errorf("the new version has %d sockets, want both", n)
	}
	w.removeOthers(t, second)
	p.send(t, "hello")
	p.expect(t, "hello")
	if n := redirected(t, maps); n != 1 {
		t.Errorf("a connection of the old version is not redirected any more")
	}
	third := socketsModule(t, "sockets", map[string]any{"only_port": 0})
	third.ID, third.Settings.MaxEntries = chain.ShortHash([]byte("third")), map[string]uint32{table: 64}
	w.deploy(t, third, second.ID)
	if n := count(w.maps(t, third)["peers"]); n != 0 {
		t.Errorf("a new table has %d sockets", n)
	}
	w.removeOthers(t, third)
	if n := count(maps["peers"]); n != 0 {
		t.Errorf("the old table has still %d sockets", n)
	}
	p.send(t, "plain")
	p.expect(t, "plain")
}

func (w *socketsWorld) removeOthers(t *testing.T, m Module) {
	t.Helper()
	for _, c := range w.observe(t).Chains {
		if c.Spec.Members[0].ID == m.ID {
			continue
		}
		if err := w.RemoveChain(c); err != nil {
			t.Fatal(err)
		}
		if err := w.RemoveMapSet(m.Name, c.Spec.Members[0].ID); err != nil {
			t.Fatal(err)
		}
	}
}

func TestSocketsOfVanishedCgroup(t *testing.T) {
	w := newSocketsWorld(t)
	below := cgrouptest.New(t, w.dir, "below")
	found, err := cgroup.Find(below)
	if err != nil {
		t.Fatal(err)
	}
	w.point.Cgroup = found.ID
	m := socketsModule(t, "sockets", nil)
	spec := w.deploy(t, m, "")
	if err := os.Remove(below); err != nil {
		t.Fatal(err)
	}
	// the kernel cleans up later
	for begin := time.Now(); w.observe(t).Points[0].Program != 0; time.Sleep(10 * time.Millisecond) {
		if time.Since(begin) > 30*time.Second {
			t.Fatal("a point whose cgroup has gone still has a program")
		}
	}
	if err := w.Attach(w.point, spec); !errors.Is(err, chain.ErrGone) {
		t.Errorf("attach to a cgroup that has gone: %v", err)
	}
	if err := w.Detach(w.point); err != nil {
		t.Error(err)
	}
	if s := w.observe(t); len(s.Points) != 0 {
		t.Errorf("left after detach: %+v", s.Points)
	}
}

// Purge does all of it by itself, and unread bytes still arrive.
func TestSocketsArePurged(t *testing.T) {
	w := newSocketsWorld(t)
	m := socketsModule(t, "sockets", nil)
	w.deploy(t, m, "")
	p := connect(t)
	payload := bytes.Repeat([]byte("0123456789abcdef"), 1<<14)
	done := make(chan error, 1)
	go func() {
		_, err := p.client.Write(payload)
		done <- errors.Join(err, p.client.CloseWrite())
	}()
	if err := <-done; err != nil { // nothing is read meanwhile: all of it waits in the queue
		t.Fatal(err)
	}
	if n := redirected(t, w.maps(t, m)); n == 0 {
		t.Error("nothing was redirected")
	}
	read := make(chan []byte, 1)
	time.AfterFunc(300*time.Millisecond, func() {
		got, _ := io.ReadAll(p.server)
		read <- got
	})
	if err := w.Purge(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(w.root); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("purge left %s: %v", w.root, err)
	}
	if got := <-read; !bytes.Equal(got, payload) {
		t.Errorf("read %d of %d bytes, or others", len(got), len(payload))
	}
}
