// SPDX-License-Identifier: Apache-2.0

package ebpfvm

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// Offsets of fields in struct xdp_md and struct __sk_buff.
const (
	xdpData, xdpEnd, xdpMeta, xdpIfindex         = 0, 4, 8, 12
	skbLen, skbType, skbProtocol, skbIfindex     = 0, 4, 16, 40
	skbData, skbEnd, skbMeta, skbWireLen         = 76, 80, 140, 160
	headroom, xdpHeadroom, tailroom          int = 256, 256, 4096
	ethernet, loopback, otherHost                = 14, 1, 3
)

var bigEndian = binary.NativeEndian.Uint16([]byte{0, 1}) == 1

// receive creates the context for a packet, as PROG_TEST_RUN does: it arrives on the loopback interface.
func (v *VM) receive(frame []byte) {
	mem := make([]byte, headroom+len(frame)+tailroom)
	copy(mem[headroom:], frame)
	v.packet.mem, v.packet.first, v.packet.last = mem, headroom, headroom+len(frame)
	v.meta, v.network = headroom, ethernet
	clear(v.kernel.mem)
	v.context.mem = make([]byte, 192)
	v.context.last = len(v.context.mem)
	if v.p.xdp {
		v.put(xdpIfindex, loopback)
		return
	}
	v.put(skbIfindex, loopback)
	v.put(skbWireLen, uint32(len(frame)))
	if len(frame) >= ethernet {
		v.put(skbProtocol, uint32(binary.NativeEndian.Uint16(frame[12:])))
		v.put(skbType, packetType(frame))
	}
}

func (v *VM) put(offset int, n uint32) { binary.NativeEndian.PutUint32(v.context.mem[offset:], n) }

// packetType returns the packet type that eth_type_trans sets on the loopback interface, whose address is zero.
func packetType(frame []byte) uint32 {
	const host, broadcast, multicast = 0, 1, 2
	switch address := [6]byte(frame[:6]); {
	case address == [6]byte{}:
		return host
	case address == [6]byte{255, 255, 255, 255, 255, 255}:
		return broadcast
	case address[0]&1 != 0:
		return multicast
	}
	return otherHost
}

// sent returns the packet as it leaves the program.
func (v *VM) sent() []byte {
	if v.p.xdp {
		return v.packet.mem[v.meta:v.packet.last]
	}
	return v.packet.mem[v.packet.first:v.packet.last]
}

func (v *VM) length() int { return v.packet.last - v.packet.first }

// contextField returns fields of the context that the kernel computes, rather than its memory.
func (v *VM) contextField(offset, size int) (uint64, bool) {
	if size != 4 {
		return 0, false
	}
	first, last := v.packet.address+uint64(v.packet.first), v.packet.address+uint64(v.packet.last)
	meta := v.packet.address + uint64(v.meta)
	if v.p.xdp {
		n, is := map[int]uint64{xdpData: first, xdpEnd: last, xdpMeta: meta}[offset]
		return n, is
	}
	n, is := map[int]uint64{skbData: first, skbEnd: last, skbMeta: first, skbLen: uint64(v.length())}[offset]
	return n, is
}

// at returns bytes of the packet, or nil if it is shorter.
func (v *VM) at(offset, size uint64) []byte {
	if size > uint64(v.length()) || offset > uint64(v.length())-size {
		return nil
	}
	return v.packet.mem[v.packet.first+int(offset):][:size]
}

// loadBytes is bpf_skb_load_bytes and bpf_xdp_load_bytes.
func (v *VM) loadBytes(a [5]uint64) uint64 {
	to := v.memory(a[2], int(uint32(a[3])))
	from := v.at(uint64(uint32(a[1])), uint64(len(to)))
	if from == nil {
		if !v.p.xdp {
			clear(to)
			return errno(unix.EFAULT)
		}
		return errno(unix.EINVAL)
	}
	copy(to, from)
	return 0
}

// loadRelative is bpf_skb_load_bytes_relative.
func (v *VM) loadRelative(a [5]uint64) uint64 {
	if a[4] == 1 { // BPF_HDR_START_NET
		a[1] += uint64(v.network)
	}
	return v.loadBytes(a)
}

