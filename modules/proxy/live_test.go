// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/lab/netlab"
)

const (
	servedPort, innerPort = 8080, 9090
	otherPort             = 8081 // served, but without a listening instance
)

// site is a node with a client and an instance of a service, and the proxy on both interfaces.
type site struct {
	*kernel
	lab            *netlab.Lab
	client, server *netlab.Host
	instance       uint32
	seen           sync.Map // addresses of clients that the server has seen
}

func openSite(t *testing.T, opts netlab.HostOptions, flags uint8) *site {
	t.Helper()
	return openSiteOn(t, loadProxy(t, nil), opts, flags)
}

func openSiteOn(t *testing.T, k *kernel, opts netlab.HostOptions, flags uint8) *site {
	t.Helper()
	if err := netlab.Sweep("kpxd"); err != nil {
		t.Fatal(err)
	}
	lab, err := netlab.Open("kpxd", netlab.Options{OwnNode: true, Gateway: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { lab.Close() })
	s := &site{kernel: k, lab: lab}
	for name, h := range map[string]**netlab.Host{"client": &s.client, "server": &s.server} {
		if *h, err = lab.Host(name, opts); err != nil {
			t.Fatal(err)
		}
		s.attach(*h, k.egress, netlink.HANDLE_MIN_INGRESS)
		s.attach(*h, k.ingress(), netlink.HANDLE_MIN_EGRESS)
		k.addLocal(uint32((*h).OuterIndex()), [6]byte((*h).MAC()), flags)
	}
	var slot uint32
	if err := k.maps[mapInterfaces].Lookup(uint32(s.server.OuterIndex()), &slot); err != nil {
		t.Fatal(err)
	}
	s.instance = k.addInstance(slot, s.server.Addr4().String(), s.server.Addr6().String())
	for _, vip := range []netip.Addr{virtual4, virtual6} {
		id := k.addVIP(vip.String(), policyTurns, vipPorts, s.instance)
		for _, proto := range []uint8{protoTCP, protoUDP} {
			k.addPort(id, proto, servedPort, innerPort)
			k.addPort(id, proto, otherPort, innerPort+1)
		}
	}
	return s
}

var virtual4, virtual6 = addr("10.30.0.2"), addr("fdff:2000::2")

// attach attaches a program to one side of a host's outer interface.
func (s *site) attach(h *netlab.Host, prog *ebpf.Program, parent uint32) {
	s.t.Helper()
	err := s.lab.Node().Do(func() error {
		attrs := netlink.QdiscAttrs{LinkIndex: h.OuterIndex(), Handle: netlink.MakeHandle(0xffff, 0),
			Parent: netlink.HANDLE_CLSACT}
		if err := netlink.QdiscReplace(&netlink.GenericQdisc{QdiscAttrs: attrs, QdiscType: "clsact"}); err != nil {
			return fmt.Errorf("clsact: %w", err)
		}
		return netlink.FilterReplace(&netlink.BpfFilter{
			FilterAttrs: netlink.FilterAttrs{LinkIndex: h.OuterIndex(), Parent: parent, Handle: 1, Protocol: unix.ETH_P_ALL,
				Priority: 1},
			Fd: prog.FD(), Name: "kerb_test", DirectAction: true,
		})
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

// completeChecksums disables checksum offload on the hosts' outer interfaces, which then complete partial checksums, so
// that the receiving stack verifies them.
func (s *site) completeChecksums() {
	s.t.Helper()
	err := s.lab.Node().Do(func() error {
		return errors.Join(netlab.SetTxChecksum(s.client.Outer(), false), netlab.SetTxChecksum(s.server.Outer(), false))
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

// Connections through virtual addresses between real stacks: directly into the namespace or through the interface's own
// chain, with checksums offloaded to the device, completed on the path, or complete from the start.
func TestLive(t *testing.T) {
	for _, c := range []struct {
		name     string
		opts     netlab.HostOptions
		flags    uint8
		complete bool
	}{
		{"peer", netlab.HostOptions{}, localPeer, false},
		{"redirect", netlab.HostOptions{}, 0, false},
		{"completed", netlab.HostOptions{}, 0, true},
		{"complete", netlab.HostOptions{TxChecksumOff: true}, 0, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := openSite(t, c.opts, c.flags)
			if c.complete {
				s.completeChecksums()
			}
			for _, f := range []struct{ vip, real netip.Addr }{{virtual4, s.server.Addr4()}, {virtual6, s.server.Addr6()}} {
				s.serve(f.real)
				s.exchange(f.vip)
				s.refused(f.vip)
			}
			for key, e := range s.table() {
				if key.Proto == protoTCP && key.DPort == portOf(servedPort) && e.State&stateClosed == 0 {
					t.Errorf("open after the end: %+v", e)
				}
			}
			var stats instanceStats
			if err := s.maps[mapInstanceStats].Lookup(s.instance, &stats); err != nil {
				t.Fatal(err)
			}
			if stats.RTT == 0 || stats.RTT > uint64(30*time.Second) { // timeout of one
				t.Errorf("connect takes %d ns", stats.RTT)
			}
		})
	}
}

// The same with a client that is an instance, whose virtual address the server sees.
func TestLiveNamed(t *testing.T) {
	for _, flags := range []uint8{localPeer, 0} {
		t.Run(fmt.Sprint(flags), func(t *testing.T) { liveNamed(t, flags) })
	}
}

func liveNamed(t *testing.T, flags uint8) {
	s := openSiteOn(t, loadProxy(t, map[string]any{"source_instance": true}), netlab.HostOptions{}, flags)
	if flags == 0 {
		s.completeChecksums()
	}
	client := uint32(s.client.OuterIndex())
	want := map[netip.Addr]bool{addr("10.30.0.9"): true, addr("fdff:2000::9"): true}
	for virtual := range want {
		own := s.client.Addr4()
		if virtual.Is6() {
			own = s.client.Addr6()
		}
		s.put(mapNames, nameKey{addressOf(own), client}, name{Other: addressOf(virtual)})
		s.put(mapNames, nameKey{addressOf(virtual), client}, name{addressOf(own), nameVirtual})
	}
	for _, f := range []struct{ vip, real netip.Addr }{{virtual4, s.server.Addr4()}, {virtual6, s.server.Addr6()}} {
		s.serve(f.real)
		s.exchange(f.vip)
		s.refused(f.vip)
	}
	got := map[netip.Addr]bool{}
	s.seen.Range(func(a, _ any) bool { got[a.(netip.Addr)] = true; return true })
	if !maps.Equal(got, want) {
		t.Errorf("the server has seen %v, want %v", got, want)
	}
}

// If a node forwards packets to an instance itself, and they are too large for its interface, its ICMP error to the
// client has the virtual address.
func TestNodeSaysTooBig(t *testing.T) {
	const mtu = 1400
	s := openSite(t, netlab.HostOptions{Routed: true}, 0)
	server := uint32(s.server.OuterIndex())
	var slot uint32
	if err := s.maps[mapInterfaces].Lookup(server, &slot); err != nil {
		t.Fatal(err)
	}
	s.put(mapLocals, slot, local{Ifindex: server}) // without a MAC address: the normal path
	err := s.lab.Node().Do(func() error {
		link, err := netlink.LinkByIndex(int(server))
		return errors.Join(err, netlink.LinkSetMTU(link, mtu))
	})
	if err != nil {
		t.Fatal(err)
	}
	for own, vip := range map[netip.Addr]netip.Addr{s.server.Addr4(): virtual4, s.server.Addr6(): virtual6} {
		s.put(mapHomes, addressOf(own), server)
		if got := s.pathMTU(vip, mtu); got != mtu {
			t.Errorf("%s: the client knows of %d bytes, want %d", vip, got, mtu)
		}
	}
}

// pathMTU returns the path MTU of the client's kernel after packets that are too large, and waits for want.
func (s *site) pathMTU(vip netip.Addr, want int) (known int) {
	s.t.Helper()
	conn, err := s.dial("udp", vip, servedPort)
	if err != nil {
		s.t.Fatal(err)
	}
	defer conn.Close()
	raw, err := conn.(syscall.Conn).SyscallConn()
	if err != nil {
		s.t.Fatal(err)
	}
	level, mtu, discover := unix.IPPROTO_IP, unix.IP_MTU, unix.IP_MTU_DISCOVER
	if vip.Is6() {
		level, mtu, discover = unix.IPPROTO_IPV6, unix.IPV6_MTU, unix.IPV6_MTU_DISCOVER
	}
	for end := time.Now().Add(30 * time.Second); known != want && time.Now().Before(end); {
		err := raw.Control(func(fd uintptr) {
			err := unix.SetsockoptInt(int(fd), level, discover, unix.IP_PMTUDISC_DO)
			_, _ = unix.Write(int(fd), make([]byte, 1430)) // fails once the size is known
			time.Sleep(10 * time.Millisecond)
			var err2 error
			known, err2 = unix.GetsockoptInt(int(fd), level, mtu)
			if err := errors.Join(err, err2); err != nil {
				s.t.Error(err)
			}
		})
		if err != nil {
			s.t.Fatal(err)
		}
	}
	return known
}

func (s *site) serve(at netip.Addr) {
	s.t.Helper()
	err := s.server.Do(func() error {
		where := netip.AddrPortFrom(at, innerPort).String()
		listener, err := net.Listen("tcp", where)
		if err != nil {
			return err
		}
		s.t.Cleanup(func() { listener.Close() })
		packets, err := net.ListenPacket("udp", where)
		if err != nil {
			return err
		}
		s.t.Cleanup(func() { packets.Close() })
		go func() {
			for {
				c, err := listener.Accept()
				if err != nil {
					return
				}
				s.seen.Store(c.RemoteAddr().(*net.TCPAddr).AddrPort().Addr(), true)
				go func() { defer c.Close(); io.Copy(c, c) }()
			}
		}()
		go func() {
			buf := make([]byte, 1<<16)
			for {
				n, from, err := packets.ReadFrom(buf)
				if err != nil {
					return
				}
				s.seen.Store(from.(*net.UDPAddr).AddrPort().Addr(), true)
				packets.WriteTo(buf[:n], from)
			}
		}()
		return nil
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) dial(network string, to netip.Addr, port uint16) (conn net.Conn, err error) {
	err = s.client.Do(func() (err error) {
		conn, err = net.DialTimeout(network, netip.AddrPortFrom(to, port).String(), 30*time.Second)
		return err
	})
	if err == nil {
		conn.SetDeadline(time.Now().Add(30 * time.Second))
	}
	return conn, err
}

// exchange echoes data of the client: a stream with segmentation offload, and datagrams, the largest in fragments.
func (s *site) exchange(vip netip.Addr) {
	s.t.Helper()
	stream := bytes.Repeat([]byte("kerb 0123456789\n"), 1<<16)
	if err := s.echo("tcp", vip, stream); err != nil {
		s.t.Fatalf("TCP to %s: %v", vip, err)
	}
	for _, size := range []int{1, 2, 333, 1400, 4000} {
		if err := s.echo("udp", vip, stream[:size]); err != nil {
			s.t.Fatalf("UDP to %s, %d bytes: %v", vip, size, err)
		}
	}
	if err := s.ping(vip); err != nil {
		s.t.Errorf("ping %s: %v", vip, err)
	}
}

// ping waits for the answer to an echo request.
func (s *site) ping(vip netip.Addr) error {
	network, request, reply := "ip4:icmp", []byte{8, 0, 0, 0, 0x12, 0x34, 0, 1}, byte(0)
	if vip.Is6() {
		network, request, reply = "ip6:ipv6-icmp", []byte{128, 0, 0, 0, 0x12, 0x34, 0, 1}, 129 // the kernel adds the checksum
	} else {
		binary.BigEndian.PutUint16(request[2:], ^fold(onesSum(request)))
	}
	var conn net.Conn
	err := s.client.Do(func() (err error) {
		conn, err = net.Dial(network, vip.String())
		return err
	})
	if err != nil {
		return err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(30 * time.Second))
	if _, err := conn.Write(request); err != nil {
		return err
	}
	got := make([]byte, 100)
	n, _, err := conn.(*net.IPConn).ReadFrom(got) // without the IPv4 header
	if err == nil && (n != len(request) || got[0] != reply || !bytes.Equal(got[4:8], request[4:8])) {
		return fmt.Errorf("answer %x", got[:n])
	}
	return err
}

func (s *site) echo(network string, to netip.Addr, data []byte) error {
	conn, err := s.dial(network, to, servedPort)
	if err != nil {
		return err
	}
	defer conn.Close()
	sent := make(chan error, 1)
	go func() {
		_, err := conn.Write(data)
		sent <- err
	}()
	got := make([]byte, len(data))
	if _, err := io.ReadFull(conn, got); err != nil {
		return err
	}
	if !bytes.Equal(got, data) {
		return errors.New("what came back differs")
	}
	if err := <-sent; err != nil || network != "tcp" {
		return err
	}
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		return err
	}
	if n, err := conn.Read(got); n != 0 || err != io.EOF {
		return fmt.Errorf("%d bytes and %w instead of the end", n, err)
	}
	return nil
}

// refused checks refusals: those of the instance's stack, translated, and those of the proxy.
func (s *site) refused(virtual netip.Addr) {
	s.t.Helper()
	t := s.t.(*testing.T)
	if _, err := s.dial("tcp", virtual, otherPort); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("TCP to a port without a listener: %v", err)
	}
	if _, err := s.dial("tcp", virtual, 1); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("TCP to a port that is not served: %v", err)
	}
	for _, port := range []uint16{otherPort, 1} {
		conn, err := s.dial("udp", virtual, port)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := conn.Write([]byte("anybody?")); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Read(make([]byte, 10)); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("UDP to port %d: %v", port, err)
		}
	}
	nobody := virtual.Next()
	s.put(mapVIPs, addressOf(nobody), vip{Expires: 1 << 62, ID: 99, Flags: vipNegative})
	if _, err := s.dial("tcp", nobody, 80); !errors.Is(err, syscall.EHOSTUNREACH) {
		t.Errorf("TCP to an address known not to exist: %v", err)
	}
	conn, err := s.dial("tcp", virtual, servedPort)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	s.setFlags(s.instance, instanceGone)
	defer s.setFlags(s.instance, 0)
	if _, err := conn.Write([]byte("still there?")); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 10)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("connection to an instance that is gone: %v", err)
	}
}
