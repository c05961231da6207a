// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/lab/wait"
)

// watch runs a watcher on the node until the test ends.
func watch(t testing.TB, node *netlab.Namespace) *Watcher {
	t.Helper()
	w := NewWatcher(slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- node.Do(func() error { return w.Run(ctx) }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return w
}

// becomes waits until the watcher has found a state of the service that is as it should be.
func becomes(t testing.TB, w *Watcher, name, what string, ok func(State) bool) {
	t.Helper()
	wait.Until(t, name+" "+what, func() bool {
		s, found := w.States()[name]
		return found && ok(s)
	}, func() any { return w.States() })
}

func hasLinks(t testing.TB, w *Watcher, name string, n int) {
	t.Helper()
	becomes(t, w, name, fmt.Sprintf("has %d links", n), func(s State) bool { return s.Err == nil && len(s.Links) == n })
}

func fails(t testing.TB, w *Watcher, name string, want error) {
	t.Helper()
	becomes(t, w, name, fmt.Sprintf("fails with %q", want), func(s State) bool {
		return errors.Is(s.Err, want) && len(s.Links) == 0
	})
}

func netnsSpec(h *netlab.Host) v1alpha1.ServiceSpec { return v1alpha1.ServiceSpec{Netns: h.Path()} }

// TestWatchComesGoesAndComesAgain follows one path through the life of three
// namespaces, which the watcher must not keep alive.
func TestWatchComesGoesAndComesAgain(t *testing.T) {
	lab := newLab(t)
	w := watch(t, lab.Node())
	w.Set(map[string]v1alpha1.ServiceSpec{"web": {Netns: "/run/netns/ksv-web"}})
	fails(t, w, "web", ErrNamespaceGone)
	for i := range 3 {
		ip(t, "netns", "add", "ksv-web")
		ip(t, "-n", "ksv-node", "link", "add", fmt.Sprintf("ksvw%d", i), "type", "veth", "peer", "name", "eth0",
			"netns", "ksv-web")
		hasLinks(t, w, "web", 1)
		if l := w.States()["web"].Links[0]; l.Name != fmt.Sprintf("ksvw%d", i) || l.Peer != "eth0" {
			t.Errorf("found %+v", l)
		}
		ip(t, "netns", "del", "ksv-web")
		fails(t, w, "web", ErrNamespaceGone)
		wait.Until(t, "the interface is gone", func() bool {
			_, there := w.HostInterfaces()[fmt.Sprintf("ksvw%d", i)]
			return !there
		})
	}
}

func ip(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		t.Fatalf("ip %v: %v: %s", args, err, out)
	}
}

func TestWatchProcessEnds(t *testing.T) {
	lab := newLab(t)
	h := newHost(t, lab, "proc")
	cmd := h.Command(t.Context(), "sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	waitForNamespace(t, cmd.Process.Pid, h.Path())
	w := watch(t, lab.Node())
	w.Set(map[string]v1alpha1.ServiceSpec{"proc": {PID: cmd.Process.Pid}})
	hasLinks(t, w, "proc", 1)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	fails(t, w, "proc", ErrProcessGone)
	w.Set(nil)
	wait.Until(t, "no service is watched", func() bool { return len(w.States()) == 0 })
}

func TestWatchInside(t *testing.T) {
	lab := newLab(t)
	h := newHost(t, lab, "in")
	w := watch(t, lab.Node())
	w.Set(map[string]v1alpha1.ServiceSpec{"in": netnsSpec(h)})
	hasLinks(t, w, "in", 1)
	extra := netip.MustParsePrefix("192.0.2.7/24")
	within(t, h.Namespace, func() error {
		l, err := netlink.LinkByName(h.Interface())
		if err != nil {
			return err
		}
		return errors.Join(addAddress(h.Interface(), extra), netlink.LinkSetDown(l), netlink.LinkSetName(l, "wan"))
	})
	becomes(t, w, "in", "has the new address and name", func(s State) bool {
		return slices.Contains(s.Addresses, extra) && s.Links[0].Peer == "wan"
	})
}

func addAddress(nic string, p netip.Prefix) error {
	l, err := netlink.LinkByName(nic)
	if err != nil {
		return err
	}
	addr, err := netlink.ParseAddr(p.String())
	return errors.Join(err, netlink.AddrAdd(l, addr))
}

func TestWatchHostInterfaces(t *testing.T) {
	lab := newLab(t)
	w := watch(t, lab.Node())
	var calls atomic.Int32
	w.OnChange(func() { calls.Add(1) })
	w.Set(map[string]v1alpha1.ServiceSpec{"nic": {Interface: "ksvnic"}})
	fails(t, w, "nic", ErrInterfaceGone)
	before := calls.Load()
	within(t, lab.Node(), func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MTU = "ksvnic", 1280
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "ksvnic2"})
	})
	wait.Until(t, "the interface is announced", func() bool {
		return w.HostInterfaces()["ksvnic"].MTU == 1280 && calls.Load() > before
	})
	hasLinks(t, w, "nic", 1)
	own := netip.MustParsePrefix("192.0.2.9/24")
	before = calls.Load()
	within(t, lab.Node(), func() error { return addAddress("ksvnic", own) })
	wait.Until(t, "the address is announced", func() bool {
		return slices.Contains(w.HostInterfaces()["ksvnic"].Addresses, own) && calls.Load() > before
	}, func() any { return w.HostInterfaces() })
	within(t, lab.Node(), func() error { return linkDel("ksvnic") })
	fails(t, w, "nic", ErrInterfaceGone)
}

