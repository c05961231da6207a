// SPDX-License-Identifier: Apache-2.0

package sdk

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"sync"

	"golang.org/x/sys/unix"
)

var (
	// ErrNoInject is returned for an interface on which the control plane cannot send as the service.
	ErrNoInject = errors.New("frames cannot be sent in the name of this service")
	// ErrTooLong is returned for a frame larger than the interface's MTU.
	ErrTooLong = errors.New("the frame is larger than the MTU")
)

// injectors are packet sockets inside services, by the ifindex of the interface on the node's side.
type injectors struct {
	mu      sync.RWMutex
	sockets map[uint32]int
}

func newInjectors() *injectors { return &injectors{sockets: map[uint32]int{}} }

func (s *injectors) put(ifindex uint32, fd int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old, ok := s.sockets[ifindex]; ok {
		unix.Close(old)
	}
	s.sockets[ifindex] = fd
}

func (s *injectors) remove(ifindex uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if fd, ok := s.sockets[ifindex]; ok {
		unix.Close(fd)
		delete(s.sockets, ifindex)
	}
}

func (s *injectors) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for ifindex, fd := range s.sockets {
		unix.Close(fd)
		delete(s.sockets, ifindex)
	}
}

// inject completes the frame's checksum in place and sends it. It returns ErrNoInject for an interface without a packet
// socket, and ErrTooLong for a frame above the MTU.
func (s *injectors) inject(ifindex uint32, frame []byte) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	fd, ok := s.sockets[ifindex]
	if !ok {
		return fmt.Errorf("interface %d: %w", ifindex, ErrNoInject)
	}
	CompleteChecksum(frame)
	_, err := unix.Write(fd, frame)
	if errors.Is(err, unix.EMSGSIZE) {
		return fmt.Errorf("interface %d, %d bytes: %w", ifindex, len(frame), ErrTooLong)
	}
	if err != nil {
		return fmt.Errorf("interface %d: send: %w", ifindex, err)
	}
	return nil
}

// CompleteChecksum sets the checksum of the transport protocol, which senders on a veth often leave to the interface. A
// UDP checksum of zero over IPv4 means that there is none, and stays. Incomplete packets are left unchanged.
func CompleteChecksum(frame []byte) {
	etherType, packet, ok := network(frame)
	switch {
	case ok && etherType == unix.ETH_P_IP:
		completeIPv4(packet)
	case ok && etherType == unix.ETH_P_IPV6:
		completeIPv6(packet)
	}
}

// network returns the packet after the Ethernet header and up to two VLAN tags.
func network(frame []byte) (etherType uint16, packet []byte, ok bool) {
	for at := 12; at <= 20; at += 4 {
		if len(frame) < at+2 {
			return 0, nil, false
		}
		etherType = binary.BigEndian.Uint16(frame[at:])
		if etherType != unix.ETH_P_8021Q && etherType != unix.ETH_P_8021AD {
			return etherType, frame[at+2:], true
		}
	}
	return 0, nil, false
}

func completeIPv4(p []byte) {
	if len(p) < 20 {
		return
	}
	head, total := int(p[0]&0xf)*4, int(binary.BigEndian.Uint16(p[2:]))
	const moreOrOffset = 0x3fff // fragments have complete checksums already
	if head < 20 || total < head || total > len(p) || binary.BigEndian.Uint16(p[6:])&moreOrOffset != 0 {
		return
	}
	completeTransport(p[9], sum(p[12:20], 0), p[head:total], true)
}

func completeIPv6(p []byte) {
	if len(p) < 40 {
		return
	}
	next, at, total := p[6], 40, 40+int(binary.BigEndian.Uint16(p[4:]))
	if total > len(p) {
		return
	}
	for next == unix.IPPROTO_HOPOPTS || next == unix.IPPROTO_DSTOPTS || next == unix.IPPROTO_ROUTING {
		if total < at+8 || next == unix.IPPROTO_ROUTING && p[at+3] != 0 { // on the way another destination counts
			return
		}
		next, at = p[at], at+8+8*int(p[at+1])
	}
	if at <= total {
		completeTransport(next, sum(p[8:40], 0), p[at:total], false)
	}
}

func completeTransport(protocol byte, addresses uint64, t []byte, zeroAllowed bool) {
	var at int
	switch {
	case protocol == unix.IPPROTO_TCP && len(t) >= 20:
		at = 16
	case protocol == unix.IPPROTO_UDP && len(t) >= 8:
		at = 6
		if zeroAllowed && t[6] == 0 && t[7] == 0 {
			return
		}
	case protocol == unix.IPPROTO_SCTP && len(t) >= 12:
		clear(t[8:12])
		binary.LittleEndian.PutUint32(t[8:], crc32.Checksum(t, castagnoli)) // RFC 9260, appendix A
		return
	default:
		return
	}
	t[at], t[at+1] = 0, 0
	folded := fold(sum(t, addresses+uint64(protocol)+uint64(len(t))))
	if folded == 0 && protocol == unix.IPPROTO_UDP {
		folded = 0xffff
	}
	binary.BigEndian.PutUint16(t[at:], folded)
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Checksum returns the checksum of RFC 1071 over parts, all of which but the last have an even length.
func Checksum(parts ...[]byte) uint16 {
	total := uint64(0)
	for _, p := range parts {
		total = sum(p, total)
	}
	return fold(total)
}

// sum adds up 16-bit words (RFC 1071).
func sum(data []byte, total uint64) uint64 {
	for len(data) >= 2 {
		total += uint64(binary.BigEndian.Uint16(data))
		data = data[2:]
	}
	if len(data) == 1 {
		total += uint64(data[0]) << 8
	}
	return total
}

func fold(total uint64) uint16 {
	for total > 0xffff {
		total = total>>16 + total&0xffff
	}
	return ^uint16(total)
}
