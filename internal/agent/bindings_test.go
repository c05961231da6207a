// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/lab/wait"
	"github.com/kerb-edge/kerb/internal/resource"
)

// inNamespaceOf runs f in the network namespace of a process.
func inNamespaceOf(t *testing.T, pid int, f func() error) {
	t.Helper()
	runtime.LockOSThread()
	home, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	defer home.Close()
	there, err := netns.GetFromPid(pid)
	if err != nil {
		t.Fatal(err)
	}
	defer there.Close()
	if err := netns.Set(there); err != nil {
		t.Fatal(err)
	}
	err = f()
	if back := netns.Set(home); back != nil {
		t.Fatal(back) // and the thread stays locked
	}
	runtime.UnlockOSThread()
	if err != nil {
		t.Fatal(err)
	}
}

// tenant starts a shell script in a service's namespace. It returns when the script has printed a line. proceed
// writes a line to its standard input, for which it waits.
func tenant(t *testing.T, h *netlab.Host, script string) (cmd *exec.Cmd, proceed func()) {
	t.Helper()
	cmd = h.Command(t.Context(), "sh", "-c", script)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // holds the pipe: the garbage collector would close it, and the script would read its end
		_ = in.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	lines := bufio.NewReader(out)
	if _, err := lines.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	return cmd, func() {
		t.Helper()
		if _, err := io.WriteString(in, "\n"); err != nil {
			t.Fatal(err)
		}
		if _, err := lines.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
	}
}

// child is a process in a network namespace of its own that a tenant has made.
func child(t *testing.T, h *netlab.Host) int {
	t.Helper()
	cmd, _ := tenant(t, h, "exec unshare -n sh -c 'echo there; read x'")
	return cmd.Process.Pid
}

// moveInto moves a service's interface to another namespace, as the service's root can, and configures it there as it
// was.
func moveInto(t *testing.T, h *netlab.Host, pid int) {
	t.Helper()
	err := h.Do(func() error {
		l, err := netlink.LinkByName(h.Interface())
		if err != nil {
			return err
		}
		return netlink.LinkSetNsPid(l, pid)
	})
	if err != nil {
		t.Fatal(err)
	}
	inNamespaceOf(t, pid, func() error {
		l, err := netlink.LinkByName(h.Interface())
		if err != nil {
			return err
		}
		address, err := netlink.ParseAddr(netip.PrefixFrom(h.Addr4(), 16).String())
		if err != nil {
			return err
		}
		if err := netlink.AddrAdd(l, address); err != nil {
			return err
		}
		return netlink.LinkSetUp(l)
	})
}

// enforces checks with packets that the firewall stands between a namespace and the other service: datagrams that are
// sent there count as dropped, and none arrives.
func (n *node) enforces(t *testing.T, pid int) {
	t.Helper()
	var in *net.UDPConn
	err := n.db.Do(func() (err error) {
		in, err = net.ListenUDP("udp4", &net.UDPAddr{IP: n.db.Addr4().AsSlice()})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	var out net.Conn
	inNamespaceOf(t, pid, func() (err error) { out, err = net.Dial("udp4", in.LocalAddr().String()); return err })
	defer out.Close()
	before := n.dropped(t)
	for end := time.Now().Add(patience); ; {
		_, _ = out.Write([]byte("out"))
		_ = in.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
		if size, err := in.Read(make([]byte, 16)); err == nil {
			t.Fatalf("a datagram of %d bytes has passed the firewall", size)
		}
		if n.dropped(t) > before {
			return
		}
		if time.Now().After(end) {
			t.Fatal("datagrams neither arrive nor count as dropped")
		}
	}
}

// dropped is what the firewall has dropped for any reason: where the namespace has no address that is the service's,
// that is the question for the neighbour's.
func (n *node) dropped(t *testing.T) (packets uint64) {
	t.Helper()
	m, err := get(t.Context(), n, resource.Module, "fw")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range m.Status.Drops {
		packets += d.Packets
	}
	return packets
}

// denied applies a firewall that lets nothing through to a service that is registered by a namespace, a process or an
// interface.
func (n *node) denied(t *testing.T, spec v1.ServiceSpec) {
	t.Helper()
	web := serviceOf("web", n.web)
	web.Spec = spec
	fw := module("fw", "firewall", "app=web",
		map[string]any{"defaultPolicy": map[string]any{"ingress": "deny", "egress": "deny"}})
	fw.Spec.FailurePolicy = v1.FailClosed
	n.apply(t, []v1.Service{web}, fw)
}

// escaped waits until the agent has noticed that the service is no longer where it was registered.
func (n *node) escaped(t *testing.T) {
	t.Helper()
	stir(t)
	wait.Until(t, "the agent notices that the interface has left", func() bool {
		s, err := get(t.Context(), n, resource.Service, "web")
		return err == nil && s.Status.Conditions[0].Status == "False"
	})
}

// stir makes an event of a link, as each start of a service does.
func stir(t *testing.T) {
	t.Helper()
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "kagstir"}, PeerName: "kagstirp"}
	if err := netlink.LinkAdd(veth); err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkDel(veth); err != nil {
		t.Fatal(err)
	}
}