// TestWatchChurn replaces services under the watcher and compares with a look
// at the kernel when it is over.
func TestWatchChurn(t *testing.T) {
	lab := newLab(t)
	w := watch(t, lab.Node())
	const slots = 8
	specs := make(map[string]v1alpha1.ServiceSpec)
	for i := range slots {
		specs[fmt.Sprintf("s%d", i)] = v1alpha1.ServiceSpec{Netns: fmt.Sprintf("/run/netns/ksv-s%d", i)}
	}
	w.Set(specs)
	hosts := make(map[string]*netlab.Host)
	for i := range 5 * slots {
		name := fmt.Sprintf("s%d", i%slots)
		if h := hosts[name]; h != nil {
			if err := h.Remove(); err != nil {
				t.Fatal(err)
			}
			delete(hosts, name)
		}
		if i%5 != 4 {
			hosts[name] = newHost(t, lab, name)
		}
	}
	for name := range specs {
		want := State{Err: ErrNamespaceGone}
		if h := hosts[name]; h != nil {
			want = wantOf(t, lab, h)
		}
		becomes(t, w, name, fmt.Sprintf("becomes %+v", want), func(got State) bool {
			return errors.Is(got.Err, want.Err) && reflect.DeepEqual(got.Links, want.Links) &&
				reflect.DeepEqual(got.Addresses, want.Addresses)
		})
	}
}

// TestLostEvents overruns the event socket: that must be noticed and must make
// everything known uncertain.
func TestLostEvents(t *testing.T) {
	lab := newLab(t)
	h := newHost(t, lab, "lost")
	within(t, lab.Node(), func() error {
		e, err := openEvents(&waker{fd: -1})
		if err != nil {
			return err
		}
		defer e.close()
		s, err := openScanner()
		if err != nil {
			return err
		}
		defer s.close()
		if err := s.refresh(); err != nil {
			return err
		}
		if _, err := s.resolve(netnsSpec(h)); err != nil || len(s.inside) != 1 {
			return fmt.Errorf("inside %v: %w", s.inside, err)
		}
		if err := unix.SetsockoptInt(e.netlink, unix.SOL_SOCKET, unix.SO_RCVBUF, 1); err != nil {
			return err
		}
		l, err := netlink.LinkByName(lab.Bridge())
		for i := range 50 {
			err = errors.Join(err, netlink.LinkSetMTU(l, 1300+i))
		}
		if err != nil {
			return err
		}
		n, err := e.wait(30 * time.Second)
		if !n.lost || !s.affected(n) || len(s.inside) != 0 {
			t.Errorf("lost events were not noticed: %+v, inside %v", n, s.inside)
		}
		return err
	})
}

