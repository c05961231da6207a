// SPDX-License-Identifier: Apache-2.0

// Package contender has what more than one experiment compares Kerb with.
package contender

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// goProxy as the first argument has this program run as a user-space proxy that is built like Oakestra's NetManager
// (oakestra/oakestra-net, node-net-manager/proxy): a goroutine reads a packet per system call into memory of its own, a
// second one translates what leaves, a third one what arrives, and writes it; channels of 1,000 packets between them;
// each translation decodes the packet, asks tables behind a lock, and makes a new packet with checksums computed over
// all of it. Left out is what would make it slower still: the packet library, a log line per packet, fragments, and the
// choice of an instance.
const goProxy = "kerb-bench-goroutines"

func init() {
	if len(os.Args) < 2 || os.Args[1] != goProxy {
		return
	}
	fmt.Fprintln(os.Stderr, "goroutines:", runGoProxy(os.Args[2:]))
	os.Exit(1)
}

// Goroutines is the command that runs the proxy on a TUN device which it creates. Its further arguments are client,
// client's virtual address, server and server's virtual address, and, if the server is on another node, the addresses
// and ports of this node's proxy and of that node's: packets then go there in UDP.
func Goroutines(device string) ([]string, error) {
	self, err := os.Executable()
	return []string{self, goProxy, device}, err
}

// runGoProxy serves until the device is closed. It prints "ready" when packets into the device are translated.
func runGoProxy(args []string) error {
	if len(args) != 5 && len(args) != 7 {
		return fmt.Errorf("%d arguments, want DEVICE CLIENT CLIENT-VIRTUAL SERVER SERVER-VIRTUAL [LOCAL PEER]", len(args))
	}
	device, err := OpenTUN(args[0])
	if err != nil {
		return err
	}
	var addrs [4]netip.Addr
	for i := range addrs {
		if addrs[i], err = netip.ParseAddr(args[i+1]); err != nil {
			return err
		}
	}
	p := &goroutines{device: device, out: make(chan []byte, 1000), in: make(chan []byte, 1000),
		virtual: map[netip.Addr]netip.Addr{},
		real:    map[netip.Addr]netip.Addr{}}
	for i := 0; i < 4; i += 2 {
		p.virtual[addrs[i]], p.real[addrs[i+1]] = addrs[i+1], addrs[i]
	}
	if len(args) == 7 {
		if p.socket, p.peer, err = openSocket(args[5], args[6]); err != nil {
			return err
		}
		go p.receive()
	}
	fmt.Println("ready")
	go p.outgoing()
	go p.incoming()
	return p.read()
}

func openSocket(local, peer string) (*net.UDPConn, netip.AddrPort, error) {
	from, err := netip.ParseAddrPort(local)
	if err != nil {
		return nil, from, err
	}
	to, err := netip.ParseAddrPort(peer)
	if err != nil {
		return nil, to, err
	}
	socket, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(from))
	return socket, to, err
}

// OpenTUN creates a TUN device, which exists until the file is closed. Each read and write is an IP packet.
func OpenTUN(name string) (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	req, err := unix.NewIfreq(name)
	if err != nil {
		return nil, err
	}
	req.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, req); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("create %s: %w", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

type goroutines struct {
	device        *os.File
	out, in       chan []byte
	mu            sync.RWMutex
	virtual, real map[netip.Addr]netip.Addr // virtual address of a service, and the other way round
	socket        *net.UDPConn              // nil if client and server are on one node
	peer          netip.AddrPort
}

func (p *goroutines) read() error {
	buffer := make([]byte, 1<<16)
	for {
		n, err := p.device.Read(buffer)
		if err != nil {
			return err
		}
		packet := make([]byte, n)
		copy(packet, buffer)
		p.out <- packet
	}
}

// receive takes what comes from the other node.
func (p *goroutines) receive() {
	buffer := make([]byte, 1<<16)
	for {
		n, _, err := p.socket.ReadFromUDPAddrPort(buffer)
		if err != nil {
			continue // an ICMP error: the other proxy has not started yet
		}
		packet := make([]byte, n)
		copy(packet, buffer)
		p.in <- packet
	}
}

// outgoing turns the virtual destination into the service behind it. On the way to another node the source is the
// virtual address of the sender.
func (p *goroutines) outgoing() {
	for packet := range p.out {
		d, ok := decode(packet)
		if !ok {
			continue
		}
		p.mu.RLock()
		to, known := p.real[d.dst]
		from := p.virtual[d.src]
		p.mu.RUnlock()
		switch {
		case !known:
		case p.socket == nil:
			p.in <- d.with(d.src, to)
		case from.IsValid():
			_, _ = p.socket.WriteToUDPAddrPort(d.with(from, to), p.peer) // what does not fit is lost, as on a wire
		}
	}
}

// incoming turns the source into the virtual address that it answers for.
func (p *goroutines) incoming() {
	for packet := range p.in {
		d, ok := decode(packet)
		if !ok {
			continue
		}
		p.mu.RLock()
		from, known := p.virtual[d.src]
		p.mu.RUnlock()
		if known {
			packet = d.with(from, d.dst)
		}
		_, _ = p.device.Write(packet) // what the device has no room for is lost, as on a wire
	}
}

// decoded is an IP packet with TCP or UDP.
type decoded struct {
	packet   []byte
	src, dst netip.Addr
	at, l4   int // of the source address, and of the transport header
	proto    byte
}

func decode(packet []byte) (d decoded, ok bool) {
	d.packet = packet
	switch {
	case len(packet) >= 20 && packet[0]>>4 == 4:
		d.at, d.l4, d.proto = 12, int(packet[0]&15)*4, packet[9]
		d.src, d.dst = netip.AddrFrom4([4]byte(packet[12:])), netip.AddrFrom4([4]byte(packet[16:]))
	case len(packet) >= 40 && packet[0]>>4 == 6:
		d.at, d.l4, d.proto = 8, 40, packet[6]
		d.src, d.dst = netip.AddrFrom16([16]byte(packet[8:])), netip.AddrFrom16([16]byte(packet[24:]))
	default:
		return d, false
	}
	return d, len(packet) >= d.l4+d.checkOffset()+2 && (d.proto == unix.IPPROTO_TCP || d.proto == unix.IPPROTO_UDP)
}

func (d *decoded) checkOffset() int {
	if d.proto == unix.IPPROTO_TCP {
		return 16
	}
	return 6
}

// with is the packet between other addresses, made again.
func (d *decoded) with(src, dst netip.Addr) []byte {
	packet := append([]byte(nil), d.packet...)
	size := src.BitLen() / 8
	copy(packet[d.at:], src.AsSlice())
	copy(packet[d.at+size:], dst.AsSlice())
	if size == 4 {
		binary.BigEndian.PutUint16(packet[10:], 0)
		binary.BigEndian.PutUint16(packet[10:], ^sum16(0, packet[:d.l4]))
	}
	check := packet[d.l4+d.checkOffset():]
	binary.BigEndian.PutUint16(check, 0)
	pseudo := sum16(uint32(d.proto)+uint32(len(packet)-d.l4), packet[d.at:d.at+2*size])
	binary.BigEndian.PutUint16(check, ^sum16(uint32(pseudo), packet[d.l4:]))
	return packet
}

// sum16 is the ones' complement sum of RFC 1071.
func sum16(sum uint32, data []byte) uint16 {
	for ; len(data) >= 2; data = data[2:] {
		sum += uint32(binary.BigEndian.Uint16(data))
	}
	if len(data) == 1 {
		sum += uint32(data[0]) << 8
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return uint16(sum)
}
