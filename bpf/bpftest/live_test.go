// SPDX-License-Identifier: Apache-2.0

package bpftest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"net"
	"net/netip"
	"strconv"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	abi "github.com/kerb-edge/kerb/internal/kerbabi"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/packet"
)

// The address that stands for the server, and its port and the real one.
var (
	virtual4 = netip.MustParseAddr("10.99.200.1")
	virtual6 = netip.MustParseAddr("fd99::c8:1")
)

const virtualPort, realPort = 8080, 9090

// nat is struct nat of testdata/live.bpf.c. Ports are in network order.
type nat struct {
	Virtual6, Real6        [16]byte
	Virtual4, Real4        [4]byte
	VirtualPort, RealPort  uint16
	Pad                    uint32
	Packets, PartialOfThem uint64
}

func openLab(t *testing.T) *netlab.Lab {
	t.Helper()
	needRoot(t)
	lab, err := netlab.Open("kpr", netlab.Options{OwnNode: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { lab.Close() })
	return lab
}

func addHost(t *testing.T, lab *netlab.Lab, name string, opts netlab.HostOptions) *netlab.Host {
	t.Helper()
	h, err := lab.Host(name, opts)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// attach puts a program on one side of a host's outer interface: parent is
// netlink.HANDLE_MIN_INGRESS or HANDLE_MIN_EGRESS.
func attach(t *testing.T, h *netlab.Host, node *netlab.Namespace, prog *ebpf.Program, parent uint32) {
	t.Helper()
	err := node.Do(func() error {
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
		t.Fatal(err)
	}
}

// TestLiveChecksums runs TCP and UDP through destination NAT on TC between two
// network stacks, once with checksums left to the device (CHECKSUM_PARTIAL),
// once complete. The interfaces behind the programs complete what is partial,
// so that the receiving stack checks it; what it does not accept never comes
// back.
func TestLiveChecksums(t *testing.T) {
	for _, c := range []struct {
		name    string
		offload bool
	}{{"partial", true}, {"complete", false}} {
		t.Run(c.name, func(t *testing.T) {
			lab := openLab(t)
			opts := netlab.HostOptions{TxChecksumOff: !c.offload}
			client, server := addHost(t, lab, "client", opts), addHost(t, lab, "server", opts)
			completeChecksums(t, lab, client, server)
			table := translate(t, lab, client, server)
			teachNeighbours(t, client, server)
			for _, at := range []struct{ real, virtual netip.Addr }{{server.Addr4(), virtual4}, {server.Addr6(), virtual6}} {
				exchange(t, client, server, at.real, at.virtual)
			}
			var n nat
			if err := table.Lookup(uint32(0), &n); err != nil {
				t.Fatal(err)
			}
			// A complete checksum looks partial once in 65536 times.
			if n.Packets < 10 || (n.PartialOfThem > n.Packets/2) != c.offload {
				t.Errorf("of %d packets %d had a partial checksum", n.Packets, n.PartialOfThem)
			}
		})
	}
}

// completeChecksums takes checksum offload from the hosts' outer interfaces.
func completeChecksums(t *testing.T, lab *netlab.Lab, client, server *netlab.Host) {
	t.Helper()
	err := lab.Node().Do(func() error {
		return errors.Join(netlab.SetTxChecksum(client.Outer(), false), netlab.SetTxChecksum(server.Outer(), false))
	})
	if err != nil {
		t.Fatal(err)
	}
}

// translate attaches the programs to the client's interface.
func translate(t *testing.T, lab *netlab.Lab, client, server *netlab.Host) *ebpf.Map {
	t.Helper()
	coll := Load(t, Compile(t, "testdata/live.bpf.c", TC))
	n := nat{Virtual6: virtual6.As16(), Real6: server.Addr6().As16(), Virtual4: virtual4.As4(),
		Real4:       server.Addr4().As4(),
		VirtualPort: bits.ReverseBytes16(virtualPort), RealPort: bits.ReverseBytes16(realPort)}
	if err := coll.Maps["nat"].Put(uint32(0), &n); err != nil {
		t.Fatal(err)
	}
	attach(t, client, lab.Node(), coll.Programs["from_host"], netlink.HANDLE_MIN_INGRESS)
	attach(t, client, lab.Node(), coll.Programs["to_host"], netlink.HANDLE_MIN_EGRESS)
	return coll.Maps["nat"]
}

// teachNeighbours adds neighbour entries for the virtual addresses on the
// client, since no host answers ARP or NDP for them.
func teachNeighbours(t *testing.T, client, server *netlab.Host) {
	t.Helper()
	err := client.Do(func() error {
		link, err := netlink.LinkByName(client.Interface())
		if err != nil {
			return err
		}
		for _, addr := range []netip.Addr{virtual4, virtual6} {
			n := &netlink.Neigh{LinkIndex: link.Attrs().Index, IP: addr.AsSlice(), HardwareAddr: server.MAC(),
				State: netlink.NUD_PERMANENT}
			if err := netlink.NeighSet(n); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// exchange has the server echo what the client sends to the virtual address.
func exchange(t *testing.T, client, server *netlab.Host, real, virtual netip.Addr) {
	t.Helper()
	target := net.JoinHostPort(virtual.String(), strconv.Itoa(virtualPort))
	source := net.JoinHostPort(real.String(), strconv.Itoa(realPort))
	serve(t, server, source)
	stream := bytes.Repeat([]byte("kerb 0123456789\n"), 1<<16) // 1 MiB: segmentation offload at work
	if err := echo(client, "tcp", target, stream); err != nil {
		t.Fatalf("TCP to %s: %v", target, err)
	}
	for _, size := range []int{1, 2, 333, 1400, 4000} { // the last in fragments
		if err := echo(client, "udp", target, stream[:size]); err != nil {
			t.Fatalf("UDP to %s, %d bytes: %v", target, size, err)
		}
	}
}

func serve(t *testing.T, h *netlab.Host, at string) {
	t.Helper()
	err := h.Do(func() error {
		listener, err := net.Listen("tcp", at)
		if err != nil {
			return err
		}
		t.Cleanup(func() { listener.Close() })
		packets, err := net.ListenPacket("udp", at)
		if err != nil {
			return err
		}
		t.Cleanup(func() { packets.Close() })
		go echoStream(listener)
		go echoPackets(packets)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func echoStream(l net.Listener) {
	c, err := l.Accept()
	if err != nil {
		return
	}
	defer c.Close()
	io.Copy(c, c)
}

func echoPackets(c net.PacketConn) {
	buf := make([]byte, 1<<16)
	for {
		n, from, err := c.ReadFrom(buf)
		if err != nil {
			return
		}
		c.WriteTo(buf[:n], from)
	}
}

// echo sends data and waits for the same data to come back.
func echo(h *netlab.Host, network, to string, data []byte) error {
	var conn net.Conn
	err := h.Do(func() (err error) {
		conn, err = net.DialTimeout(network, to, 30*time.Second)
		return err
	})
	if err != nil {
		return err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(30 * time.Second))
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
		return fmt.Errorf("what came back differs")
	}
	return <-sent
}

// TestPulledHeaders sends frames whose linear part ends anywhere in the headers through a real interface; the head, and
// the parser after a change of headers, have to find the same as in linear ones.
func TestPulledHeaders(t *testing.T) {
	for _, program := range []string{"dump", "reparse"} {
		t.Run(program, func(t *testing.T) { checkPulledHeaders(t, program) })
	}
}

func checkPulledHeaders(t *testing.T, program string) {
	lab := openLab(t)
	host := addHost(t, lab, "sink", netlab.HostOptions{MTU: 9000})
	coll := Load(t, Compile(t, "testdata/parse.bpf.c", TC))
	attach(t, host, lab.Node(), coll.Programs[program], netlink.HANDLE_MIN_EGRESS)
	send := packetSocket(t, lab.Node(), host.OuterIndex())
	head := headOf(t, TC, coll)
	for _, s := range samples(t) {
		frame := pad(s.frame, 5000-len(s.frame))
		for _, linear := range []int{14, 15, 18, 20, 33, 34, 38, 42, 53, 54, 61, 62, 70, 100, 200} {
			send(linear, frame)
			got := head.last(t)
			if int(got.Len) != len(frame) { // a report of the kernel's own, such as MLD's, came behind it
				send(linear, frame)
				got = head.last(t)
			}
			if uint64(linear) > got.DataEnd {
				t.Fatalf("%s: linear part of %d bytes, sent with %d", s.name, got.DataEnd, linear)
			}
			got.Ifindex, got.DataEnd = 0, uint64(len(frame))
			if want := packet.Dissect(frame); got != want {
				t.Errorf("%s with %d bytes linear: model - kernel +\n%s", s.name, linear, cmp.Diff(want, got))
			}
		}
	}
}

// TestTagTakenOff sends tagged frames out of a host. The kernel takes the outer
// tag off before TC ingress; it counts all the same.
func TestTagTakenOff(t *testing.T) {
	lab := openLab(t)
	host := addHost(t, lab, "source", netlab.HostOptions{})
	coll := Load(t, Compile(t, "testdata/parse.bpf.c", TC))
	attach(t, host, lab.Node(), coll.Programs["dump"], netlink.HANDLE_MIN_INGRESS)
	head := headOf(t, TC, coll)
	var inner *net.Interface
	err := host.Do(func() (err error) {
		inner, err = net.InterfaceByName(host.Interface())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	send := packetSocket(t, host.Namespace, inner.Index)
	for n := range 4 {
		frame := udp4(t, 0, 700+10*n, []uint16{1001, 1002, 1003}[:n]...)
		want := packet.Dissect(frame)
		if n > 0 { // the context speaks of the frame without the tag
			want.L3, want.L4, want.Len = want.L3-4, want.L4-4, want.Len-4
		}
		want.DataEnd = uint64(want.Len)
		send(0, frame)
		if got := head.wait(t, want.Len); got != want {
			t.Errorf("%d tags: model - kernel +\n%s", n, cmp.Diff(want, got))
		}
	}
}

// wait waits until a frame of so many bytes has been seen.
func (h head) wait(t *testing.T, size uint32) abi.Packet {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if got := h.last(t); got.Len == size {
			got.Ifindex = 0
			return got
		}
	}
	t.Fatalf("no frame of %d bytes came", size)
	return abi.Packet{}
}

// packetSocket returns a function that sends a frame out of an interface with so
// many bytes in the linear part, as the header of virtio asks the kernel to; 0
// is all of it.
func packetSocket(t *testing.T, ns *netlab.Namespace, ifindex int) func(linear int, frame []byte) {
	t.Helper()
	var fd int
	err := ns.Do(func() (err error) {
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		return unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1)
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	to := &unix.SockaddrLinklayer{Ifindex: ifindex, Protocol: bits.ReverseBytes16(unix.ETH_P_IP)}
	return func(linear int, frame []byte) {
		t.Helper()
		header := make([]byte, 10) // struct virtio_net_hdr: hdr_len at 2
		ne.PutUint16(header[2:], uint16(linear))
		// the program drops it
		if err := unix.Sendto(fd, append(header, frame...), 0, to); err != nil && err != unix.ENOBUFS {
			t.Fatal(err)
		}
	}
}