// Services that are as before cost a scan three requests, for the links and the addresses of the node. Once in ten
// minutes, or each time where events of other namespaces do not come, it asks for all again.
func TestScansAskForWhatChanged(t *testing.T) {
	lab := newLab(t)
	specs := map[string]v1alpha1.ServiceSpec{}
	for _, name := range []string{"a", "b", "c"} {
		specs[name] = netnsSpec(newHost(t, lab, name))
	}
	within(t, lab.Node(), func() error {
		s, err := openScanner()
		if err != nil {
			return err
		}
		defer s.close()
		e, err := openEvents(&waker{fd: -1})
		if err != nil {
			return err
		}
		defer e.close()
		w := NewWatcher(slog.New(slog.DiscardHandler))
		w.Set(specs)
		scan := func() uint32 {
			before := s.conn.seq
			if err := w.rescan(s, e); err != nil {
				t.Error(err)
			}
			for name := range specs {
				if state := w.States()[name]; state.Err != nil || len(state.Links) != 1 || len(state.Addresses) == 0 {
					t.Errorf("%s is %+v", name, state)
				}
			}
			return s.conn.seq - before
		}
		all := uint32(3 + 4*len(specs)) // for each its id, links, and addresses of both families
		first, known := scan(), scan()
		s.invalidate()
		if again := scan(); first < all || known != 3 || again < all {
			t.Errorf("scans ask %d, %d and %d times, want %d, 3 and %d", first, known, again, all, all)
		}
		return nil
	})
	for events, want := range map[bool]int{true: 2, false: 2 * fullEvery} {
		s, full := &scanner{}, 0
		for range 2 * fullEvery {
			if s.isFull(events) {
				full++
			}
		}
		if full != want {
			t.Errorf("with events %v: %d scans of %d ask for all", events, full, 2*fullEvery)
		}
	}
}

// A path that leads to another namespace silently is followed by the next scan.
func TestScanFollowsPath(t *testing.T) {
	lab := newLab(t)
	first, second := newHost(t, lab, "one"), newHost(t, lab, "two")
	path := filepath.Join(t.TempDir(), "ns")
	within(t, lab.Node(), func() error {
		s, err := openScanner()
		if err != nil {
			return err
		}
		defer s.close()
		for _, h := range []*netlab.Host{first, second, first} {
			_ = os.Remove(path)
			if err := os.Symlink(h.Path(), path); err != nil {
				return err
			}
			for range 2 {
				if err := s.refresh(); err != nil {
					return err
				}
				state, err := s.resolve(v1alpha1.ServiceSpec{Netns: path})
				if err != nil || !reflect.DeepEqual(state.Links, wantOf(t, lab, h).Links) {
					t.Errorf("%s: %+v, %v", h.Name(), state, err)
				}
			}
		}
		return nil
	})
}

func TestForeignEventsOfStrangersAreIgnored(t *testing.T) {
	s := &scanner{inside: map[int32]inside{3: {}}}
	if s.affected(news{peers: map[int32]bool{4: true}}) {
		t.Error("an event of a namespace without services asks for a rescan")
	}
	if !s.affected(news{peers: map[int32]bool{3: true}}) || len(s.inside) != 0 {
		t.Error("an event of a service's namespace is ignored")
	}
}

