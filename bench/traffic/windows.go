// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/gopacket/gopacket/layers"

	abi "github.com/kerb-edge/kerb/internal/kerbabi"
	"github.com/kerb-edge/kerb/internal/packet"
	"github.com/kerb-edge/kerb/modules/classifier/extract"
)

var be = binary.BigEndian

// Options are the settings of the module's config that determine what is counted.
type Options struct {
	extract.Config
	Extractor string // rpl or flow
	Frames    string // rpl: raw, ethernet or zep, the encapsulation of frames in captures of Ethernet
	EtherType uint16
	Port      uint16 // of ZEP
	Checksum  bool   // frames inside Ethernet have an FCS
	Local     []netip.Prefix
}

// Window has the counts of a source, in the order of the extractor's features.
type Window struct {
	Time   uint64 // end, in ns since 1970
	Source string
	Values []int64
}

// counter counts the packets of one interface of a capture. As in the data plane, sources of different interfaces are
// distinct.
type counter struct {
	*Options
	rpl   *extract.RPL
	flows *extract.Flows
}

// Windows calls do for the windows of a capture, in the order of their ends. It skips windows that end after the
// capture. Unlike the data plane, it tracks any number of sources from their first packet on.
func (o *Options) Windows(file string, do func(Window) error) error {
	counters, slice := map[int]*counter{}, uint64(0)
	length := uint64(o.Window)
	if o.Sliding {
		length /= 4
	}
	if length == 0 {
		return fmt.Errorf("window %v: must be at least 100ms", o.Window)
	}
	return readCapture(file, func(p *recorded) error {
		if n := p.time / length; n != slice {
			slice = n
			if err := lapse(counters, p.time, do); err != nil {
				return err
			}
		}
		c := counters[p.iface]
		if c == nil {
			c = &counter{o, extract.NewRPL(o.Config), extract.NewFlows(o.Config)}
			counters[p.iface] = c
		}
		if o.Extractor == "flow" {
			return c.flow(p)
		}
		return c.frame(p)
	})
}

func lapse(counters map[int]*counter, now uint64, do func(Window) error) error {
	var all []Window
	for _, c := range counters {
		for _, w := range c.rpl.Lapse(now) {
			all = append(all, Window{w.Time, nodeName(w.Source), w.Values})
		}
		for _, w := range c.flows.Lapse(now) {
			all = append(all, Window{w.Time, flowName(w.Source), w.Values})
		}
	}
	slices.SortStableFunc(all, func(a, b Window) int {
		return cmp.Or(cmp.Compare(a.Time, b.Time), cmp.Compare(a.Source, b.Source))
	})
	for _, w := range all {
		if err := do(w); err != nil {
			return err
		}
	}
	return nil
}

// frame counts the frame of IEEE 802.15.4 in a packet, if there is one.
func (c *counter) frame(p *recorded) error {
	b, cut := p.data, 0
	switch layers.LinkType(p.link) {
	case ieee802154:
		cut = fcsLength
	case ieee802154NoFCS:
	case layers.LinkTypeEthernet:
		b = c.inEthernet(b)
		if c.Checksum || c.Frames == "zep" {
			cut = fcsLength
		}
	default:
		return fmt.Errorf("link type %d: extractor rpl supports IEEE 802.15.4 (195, 230) and Ethernet (1)", p.link)
	}
	if len(b) > cut {
		c.rpl.Frame(p.time, b[:len(b)-cut])
	}
	return nil
}

// inEthernet returns the 802.15.4 frame, with its FCS, in an Ethernet frame.
func (c *counter) inEthernet(b []byte) []byte {
	head := packet.Dissect(b)
	if c.Frames == "ethernet" {
		if head.EthType != c.EtherType || head.Outcome != abi.ParseNotIP {
			return nil
		}
		return b[head.L3:]
	}
	if head.Flags&abi.FlagL4 == 0 || head.Proto != 17 {
		return nil
	}
	udp := b[head.L4:]
	if be.Uint16(udp) != c.Port && be.Uint16(udp[2:]) != c.Port {
		return nil
	}
	return zep(udp[8:])
}

