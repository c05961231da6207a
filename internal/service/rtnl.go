// SPDX-License-Identifier: Apache-2.0

package service

import (
	"fmt"
	"iter"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// noNSID stands for "our own namespace" in requests, and for "no id" in what
// the kernel says of a link's peer or of a namespace.
const noNSID int32 = -1

// Numbers that golang.org/x/sys does not name.
const (
	ifaTargetNetnsid = 10     // IFA_TARGET_NETNSID, Linux 4.20
	iflaXDPDrvProgID = 5      // IFLA_XDP_DRV_PROG_ID, Linux 4.18
	skipStats        = 1 << 3 // RTEXT_FILTER_SKIP_STATS
)

// rawLink is a link as the kernel dumps it.
type rawLink struct {
	Link
	peerIndex int
	peerNSID  int32 // noNSID if the peer is in the same namespace
	xdp       bool  // it has an XDP program in its driver
}

// rawAddr is an address and the link that has it.
type rawAddr struct {
	ifindex int
	prefix  netip.Prefix
}

// links dumps the links of a peer namespace, or of our own for noNSID.
func (c *conn) links(nsid int32) ([]rawLink, error) {
	data := []nl.NetlinkRequestData{
		nl.NewIfInfomsg(unix.AF_UNSPEC),
		nl.NewRtAttr(unix.IFLA_EXT_MASK, nl.Uint32Attr(skipStats)),
	}
	if nsid != noNSID {
		data = append(data, nl.NewRtAttr(unix.IFLA_TARGET_NETNSID, nl.Uint32Attr(uint32(nsid))))
	}
	msgs, err := c.execute(unix.RTM_GETLINK, unix.NLM_F_DUMP, unix.RTM_NEWLINK, data...)
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	links := make([]rawLink, 0, len(msgs))
	for _, m := range msgs {
		links = append(links, parseLink(m))
	}
	return links, nil
}

// parseLink reads an RTM_NEWLINK (rtnetlink(7)). Attributes that Kerb has no use for are skipped; noNSID is the
// namespace of a peer that is in the same one.
func parseLink(msg []byte) rawLink {
	head := nl.DeserializeIfInfomsg(msg)
	l := rawLink{peerNSID: noNSID}
	l.Ifindex, l.Type = int(head.Index), head.Type
	for kind, value := range attributes(msg[head.Len():]) {
		switch kind {
		case unix.IFLA_IFNAME:
			l.Name = nl.BytesToString(value)
		case unix.IFLA_MTU:
			l.MTU = int(number(value))
		case unix.IFLA_ADDRESS:
			l.MAC = net.HardwareAddr(value)
		case unix.IFLA_LINK:
			l.peerIndex = int(number(value))
		case unix.IFLA_LINK_NETNSID:
			l.peerNSID = int32(number(value))
		case unix.IFLA_LINKINFO:
			for kind, value := range attributes(value) {
				if kind == unix.IFLA_INFO_KIND {
					l.Kind = nl.BytesToString(value)
				}
			}
		case unix.IFLA_XDP:
			for kind := range attributes(value) {
				l.xdp = l.xdp || kind == iflaXDPDrvProgID
			}
		}
	}
	return l
}

// attributes are those of a message of the kernel (rtnetlink(7)), by type. Of a link there are some fifty, and a slice
// of them would be most of what a scan leaves as garbage.
func attributes(b []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for len(b) >= unix.SizeofRtAttr {
			size := int(nl.NativeEndian().Uint16(b))
			if size < unix.SizeofRtAttr || size > len(b) ||
				!yield(nl.NativeEndian().Uint16(b[2:])&^unix.NLA_F_NESTED, b[unix.SizeofRtAttr:size]) {
				return
			}
			b = b[min((size+unix.RTA_ALIGNTO-1)&^(unix.RTA_ALIGNTO-1), len(b)):]
		}
	}
}

// number reads an attribute of 32 bits in the machine's byte order.
func number(value []byte) uint32 {
	if len(value) < 4 {
		return 0
	}
	return nl.NativeEndian().Uint32(value)
}

// addresses dumps the addresses of a peer namespace, or of our own for noNSID. Since Linux 6.10 the kernel does so
// without the lock of network configuration, but not if it is asked for all families at once.
func (c *conn) addresses(nsid int32) (all []rawAddr, err error) {
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		data := []nl.NetlinkRequestData{&nl.IfAddrmsg{IfAddrmsg: unix.IfAddrmsg{Family: uint8(family)}}}
		if nsid != noNSID {
			data = append(data, nl.NewRtAttr(ifaTargetNetnsid, nl.Uint32Attr(uint32(nsid))))
		}
		msgs, err := c.execute(unix.RTM_GETADDR, unix.NLM_F_DUMP, unix.RTM_NEWADDR, data...)
		if err != nil {
			return nil, fmt.Errorf("list addresses: %w", err)
		}
		for _, m := range msgs {
			// A kernel without a family answers with all others.
			if a := parseAddr(m); a.prefix.IsValid() && int(nl.DeserializeIfAddrmsg(m).Family) == family {
				all = append(all, a)
			}
		}
	}
	return all, nil
}

// parseAddr prefers IFA_LOCAL: on point-to-point links IFA_ADDRESS is the
// other side's.
func parseAddr(msg []byte) rawAddr {
	head := nl.DeserializeIfAddrmsg(msg)
	attrs, err := nl.ParseRouteAttr(msg[head.Len():])
	if err != nil {
		return rawAddr{}
	}
	var local, address netip.Addr
	for _, a := range attrs {
		switch a.Attr.Type {
		case unix.IFA_LOCAL:
			local, _ = netip.AddrFromSlice(a.Value)
		case unix.IFA_ADDRESS:
			address, _ = netip.AddrFromSlice(a.Value)
		}
	}
	if !local.IsValid() {
		local = address
	}
	return rawAddr{ifindex: int(head.Index), prefix: netip.PrefixFrom(local, int(head.Prefixlen))}
}

// nsidOf asks for the id that our namespace has for another one, which is
// given by NETNSA_FD or NETNSA_PID. The kernel hands out ids when a link with
// a peer there is dumped, so ask after a dump; noNSID means no such link.
func (c *conn) nsidOf(attr int, value int) (int32, error) {
	msgs, err := c.execute(unix.RTM_GETNSID, 0, unix.RTM_NEWNSID,
		nl.NewRtGenMsg(), nl.NewRtAttr(attr, nl.Uint32Attr(uint32(value))))
	if err != nil {
		return noNSID, err
	}
	for _, m := range msgs {
		attrs, err := nl.ParseRouteAttr(m[nl.NewRtGenMsg().Len():])
		if err != nil {
			return noNSID, err
		}
		for _, a := range attrs {
			if a.Attr.Type == netlink.NETNSA_NSID {
				return int32(number(a.Value)), nil
			}
		}
	}
	return noNSID, nil
}