// TestMountsOfStrangersAreIgnored: a mount asks for a rescan only if it is at a
// service's path, and one of a namespace without links must be seen by that.
func TestMountsOfStrangersAreIgnored(t *testing.T) {
	lab := newLab(t)
	path := filepath.Join(t.TempDir(), "ns")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	w := watch(t, lab.Node())
	w.Set(map[string]v1alpha1.ServiceSpec{"s": {Netns: path}})
	fails(t, w, "s", ErrNotNamespace)
	h := newHost(t, lab, "quiet")
	within(t, h.Namespace, func() error { return linkDel(h.Interface()) })
	time.Sleep(2 * patience) // the events of all this are over
	if err := unix.Mount(h.Path(), path, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Unmount(path, unix.MNT_DETACH) }()
	hasLinks(t, w, "s", 0)

	s := &scanner{paths: map[string]nsKey{"/": {}}}
	s.paths["/"], _ = nsKeyAt("/")
	if s.affected(news{mount: true}) || s.moved() {
		t.Error("a mount elsewhere asks for a rescan")
	}
}

func TestDebounce(t *testing.T) {
	start := time.Unix(0, 0)
	d := newDebounce(start)
	if !d.due(start) {
		t.Error("the first scan is not due at once")
	}
	d.done(start)
	if d.due(start.Add(period - 1)) {
		t.Error("an idle watcher scans early")
	}
	d.event(start)
	if d.due(start.Add(quietTime-1)) || !d.due(start.Add(quietTime)) {
		t.Errorf("after one event the scan is due at %v", d.next)
	}
	for at := start; at.Before(start.Add(time.Second)); at = at.Add(quietTime / 2) {
		d.event(at)
	}
	if !d.due(start.Add(patience)) {
		t.Errorf("under constant events the scan is put off to %v", d.next)
	}
}

// TestNoLeaks: file descriptors and threads' namespaces are as before.
func TestNoLeaks(t *testing.T) {
	lab := newLab(t)
	h := newHost(t, lab, "leak")
	before := openFiles(t)
	for range 3 {
		w := NewWatcher(slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		w.OnChange(cancel)
		w.Set(map[string]v1alpha1.ServiceSpec{"a": netnsSpec(h), "b": {PID: os.Getpid()}, "c": {Netns: "/proc/self/ns/uts"}})
		within(t, lab.Node(), func() error { return w.Run(ctx) })
		if len(w.States()) != 3 {
			t.Fatalf("scanned %v", w.States())
		}
		if _, err := resolveOn(lab.Node(), netnsSpec(h)); err != nil {
			t.Fatal(err)
		}
	}
	if after := openFiles(t); after != before {
		t.Errorf("%d open files before, %d after", before, after)
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// BenchmarkRescan500 is one rescan of 500 services: nothing changed, and with
// everything inside them to be asked again.
func BenchmarkRescan500(b *testing.B) {
	lab := newLab(b)
	hosts, err := lab.Hosts(500, netlab.HostOptions{})
	if err != nil {
		b.Fatal(err)
	}
	specs := make(map[string]v1alpha1.ServiceSpec)
	for _, h := range hosts {
		specs[h.Name()] = netnsSpec(h)
	}
	for name, forget := range map[string]bool{"known": false, "full": true} {
		b.Run(name, func(b *testing.B) {
			within(b, lab.Node(), func() error { return rescans(b, specs, forget) })
		})
	}
}

func rescans(b *testing.B, specs map[string]v1alpha1.ServiceSpec, forget bool) error {
	s, err := openScanner()
	if err != nil {
		return err
	}
	defer s.close()
	e, err := openEvents(&waker{fd: -1})
	if err != nil {
		return err
	}
	defer e.close()
	w := NewWatcher(slog.New(slog.DiscardHandler))
	w.Set(specs)
	err = w.rescan(s, e)
	for b.Loop() {
		if forget {
			clear(s.inside)
		}
		err = errors.Join(err, w.rescan(s, e))
	}
	return err
}