// keeps checks that the service's firewall is where it was, and that the operator sees a condition.
func (n *node) keeps(t *testing.T, pid int) {
	t.Helper()
	if got := n.chainsOn(t, n.web); len(got) != 2 {
		t.Errorf("the interface runs %v", got)
	}
	n.enforces(t, pid)
	s, err := get(t.Context(), n, resource.Service, "web")
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Status.Links) != 1 || s.Status.Links[0].Ifindex != n.web.OuterIndex() ||
		!strings.Contains(fmt.Sprint(s.Status.Conditions), "InterfaceMoved") {
		t.Errorf("the operator sees %+v", s.Status)
	}
}

func TestMovedInterfaceKeepsItsChain(t *testing.T) {
	n := newNode(t)
	n.denied(t, v1.ServiceSpec{Netns: n.web.Path()})
	pid := child(t, n.web)
	moveInto(t, n.web, pid)
	n.escaped(t)
	n.keeps(t, pid)
	n.apply(t, nil, module("later", testPackage(t, "pass"), "app=web", nil))
	if got := n.chainsOn(t, n.web)["tc-ingress"]; !strings.HasPrefix(got, "fw,later ") {
		t.Errorf("after another module was applied the interface runs %q", got)
	}
	n.stop()
	n.start(t)
	n.escaped(t)
	n.keeps(t, pid)
	n.remove(t, resource.Ref{Kind: v1.KindService, Name: "web"})
	if got := n.chainsOn(t, n.web); len(got) != 0 {
		t.Errorf("after the operator has deleted the service its interface runs %v", got)
	}
}

// An agent that starts knows what belonged to whom, though the interface was moved while none ran.
func TestMovedWithoutAgent(t *testing.T) {
	n := newNode(t)
	n.denied(t, v1.ServiceSpec{Netns: n.web.Path()})
	n.stop()
	pid := child(t, n.web)
	moveInto(t, n.web, pid)
	n.start(t)
	n.escaped(t)
	n.keeps(t, pid)
	if err := netlink.LinkDel(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: n.web.Outer(),
		Index: n.web.OuterIndex()}}); err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "a deleted interface is no longer the service's", func() bool {
		s, err := get(t.Context(), n, resource.Service, "web")
		return err == nil && len(s.Status.Links) == 0
	})
}

func TestEndedProcessKeepsItsChain(t *testing.T) {
	n := newNode(t)
	cmd, _ := tenant(t, n.web, "echo there; read x")
	n.denied(t, v1.ServiceSpec{PID: cmd.Process.Pid})
	staying, _ := tenant(t, n.web, "echo there; read x")
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	n.escaped(t)
	n.keeps(t, staying.Process.Pid)
}

func TestUnsharedProcessKeepsItsChain(t *testing.T) {
	n := newNode(t)
	cmd, leave := tenant(t, n.web, "echo there; read x; exec unshare -n sh -c 'echo left; read x'")
	n.denied(t, v1.ServiceSpec{PID: cmd.Process.Pid})
	staying, _ := tenant(t, n.web, "echo there; read x")
	leave()
	n.escaped(t)
	n.keeps(t, staying.Process.Pid)
}

// A tenant that hands its interface to another service does not get that service's chain instead of its own.
func TestInterfaceHandedToAnotherService(t *testing.T) {
	n := newNode(t)
	n.denied(t, v1.ServiceSpec{Netns: n.web.Path()})
	n.apply(t, []v1.Service{serviceOf("db", n.db)})
	holder, _ := tenant(t, n.db, "echo there; read x")
	err := n.web.Do(func() error {
		l, err := netlink.LinkByName(n.web.Interface())
		if err == nil {
			err = netlink.LinkSetName(l, "eth1")
		}
		if err != nil {
			return err
		}
		return netlink.LinkSetNsPid(l, holder.Process.Pid)
	})
	if err != nil {
		t.Fatal(err)
	}
	n.escaped(t)
	if got := n.chainsOn(t, n.web); len(got) != 2 {
		t.Errorf("the interface runs %v", got)
	}
}

// A bindings file that cannot be kept keeps no firewall from running.
func TestBindingsCannotBeKept(t *testing.T) {
	n := newNode(t)
	if err := os.Mkdir(n.cfg.Paths.Bindings(), 0o700); err != nil {
		t.Fatal(err)
	}
	n.denied(t, v1.ServiceSpec{Netns: n.web.Path()})
	pid := child(t, n.web)
	moveInto(t, n.web, pid)
	n.escaped(t)
	n.keeps(t, pid)
}
