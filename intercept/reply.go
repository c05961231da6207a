// SPDX-License-Identifier: Apache-2.0

package intercept

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

// ErrNotUDP is returned for packets that cannot be answered.
var ErrNotUDP = errors.New("only UDP packets to the service can be answered")

// Peer has the source and the destination of a packet, for an answer.
type Peer struct {
	Remote, Own netip.AddrPort
}

const (
	udpHeader  = 8
	ip6Header  = 40
	isUDP      = 17
	isFragment = 44
)

// Peer returns source and destination of a UDP packet to the service.
func (p *Packet) Peer() (Peer, error) {
	if p.Flags&HasL4 == 0 || p.Flags&Egress != 0 || len(p.Frame) < p.L4+udpHeader {
		return Peer{}, ErrNotUDP
	}
	ip, udp, at, size, kind := p.Frame[p.L3:], p.Frame[p.L4:], 12, 4, byte(0)
	if p.Flags&IP6 != 0 {
		at, size, kind = 8, 16, p.protocol6()
	} else {
		kind = ip[9]
	}
	if kind != isUDP || binary.BigEndian.Uint16(udp) == 0 || binary.BigEndian.Uint16(udp[2:]) == 0 {
		return Peer{}, ErrNotUDP
	}
	from, _ := netip.AddrFromSlice(ip[at : at+size])
	to, _ := netip.AddrFromSlice(ip[at+size : at+2*size])
	return Peer{netip.AddrPortFrom(from, binary.BigEndian.Uint16(udp)),
		netip.AddrPortFrom(to, binary.BigEndian.Uint16(udp[2:]))}, nil
}

// protocol6 returns the protocol of an IPv6 packet after any extension headers, or 0 if it does not start at L4.
func (p *Packet) protocol6() byte {
	at, next := p.L3+ip6Header, p.Frame[p.L3+6]
	for at < p.L4 {
		kind := next
		next = p.Frame[at] // the transport header follows, so both bytes are captured
		if kind == isFragment {
			at += 8
		} else {
			at += (int(p.Frame[at+1]) + 1) * 8
		}
	}
	if at != p.L4 {
		return 0
	}
	return next
}

// sender is a UDP socket for answers.
type sender struct {
	fd   int
	port uint16 // local port; 0: no socket
	six  bool   // AF_INET6, possibly dual-stack

	timed bool // SO_TXTIME is set
}

func (s *sender) close() {
	if s.port != 0 {
		_ = unix.Close(s.fd)
	}
	*s = sender{}
}

// UseSocket makes answers from a port leave through a UDP socket of the program. fd is bound to the port, remains the
// program's, and must stay open: one for IPv4 and one for IPv6, or one for both. For other ports, the first answer
// binds a socket, which receives nothing; that fails if any program has bound the port.
func (r *Receiver) UseSocket(fd int) error {
	at, err := unix.Getsockname(fd)
	if err != nil {
		return fmt.Errorf("socket for answers: %w", err)
	}
	s, families := sender{fd: fd}, []int{0} // IPv4
	switch at := at.(type) {
	case *unix.SockaddrInet4:
		s.port = uint16(at.Port)
	case *unix.SockaddrInet6:
		s.port, s.six = uint16(at.Port), true
		if families = []int{0, 1}; isOnly6(fd) {
			families = []int{1}
		}
	default:
		return errors.New("socket for answers: it is none of IPv4 or IPv6")
	}
	for _, i := range families {
		r.ownSenders[i] = s
	}
	return nil
}

func isOnly6(fd int) bool {
	n, err := unix.GetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY)
	return err == nil && n != 0
}

// Reply sends a UDP datagram to the sender of a UDP packet of this class, with the packet's addresses and ports
// swapped. It needs no privilege: an ordinary UDP socket sends it, so it passes the network stack, and the kernel
// rejects source addresses that are not local. It does not block: the error is unix.EAGAIN if the socket's buffer is
// full. Packets from link-local IPv6 addresses cannot be answered.
func (r *Receiver) Reply(p *Packet, data []byte) error {
	peer, err := p.Peer()
	if err != nil {
		return err
	}
	return r.Send(peer, data)
}

// Send is Reply for a stored Peer, after the packet has been released.
func (r *Receiver) Send(to Peer, data []byte) error { return r.send(to, data, nil) }

// send sends an answer, with a launch time unless at is nil.
func (r *Receiver) send(to Peer, data []byte, at *int64) error {
	own, remote := to.Own.Addr().Unmap(), to.Remote.Addr().Unmap()
	if !own.IsValid() || !remote.IsValid() || own.Is6() != remote.Is6() || to.Own.Port() == 0 || to.Remote.Port() == 0 {
		return fmt.Errorf("answer from %s to %s: both have to be addresses of one family, with ports", to.Own, to.Remote)
	}
	s, err := r.sender(own.Is6(), to.Own.Port())
	if err != nil {
		return fmt.Errorf("bind UDP port %d for answers: %w", to.Own.Port(), err)
	}
	var address unix.Sockaddr
	var source []byte
	if s.six {
		address = &unix.SockaddrInet6{Port: int(to.Remote.Port()), Addr: remote.As16()}
		source = unix.PktInfo6(&unix.Inet6Pktinfo{Addr: own.As16()})
	} else {
		address = &unix.SockaddrInet4{Port: int(to.Remote.Port()), Addr: remote.As4()}
		source = unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: own.As4()})
	}
	if at != nil {
		if err := r.enableLaunch(s, *at); err != nil {
			return err
		}
		source = append(source, launchTime(*at)...)
	}
	if err := unix.Sendmsg(s.fd, data, source, address, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL); err != nil {
		return fmt.Errorf("answer to %s: %w", to.Remote, err)
	}
	return nil
}

// sender returns the socket for a port: the program's, or one of the receiver.
func (r *Receiver) sender(v6 bool, port uint16) (*sender, error) {
	i := 0
	if v6 {
		i = 1
	}
	s := &r.senders[i]
	switch {
	case r.ring == nil:
		return nil, net.ErrClosed
	case r.ownSenders[i].port == port:
		return &r.ownSenders[i], nil
	case s.port == port:
		return s, nil
	}
	r.collectLaunches(s)
	return s, s.bind(v6, port)
}

// bind opens the socket of a port, and closes that of the previous port.
func (s *sender) bind(v6 bool, port uint16) (err error) {
	family := unix.AF_INET
	var all unix.Sockaddr = &unix.SockaddrInet4{Port: int(port)}
	if v6 {
		family, all = unix.AF_INET6, &unix.SockaddrInet6{Port: int(port)}
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	none := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K}} // received packets would fill its buffer
	err = unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &none[0]})
	if err == nil && v6 {
		err = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1)
	}
	if err == nil {
		err = unix.Bind(fd, all)
	}
	if err != nil {
		_ = unix.Close(fd)
		if errors.Is(err, unix.EADDRINUSE) {
			err = fmt.Errorf("%w: give that socket to UseSocket", err)
		}
		return err
	}
	s.close()
	*s = sender{fd: fd, port: port, six: v6}
	return nil
}