// storeBytes is bpf_skb_store_bytes and bpf_xdp_store_bytes.
func (v *VM) storeBytes(a [5]uint64) uint64 {
	from := v.memory(a[2], int(uint32(a[3])))
	to := v.at(uint64(uint32(a[1])), uint64(len(from)))
	if to == nil {
		if v.p.xdp {
			return errno(unix.EINVAL)
		}
		return errno(unix.EFAULT)
	}
	copy(to, from)
	return 0
}

// pullData is bpf_skb_pull_data: all bytes are in the linear part already.
func (v *VM) pullData(a [5]uint64) uint64 {
	if int(uint32(a[1])) > v.length() {
		return errno(unix.ENOMEM)
	}
	return 0
}

const notSupported = unix.Errno(524) // ENOTSUPP

// grow inserts bytes at an offset, or removes them.
func (v *VM) grow(offset, by int) {
	moved := append([]byte(nil), v.packet.mem[v.packet.first:v.packet.first+offset]...)
	v.packet.first -= by
	if v.packet.first < 0 {
		fail("no room before the packet")
	}
	copy(v.packet.mem[v.packet.first:], moved)
	if by > 0 {
		clear(v.packet.mem[v.packet.first+offset:][:by])
	}
}

// adjustRoom is bpf_skb_adjust_room.
func (v *VM) adjustRoom(a [5]uint64) uint64 {
	const net, mac = 0, 1
	by := int(int32(a[1]))
	base, known := map[uint16]int{unix.ETH_P_IP: 20, unix.ETH_P_IPV6: 40}[v.protocol()]
	if !known {
		return errno(notSupported)
	}
	offset := v.network
	if a[2] == net {
		offset += base
	}
	if by < 0 && (-by >= v.length()-v.network || v.length()-v.network+by < base) {
		return errno(notSupported)
	}
	v.grow(offset, by)
	return 0
}

func (v *VM) protocol() uint16 {
	return binary.BigEndian.Uint16(v.context.mem[skbProtocol:])
}

// changeTail is bpf_skb_change_tail.
func (v *VM) changeTail(a [5]uint64) uint64 {
	size := int(uint32(a[1]))
	if a[2] != 0 || size < v.network {
		return errno(unix.EINVAL)
	}
	return v.resize(size)
}

// adjustTail is bpf_xdp_adjust_tail.
func (v *VM) adjustTail(a [5]uint64) uint64 {
	size := v.length() + int(int32(a[1]))
	if size < ethernet || v.packet.first+size > 4096-320 {
		return errno(unix.EINVAL)
	}
	return v.resize(size)
}

func (v *VM) resize(size int) uint64 {
	if v.packet.first+size > len(v.packet.mem) {
		return errno(unix.EINVAL)
	}
	if grown := size - v.length(); grown > 0 {
		clear(v.packet.mem[v.packet.last:][:grown])
	}
	v.packet.last = v.packet.first + size
	return 0
}

// changeHead is bpf_skb_change_head.
func (v *VM) changeHead(a [5]uint64) uint64 {
	v.grow(0, int(uint32(a[1])))
	v.network += int(uint32(a[1]))
	return 0
}

// adjustHead is bpf_xdp_adjust_head.
func (v *VM) adjustHead(a [5]uint64) uint64 {
	const frameHeader = 40 // struct xdp_frame
	by := int(int32(a[1]))
	meta := v.packet.first - v.meta
	first := v.packet.first + by
	if first < frameHeader+meta || first > v.packet.last-ethernet {
		return errno(unix.EINVAL)
	}
	copy(v.packet.mem[first-meta:first], v.packet.mem[v.meta:v.packet.first])
	v.packet.first, v.meta = first, first-meta
	return 0
}

// adjustMeta is bpf_xdp_adjust_meta.
func (v *VM) adjustMeta(a [5]uint64) uint64 {
	meta := v.meta + int(int32(a[1]))
	if meta > v.packet.first {
		return errno(unix.EINVAL)
	}
	if size := v.packet.first - meta; size%4 != 0 || size > 252 || meta < 40 {
		return errno(unix.EACCES)
	}
	v.meta = meta
	return 0
}
