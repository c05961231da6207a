// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
)

// testPrefix is the prefix of these tests' labs.
const testPrefix = "nlt"

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
}

// openLab opens a lab after removing leftovers of a killed run, and checks at the end that nothing remains.
func openLab(t *testing.T, opts Options) *Lab {
	t.Helper()
	needRoot(t)
	lab, err := Open(testPrefix, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := lab.Close(); err != nil {
			t.Error(err)
		}
		if err := checkFree(testPrefix); err != nil {
			t.Error(err)
		}
	})
	return lab
}

// checkFree reports interfaces and namespaces with a prefix.
func checkFree(prefix string) error {
	links, err := labLinks(prefix)
	if err != nil {
		return err
	}
	names, err := labNamespaces(prefix)
	if err != nil {
		return err
	}
	if len(links)+len(names) > 0 {
		return fmt.Errorf("prefix %s, %d interfaces, %d namespaces: %w", prefix, len(links), len(names), ErrExists)
	}
	return nil
}

func addHost(t *testing.T, lab *Lab, name string, opts HostOptions) *Host {
	t.Helper()
	h, err := lab.Host(name, opts)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// serveEcho answers one datagram on the host's address.
func serveEcho(t *testing.T, h *Host, addr netip.Addr) netip.AddrPort {
	t.Helper()
	var conn *net.UDPConn
	err := h.Do(func() (err error) {
		conn, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, 0)))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	go func() {
		buf := make([]byte, 2048)
		n, from, err := conn.ReadFromUDPAddrPort(buf)
		if err == nil {
			conn.WriteToUDPAddrPort(buf[:n], from)
		}
	}()
	return conn.LocalAddr().(*net.UDPAddr).AddrPort()
}

func echo(t *testing.T, from, to *Host, addr netip.Addr) {
	t.Helper()
	server := serveEcho(t, to, addr)
	var conn *net.UDPConn
	err := from.Do(func() (err error) {
		conn, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(server))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(30 * time.Second))
	if _, err := conn.Write([]byte("echo")); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 16)
	n, err := conn.Read(buf)
	if err != nil || string(buf[:n]) != "echo" {
		t.Fatalf("%s to %s: got %q, %v", from.Name(), server, buf[:n], err)
	}
}

func TestTrafficBetweenHosts(t *testing.T) {
	for _, tc := range []struct {
		name string
		opts Options
		host HostOptions
	}{
		{"bridged", Options{}, HostOptions{}},
		{"own node", Options{OwnNode: true, Gateway: true}, HostOptions{}},
		{"routed", Options{OwnNode: true}, HostOptions{Routed: true}},
		{"shaped", Options{OwnNode: true}, HostOptions{MTU: 9000, Queues: 2, TxChecksumOff: true}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			lab := openLab(t, tc.opts)
			a, b := addHost(t, lab, "a", tc.host), addHost(t, lab, "b", tc.host)
			echo(t, a, b, b.Addr4())
			echo(t, a, b, b.Addr6())
			echo(t, a, a, netip.MustParseAddr("127.0.0.1"))
		})
	}
}

func TestShapeReachesBothEnds(t *testing.T) {
	lab := openLab(t, Options{OwnNode: true})
	h := addHost(t, lab, "a", HostOptions{
		Addr4: netip.MustParsePrefix("10.99.7.7/24"), Addr6: netip.MustParsePrefix("fd99::7/64"), MTU: 3000, Queues: 2})
	inner := linkIn(t, h.Namespace, h.Interface())
	outer := linkIn(t, lab.Node(), h.Outer())
	for _, a := range []*netlink.LinkAttrs{inner, outer} {
		if a.MTU != 3000 || a.NumTxQueues != 2 || a.NumRxQueues != 2 {
			t.Errorf("%s: mtu %d, queues %d/%d", a.Name, a.MTU, a.NumTxQueues, a.NumRxQueues)
		}
	}
	if inner.HardwareAddr.String() != h.MAC().String() || outer.Index != h.OuterIndex() {
		t.Errorf("reported mac %s, index %d; are %s, %d", h.MAC(), h.OuterIndex(), inner.HardwareAddr, outer.Index)
	}
	if h.Addr4().String() != "10.99.7.7" || h.Addr6().String() != "fd99::7" {
		t.Errorf("addresses %s %s", h.Addr4(), h.Addr6())
	}
}

