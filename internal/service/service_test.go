// SPDX-License-Identifier: Apache-2.0

package service

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/lab/wait"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newLab is a node in a namespace of its own.
func newLab(t testing.TB) *netlab.Lab {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: network namespaces")
	}
	lab, err := netlab.NewIn("ksv")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := lab.Close(); err != nil {
			t.Error(err)
		}
	})
	return lab
}

func newHost(t testing.TB, lab *netlab.Lab, name string) *netlab.Host {
	t.Helper()
	h, err := lab.Host(name, netlab.HostOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func within(t testing.TB, ns *netlab.Namespace, f func() error) {
	t.Helper()
	if err := ns.Do(f); err != nil {
		t.Fatal(err)
	}
}

// resolveOn resolves as seen from a node.
func resolveOn(node *netlab.Namespace, spec v1alpha1.ServiceSpec) (state State, err error) {
	err = node.Do(func() error {
		state, err = resolveOne(spec)
		return err
	})
	return state, err
}

// wantOf is the state of a lab's host.
func wantOf(t testing.TB, lab *netlab.Lab, h *netlab.Host) State {
	t.Helper()
	var outer, inner netlink.Link
	var linkLocal []netip.Prefix
	within(t, lab.Node(), func() (err error) {
		outer, err = netlink.LinkByName(h.Outer())
		return err
	})
	within(t, h.Namespace, func() (err error) {
		if inner, err = netlink.LinkByName(h.Interface()); err != nil {
			return err
		}
		all, err := netlink.AddrList(inner, unix.AF_INET6)
		for _, a := range all {
			if ip, _ := netip.AddrFromSlice(a.IP); ip.IsLinkLocalUnicast() {
				linkLocal = append(linkLocal, netip.PrefixFrom(ip, 64))
			}
		}
		return err
	})
	addresses := []netip.Prefix{netip.PrefixFrom(h.Addr4(), 16), netip.PrefixFrom(h.Addr6(), 64)}
	return State{
		Links: []Link{{Name: h.Outer(), Ifindex: h.OuterIndex(), Kind: "veth", Type: 1, Peer: h.Interface(),
			MTU: outer.Attrs().MTU, MAC: outer.Attrs().HardwareAddr,
			PeerIndex: inner.Attrs().Index, PeerMAC: inner.Attrs().HardwareAddr, PeerMTU: inner.Attrs().MTU,
			PeerAddresses: addresses, PeerLinkLocal: linkLocal}},
		Addresses: addresses,
	}
}

func TestResolve(t *testing.T) {
	lab := newLab(t)
	h := newHost(t, lab, "web")
	newHost(t, lab, "other")
	cmd := h.Command(t.Context(), "sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	waitForNamespace(t, cmd.Process.Pid, h.Path())

	want := wantOf(t, lab, h)
	for name, spec := range map[string]v1alpha1.ServiceSpec{
		"netns":     {Netns: h.Path()},
		"pid":       {PID: cmd.Process.Pid},
		"interface": {Interface: h.Outer()},
	} {
		got, err := resolveOn(lab.Node(), spec)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(want, got, cmp.Comparer(samePrefix)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// A service in a namespace is found without a dump of all links of the node, of which there may be many.
func TestResolveAlone(t *testing.T) {
	lab := newLab(t)
	web, db := newHost(t, lab, "web"), newHost(t, lab, "db")
	for want, spec := range []v1alpha1.ServiceSpec{{Netns: web.Path()}, {Interface: db.Outer()}} {
		within(t, lab.Node(), func() error {
			s, err := openScanner()
			if err != nil {
				return err
			}
			defer s.close()
			found := map[string]State{}
			err = s.resolveAll(map[string]v1alpha1.ServiceSpec{"web": {Netns: web.Path()}, "it": spec}, found)
			if s.dumps != want || len(found["web"].Links) != 1 || len(found["it"].Links) != 1 {
				t.Errorf("%+v: %d dumps, want %d; %+v", spec, s.dumps, want, found)
			}
			if err != nil {
				return err
			}
			found, err = ResolveAlone(map[string]v1alpha1.ServiceSpec{"web": {Netns: web.Path()}, "it": spec,
				"missing": {Netns: "/run/netns/ksv-not-there"}})
			if len(found) != 3-want || len(found["web"].Links) != 1 || !errors.Is(found["missing"].Err, ErrNamespaceGone) {
				t.Errorf("%+v: without a dump: %+v", spec, found)
			}
			return err
		})
	}
}

func samePrefix(a, b netip.Prefix) bool { return a == b }

// waitForNamespace waits until nsenter has entered it.
func waitForNamespace(t *testing.T, pid int, path string) {
	t.Helper()
	want, err := nsKeyAt(path)
	if err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "the process has entered "+path, func() bool {
		got, err := nsKeyAt(filepath.Join("/proc", strconv.Itoa(pid), "ns/net"))
		return err == nil && got == want
	})
}

func TestResolveBridge(t *testing.T) {
	lab := newLab(t)
	got, err := resolveOn(lab.Node(), v1alpha1.ServiceSpec{Interface: lab.Bridge()})
	if err != nil || len(got.Links) != 1 || got.Links[0].Kind != "bridge" || got.Addresses != nil {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestResolveErrors(t *testing.T) {
	lab := newLab(t)
	plain := filepath.Join(t.TempDir(), "plain")
	if err := os.WriteFile(plain, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		spec v1alpha1.ServiceSpec
		want error
	}{
		{v1alpha1.ServiceSpec{}, ErrSpec},
		{v1alpha1.ServiceSpec{PID: -1}, ErrSpec},
		{v1alpha1.ServiceSpec{Netns: "/run/netns/x", Interface: "x"}, ErrSpec},
		{v1alpha1.ServiceSpec{Netns: "/run/netns/ksv-none"}, ErrNamespaceGone},
		{v1alpha1.ServiceSpec{Netns: plain + "/below"}, ErrNamespaceGone},
		{v1alpha1.ServiceSpec{Netns: "/proc/4194305/ns/net"}, ErrNamespaceGone},
		{v1alpha1.ServiceSpec{Netns: plain}, ErrNotNamespace},
		{v1alpha1.ServiceSpec{Netns: fifo}, ErrNotNamespace},
		{v1alpha1.ServiceSpec{Netns: "/proc/self/ns/uts"}, ErrNotNamespace},
		{v1alpha1.ServiceSpec{Netns: lab.Node().Path()}, ErrOwnNamespace},
		{v1alpha1.ServiceSpec{PID: 4194305}, ErrProcessGone}, // above the kernel's limit
		{v1alpha1.ServiceSpec{Interface: "ksv-none"}, ErrInterfaceGone},
	} {
		got, err := resolveOn(lab.Node(), c.spec)
		if !errors.Is(err, c.want) || len(got.Links) != 0 {
			t.Errorf("%+v: want %q, got %+v, %v", c.spec, c.want, got, err)
		}
	}
	if _, err := resolveOne(v1alpha1.ServiceSpec{PID: os.Getpid()}); !errors.Is(err, ErrOwnNamespace) {
		t.Errorf("own process: %v", err)
	}
}

// TestNoVethYet: a namespace without a way out is a service that waits.
func TestNoVethYet(t *testing.T) {
	lab := newLab(t)
	h := newHost(t, lab, "idle")
	within(t, h.Namespace, func() error { return linkDel(h.Interface()) })
	got, err := resolveOn(lab.Node(), v1alpha1.ServiceSpec{Netns: h.Path()})
	if err != nil || len(got.Links) != 0 {
		t.Errorf("got %+v, %v", got, err)
	}
}

func linkDel(name string) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	return netlink.LinkDel(l)
}

// TestCollidingIndexes gives links in several namespaces the same indexes, and
// the service a second veth that leads elsewhere, to an interface whose index
// is that of another service's link on the node.
func TestCollidingIndexes(t *testing.T) {
	lab := newLab(t)
	a, b, far := newHost(t, lab, "a"), newHost(t, lab, "b"), newHost(t, lab, "far")
	if ia, ib := innerIndex(t, a), innerIndex(t, b); ia != ib {
		t.Fatalf("the test wants equal indexes inside the services, got %d and %d", ia, ib)
	}
	within(t, far.Namespace, func() error { return addVeth("leak", b.OuterIndex(), a, "second") })
	for _, h := range []*netlab.Host{a, b} {
		got, err := resolveOn(lab.Node(), v1alpha1.ServiceSpec{Netns: h.Path()})
		if err != nil || len(got.Links) != 1 || got.Links[0].Ifindex != h.OuterIndex() || got.Links[0].Peer != "eth0" {
			t.Errorf("%s: got %+v, %v, want link %d only", h.Name(), got, err, h.OuterIndex())
		}
	}
}

// addVeth adds a veth to the current namespace, with an index of choice (0
// takes any), whose peer is in h.
func addVeth(name string, index int, h *netlab.Host, peer string) error {
	f, err := os.Open(h.Path())
	if err != nil {
		return err
	}
	defer f.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.Index = name, index
	veth := netlink.NewVeth(attrs)
	veth.PeerName, veth.PeerNamespace = peer, netlink.NsFd(int(f.Fd()))
	return netlink.LinkAdd(veth)
}

func innerIndex(t *testing.T, h *netlab.Host) (index int) {
	t.Helper()
	within(t, h.Namespace, func() error {
		l, err := netlink.LinkByName(h.Interface())
		if err == nil {
			index = l.Attrs().Index
		}
		return err
	})
	return index
}

// TestSeveralLinks: a service may have more than one way out.
func TestSeveralLinks(t *testing.T) {
	lab := newLab(t)
	h := newHost(t, lab, "multi")
	within(t, lab.Node(), func() error { return addVeth("ksvsecond", 0, h, "eth1") })
	got, err := resolveOn(lab.Node(), v1alpha1.ServiceSpec{Netns: h.Path()})
	if err != nil || len(got.Links) != 2 || got.Links[0].Peer != "eth0" || got.Links[1].Peer != "eth1" {
		t.Errorf("got %+v, %v", got, err)
	}
}

// resolveOne looks one service up.
func resolveOne(spec v1alpha1.ServiceSpec) (State, error) {
	states, err := ResolveAll(map[string]v1alpha1.ServiceSpec{"": spec})
	if err != nil {
		return State{}, err
	}
	return states[""], states[""].Err
}

// Services that are looked up at once, some of which are not there, are each what they are alone.
func TestResolveMany(t *testing.T) {
	lab := newLab(t)
	specs, want := map[string]v1alpha1.ServiceSpec{}, map[string]State{}
	for i := range lookups + 4 {
		h := newHost(t, lab, "h"+strconv.Itoa(i))
		specs[h.Name()], want[h.Name()] = netnsSpec(h), wantOf(t, lab, h)
	}
	specs["missing"] = v1alpha1.ServiceSpec{Netns: "/run/netns/ksv-not-there"}
	var got map[string]State
	within(t, lab.Node(), func() (err error) {
		got, err = ResolveAll(specs)
		return err
	})
	if err := got["missing"].Err; !errors.Is(err, ErrNamespaceGone) {
		t.Errorf("a namespace that is not there: %v", err)
	}
	delete(got, "missing")
	if diff := cmp.Diff(want, got, cmp.Comparer(samePrefix)); diff != "" {
		t.Error(diff)
	}
}