// zep returns the frame in a message of the ZigBee encapsulation protocol, as decoded by Wireshark.
func zep(b []byte) []byte {
	header, length := 16, 15
	switch {
	case len(b) < 16 || b[0] != 'E' || b[1] != 'X':
		return nil
	case b[2] == 2 && b[3] == 1: // version 2, data
		header, length = 32, 31
	case b[2] != 1:
		return nil
	}
	if len(b) < header || len(b) < header+int(b[length]) {
		return nil
	}
	return b[header : header+int(b[length])]
}

// flow counts an IP packet.
func (c *counter) flow(p *recorded) error {
	b := p.data
	switch layers.LinkType(p.link) {
	case layers.LinkTypeEthernet:
	case layers.LinkTypeRaw, layers.LinkTypeIPv4, layers.LinkTypeIPv6, layers.LinkType(12):
		b = append(make([]byte, 14, 14+len(b)), b...)
		be.PutUint16(b[12:], 0x0800)
		if len(b) > 14 && b[14]>>4 == 6 {
			be.PutUint16(b[12:], 0x86dd)
		}
	default:
		return fmt.Errorf("link type %d: extractor flow supports Ethernet (1) and IP (101)", p.link)
	}
	if missing := p.length - len(p.data); missing > 0 { // only headers and lengths are read
		b = append(slices.Clip(b), make([]byte, missing)...)
	}
	head := packet.Dissect(b)
	if head.Family == 0 {
		return nil
	}
	c.flows.Packet(p.time, c.packet(b, &head))
	return nil
}

func (c *counter) packet(b []byte, head *abi.Packet) *extract.Packet {
	ip, at, size := b[head.L3:], 12, 4
	if head.Family == 6 {
		at, size = 8, 16
	}
	src, dst := address(ip[at:at+size]), address(ip[at+size:at+2*size])
	out := &extract.Packet{FromLocal: c.isLocal(src), Length: head.L4 - head.L3 + uint64(head.L4Len),
		Later: head.Flags&abi.FlagFragLater != 0}
	out.Proto, out.Remote, out.Local = head.Proto, src, dst
	transport := uint32(0)
	if head.Flags&abi.FlagL4 != 0 {
		transport = 8
		l4 := b[head.L4:]
		if head.Proto == 6 || head.Proto == 17 {
			out.RemotePort, out.LocalPort = be.Uint16(l4), be.Uint16(l4[2:])
		}
		if head.Proto == 6 {
			transport, out.Flags = uint32(l4[12]>>4)*4, l4[13]
		}
	}
	out.Payload = head.L4Len > transport
	if out.FromLocal {
		out.Remote, out.Local, out.RemotePort, out.LocalPort = dst, src, out.LocalPort, out.RemotePort
	}
	return out
}

func address(b []byte) netip.Addr {
	a, _ := netip.AddrFromSlice(b)
	return netip.AddrFrom16(a.As16())
}

func (o *Options) isLocal(a netip.Addr) bool {
	return slices.ContainsFunc(o.Local, func(p netip.Prefix) bool { return p.Contains(a.Unmap()) })
}

// nodeName and flowName return the names of sources in the API of the module.
func nodeName(n extract.Node) string {
	a := [16]byte{0xfe, 0x80}
	be.PutUint64(a[8:], n.ID)
	return netip.AddrFrom16(a).String()
}

var protocols = map[uint8]string{1: "icmp", 6: "tcp", 17: "udp", 58: "icmpv6", 132: "sctp"}

func flowName(f extract.Flow) string {
	if !f.Local.IsValid() {
		return f.Remote.Unmap().String()
	}
	protocol, ok := protocols[f.Proto]
	if !ok {
		protocol = strconv.Itoa(int(f.Proto))
	}
	return fmt.Sprintf("%s-%v-%v", protocol, netip.AddrPortFrom(f.Remote.Unmap(), f.RemotePort),
		netip.AddrPortFrom(f.Local.Unmap(), f.LocalPort))
}

// seconds formats a time for tables.
func seconds(ns uint64) string {
	return strconv.FormatFloat(time.Duration(ns).Seconds(), 'f', -1, 64)
}