func linkIn(t *testing.T, n *Namespace, name string) *netlink.LinkAttrs {
	t.Helper()
	var link netlink.Link
	if err := n.Do(func() (err error) { link, err = netlink.LinkByName(name); return err }); err != nil {
		t.Fatal(err)
	}
	return link.Attrs()
}

func TestOwnNodeKeepsTheCallersNamespaceClean(t *testing.T) {
	lab := openLab(t, Options{OwnNode: true})
	h := addHost(t, lab, "a", HostOptions{})
	for _, name := range []string{lab.Bridge(), h.Outer()} {
		if _, err := netlink.LinkByName(name); !errors.As(err, new(netlink.LinkNotFoundError)) {
			t.Errorf("%s is in the caller's namespace (%v)", name, err)
		}
	}
}

func TestCommandRunsInsideAndDiesWithTheLab(t *testing.T) {
	lab := openLab(t, Options{OwnNode: true})
	h := addHost(t, lab, "a", HostOptions{})
	want, err := os.Stat(h.Path())
	if err != nil {
		t.Fatal(err)
	}
	out, err := h.Command(context.Background(), "stat", "-L", "-c", "%i", "/proc/self/ns/net").Output()
	if err != nil || strings.TrimSpace(string(out)) != inode(want) {
		t.Errorf("namespace of the command %q, want %s (%v)", out, inode(want), err)
	}
	cmd := lab.Node().Command(context.Background(), "sleep", "600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := lab.Close(); err != nil {
		t.Fatal(err)
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) {
		t.Errorf("after Close the command ended with %v", err)
	}
}

func inode(info os.FileInfo) string {
	return strconv.FormatUint(info.Sys().(*syscall.Stat_t).Ino, 10)
}

func TestRemoveAndReuseOfAName(t *testing.T) {
	lab := openLab(t, Options{})
	for range 2 {
		h := addHost(t, lab, "a", HostOptions{})
		if _, err := lab.Host("a", HostOptions{}); !errors.Is(err, ErrExists) {
			t.Errorf("second host of the name: %v", err)
		}
		if err := h.Remove(); err != nil {
			t.Fatal(err)
		}
		if err := h.Remove(); err != nil {
			t.Fatalf("again: %v", err)
		}
	}
}

