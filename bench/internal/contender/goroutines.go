// SPDX-License-Identifier: Apache-2.0

// Package contender has the contenders that several experiments share.
package contender

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"

	"github.com/kerb-edge/kerb/internal/lab/traffic"
)

// goProxy as the first argument makes this program run as a user-space proxy with the structure of Oakestra's
// NetManager (oakestra/oakestra-net, node-net-manager/proxy). One goroutine reads one packet per system call into newly
// allocated memory, a second one translates outgoing packets, a third one translates and writes incoming packets.
// Channels of 1,000 packets connect them. Each translation decodes the packet, looks up tables under a lock, and builds
// a new packet with checksums over all of it. Parts that would slow it down further are left out: the packet library, a
// log line per packet, fragments, and the selection of an instance.
const goProxy = "kerb-bench-goroutines"

func init() {
	if len(os.Args) < 2 || os.Args[1] != goProxy {
		return
	}
	fmt.Fprintln(os.Stderr, "goroutines:", runGoProxy(os.Args[2:]))
	os.Exit(1)
}

// Goroutines returns the command that runs the user-space proxy on a new TUN device. Its further arguments are the
// client, its virtual address, the server and its virtual address; and, if the server is on another node, the addresses
// and ports of both nodes' proxies, which then exchange packets in UDP.
func Goroutines(device string) ([]string, error) {
	self, err := os.Executable()
	return []string{self, goProxy, device}, err
}

// runGoProxy serves until the device is closed. It prints "ready" when packets into the device are translated.
func runGoProxy(args []string) error {
	if len(args) != 5 && len(args) != 7 {
		return fmt.Errorf("%d arguments, want DEVICE CLIENT CLIENT-VIRTUAL SERVER SERVER-VIRTUAL [LOCAL PEER]", len(args))
	}
	device, err := traffic.OpenTUN(args[0])
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

type goroutines struct {
	device        *os.File
	out, in       chan []byte
	mu            sync.RWMutex
	virtual, real map[netip.Addr]netip.Addr // virtual addresses of services, and the reverse
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

// receive handles packets from the other node.
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

// outgoing translates the virtual destination to the service's address. For another node, the source becomes the
// virtual address of the sender.
func (p *goroutines) outgoing() {
	for packet := range p.out {
		d, ok := traffic.ParsePacket(packet)
		if !ok {
			continue
		}
		p.mu.RLock()
		to, known := p.real[d.Dst]
		from := p.virtual[d.Src]
		p.mu.RUnlock()
		switch {
		case !known:
		case p.socket == nil:
			p.in <- d.Between(d.Src, to)
		case from.IsValid():
			_, _ = p.socket.WriteToUDPAddrPort(d.Between(from, to), p.peer) // packets that are too large are lost, as on a wire
		}
	}
}

// incoming translates the source to the virtual address.
func (p *goroutines) incoming() {
	for packet := range p.in {
		d, ok := traffic.ParsePacket(packet)
		if !ok {
			continue
		}
		p.mu.RLock()
		from, known := p.virtual[d.Src]
		p.mu.RUnlock()
		if known {
			packet = d.Between(from, d.Dst)
		}
		_, _ = p.device.Write(packet) // dropped if the device's queue is full
	}
}