func TestSweepAfterALostLab(t *testing.T) {
	for name, opts := range map[string]Options{"in the caller's namespace": {}, "in its own": {OwnNode: true}} {
		t.Run(name, func(t *testing.T) {
			lab := openLab(t, opts)
			addHost(t, lab, "a", HostOptions{})
			if _, err := Open(testPrefix, opts); !errors.Is(err, ErrExists) {
				t.Fatalf("second lab: %v", err)
			}
			half := filepath.Join(namespaceDir, testPrefix+"-half")
			if err := os.WriteFile(half, nil, 0o444); err != nil {
				t.Fatal(err)
			}
			if err := Sweep(testPrefix); err != nil {
				t.Fatal(err)
			}
			if err := checkFree(testPrefix); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestBadNames(t *testing.T) {
	for _, prefix := range []string{"", "a-b", "abc1", "ABC", "abcdefghij", "../x"} {
		if lab, err := New(prefix); err == nil {
			lab.Close()
			t.Errorf("prefix %q was accepted", prefix)
		}
	}
	lab := openLab(t, Options{OwnNode: true})
	for _, name := range []string{"", "node", "../x", "a/b"} {
		if _, err := lab.Host(name, HostOptions{}); err == nil {
			t.Errorf("host %q was accepted", name)
		}
	}
}

func TestNth(t *testing.T) {
	for _, tc := range []struct {
		network string
		n       int
		want    string
	}{
		{"10.99.0.0/16", 1, "10.99.0.1/16"},
		{"10.99.0.0/16", 511, "10.99.1.255/16"},
		{"fd99::/64", 0x101, "fd99::101/64"},
		{"10.99.0.0/24", 256, "invalid Prefix"},
		{"255.255.255.0/24", 256, "invalid Prefix"},
	} {
		if got := nth(netip.MustParsePrefix(tc.network), tc.n).String(); got != tc.want {
			t.Errorf("nth(%s, %d) = %s, want %s", tc.network, tc.n, got, tc.want)
		}
	}
}

func TestManyHosts(t *testing.T) {
	if testing.Short() {
		t.Skip("500 namespaces")
	}
	lab := openLab(t, Options{OwnNode: true})
	start := time.Now()
	hosts, err := lab.Hosts(500, HostOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("500 hosts in %v", time.Since(start))
	echo(t, hosts[0], hosts[499], hosts[499].Addr4())
	echo(t, hosts[499], hosts[250], hosts[250].Addr6())
	start = time.Now()
	if err := lab.Close(); err != nil {
		t.Fatal(err)
	}
	t.Logf("removed in %v", time.Since(start))
}

// The nodes of two labs reach each other by a wire.
func TestConnect(t *testing.T) {
	a := openLab(t, Options{OwnNode: true})
	b, err := Open(testPrefix+"b", Options{OwnNode: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	w, err := Connect(a, b, 1400)
	if err != nil {
		t.Fatal(err)
	}
	if got := linkIn(t, b.Node(), w.Interface(b)); got.MTU != 1400 || got.Index != w.Index(b) {
		t.Errorf("%+v", got)
	}
	for _, to := range []netip.Addr{w.Addr4(b), w.Addr6(b)} {
		server, client := &Host{Namespace: b.Node()}, &Host{Namespace: a.Node()}
		echo(t, client, server, to)
	}
	if _, err := Connect(&Lab{}, b, 1400); err == nil {
		t.Error("a lab in the namespace of the caller was connected")
	}
}

// Sweep keeps the lab of a running process, and removes that of a killed process.
func TestSweepDead(t *testing.T) {
	needRoot(t)
	lab, err := NewIn(testPrefix)
	if err != nil {
		t.Fatal(err)
	}
	if err := SweepDead(); err != nil {
		t.Fatal(err)
	}
	if names, err := labNamespaces(testPrefix); err != nil || len(names) != 1 {
		t.Fatalf("namespaces %v, %v", names, err)
	}
	lab.owner.Close() // as the kernel does for a killed process
	if err := SweepDead(); err != nil {
		t.Fatal(err)
	}
	if names, err := labNamespaces(testPrefix); err != nil || len(names) != 0 {
		t.Errorf("namespaces %v, %v", names, err)
	}
	if err := lab.Close(); !errors.Is(err, os.ErrClosed) {
		t.Error(err)
	}
}

// Open removes what a killed process left, and does not affect the lab of a running process.
func TestOpenAfterAKill(t *testing.T) {
	killed := openLab(t, Options{OwnNode: true})
	addHost(t, killed, "a", HostOptions{})
	if _, err := NewIn(testPrefix); !errors.Is(err, ErrExists) {
		t.Fatalf("the lab of a running process was replaced: %v", err)
	}
	killed.owner.Close()
	lab, err := NewIn(testPrefix)
	if err != nil {
		t.Fatal(err)
	}
	addHost(t, lab, "a", HostOptions{})
	killed.close.Do(func() {}) // nothing of it is left to close
	if err := lab.Close(); err != nil {
		t.Error(err)
	}
}

// Hosts keep their gateway while hosts are added: by default, the bridge would take the lowest hardware address of its
// ports.
func TestGatewayKeepsItsAddress(t *testing.T) {
	lab := openLab(t, Options{OwnNode: true, Gateway: true})
	mac := func() string {
		link, err := lab.nl.LinkByName(lab.Bridge())
		if err != nil {
			t.Fatal(err)
		}
		return link.Attrs().HardwareAddr.String()
	}
	before := mac()
	for i := range 8 {
		if _, err := lab.Host(fmt.Sprint("h", i), HostOptions{}); err != nil {
			t.Fatal(err)
		}
		if is := mac(); is != before {
			t.Fatalf("it is %s with %d hosts, and was %s", is, i+1, before)
		}
	}
}
