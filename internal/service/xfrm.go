// SPDX-License-Identifier: Apache-2.0

package service

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sort"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/sdk"
)

// Numbers of linux/xfrm.h that the netlink library does not name.
const (
	xfrmMsgGetDefault = 0x28 // Linux 5.15
	xfrmActionBlock   = 1
)

var xfrmDirections = []string{sdk.IPsecIn, sdk.IPsecOut, sdk.IPsecForward} // by XFRM_POLICY_*

// maxPolicies bounds the policies that the agent passes to control planes.
const maxPolicies = 4096

// xfrm is an XFRM netlink socket. Listing policies needs CAP_NET_ADMIN in the namespace, which control planes do not
// have.
type xfrm struct {
	conn *conn
	err  error // why there is no socket
}

// openXfrm opens a socket in the namespace of the calling thread.
func openXfrm() xfrm {
	c, err := dialNetlink(unix.NETLINK_XFRM)
	return xfrm{c, err}
}

func (x *xfrm) close() {
	if x.conn != nil {
		x.conn.close()
	}
}

// policies lists the policies that packets without a mark meet. A kernel without XFRM has none.
func (x *xfrm) policies() *sdk.IPsec {
	if errors.Is(x.err, unix.EPROTONOSUPPORT) {
		return &sdk.IPsec{}
	}
	all, err := x.list()
	if err != nil {
		return &sdk.IPsec{Error: fmt.Sprintf("list IPsec policies: %v", err)}
	}
	return &sdk.IPsec{Policies: all}
}

// list returns the IPsec policies of the node in the order in which the kernel finds them, by priority, and the
// defaults last.
func (x *xfrm) list() ([]sdk.IPsecPolicy, error) {
	if x.err != nil {
		return nil, x.err
	}
	msgs, err := x.conn.execute(nl.XFRM_MSG_GETPOLICY, unix.NLM_F_DUMP, 0)
	if err != nil {
		return nil, err
	}
	var out []sdk.IPsecPolicy
	for _, m := range msgs {
		p, applies, err := parsePolicy(m)
		if err != nil {
			return nil, err
		}
		if applies {
			out = append(out, p)
		}
	}
	if len(out) > maxPolicies {
		return nil, fmt.Errorf("%d found, more than %d", len(out), maxPolicies)
	}
	sort.SliceStable(out, func(i, j int) bool {
		a, b := &out[i], &out[j]
		// Among those of one priority it is not known which one the kernel finds first: the allowing ones come last.
		return cmp.Or(cmp.Compare(a.Priority, b.Priority), -cmp.Compare(a.Action, b.Action),
			cmp.Compare(a.Index, b.Index)) < 0
	})
	return append(out, x.conn.defaults()...), nil
}

// parsePolicy reads a struct xfrm_userpolicy_info with its attributes. Policies of sockets, of XFRM interfaces and for
// marked packets do not apply to what is neither.
func parsePolicy(m []byte) (p sdk.IPsecPolicy, applies bool, err error) {
	if len(m) < nl.SizeofXfrmUserpolicyInfo {
		return p, false, errors.New("short message")
	}
	info := nl.DeserializeXfrmUserpolicyInfo(m)
	attrs, err := nl.ParseRouteAttr(m[nl.SizeofXfrmUserpolicyInfo:])
	if err != nil || int(info.Dir) >= len(xfrmDirections) {
		return p, false, err
	}
	sel := &info.Sel
	p = sdk.IPsecPolicy{Direction: xfrmDirections[info.Dir], Action: sdk.IPsecAllow, Index: info.Index,
		Priority: info.Priority,
		Source:   selected(sel.Family, sel.Saddr, sel.PrefixlenS), Destination: selected(sel.Family, sel.Daddr,
			sel.PrefixlenD), Protocol: sel.Proto,
		SourcePort: portMask(sel.Sport, sel.SportMask), DestinationPort: portMask(sel.Dport, sel.DportMask),
		Ifindex: uint32(sel.Ifindex)}
	for _, a := range attrs {
		switch {
		case a.Attr.Type == nl.XFRMA_TMPL && len(a.Value) > 0:
			p.Action = sdk.IPsecProtect
		case a.Attr.Type == nl.XFRMA_IF_ID && number(a.Value) != 0:
			return p, false, nil
		case a.Attr.Type == nl.XFRMA_MARK && number(a.Value) != 0:
			return p, false, nil
		}
	}
	if info.Action == xfrmActionBlock {
		p.Action = sdk.IPsecBlock
	}
	return p, true, nil
}

// selected returns the prefix of a policy's selector (struct xfrm_selector, network byte order), the zero Prefix for a
// family other than IPv4 and IPv6.
func selected(family uint16, addr nl.XfrmAddress, bits uint8) netip.Prefix {
	switch family {
	case unix.AF_INET:
		return netip.PrefixFrom(netip.AddrFrom4([4]byte(addr[:4])), int(bits)).Masked()
	case unix.AF_INET6:
		return netip.PrefixFrom(netip.AddrFrom16(addr), int(bits)).Masked()
	}
	return netip.Prefix{}
}

// portMask converts from network byte order.
func portMask(port, mask uint16) sdk.PortMask {
	swap := func(v uint16) uint16 { return binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, v)) }
	return sdk.PortMask{Port: swap(port), Mask: swap(mask)}
}

// defaults are the policies for what no other matches, where they block (ip xfrm policy setdefault). Older kernels have
// none.
func (c *conn) defaults() (out []sdk.IPsecPolicy) {
	msgs, err := c.execute(xfrmMsgGetDefault, 0, 0, rawData{0, 0, 0, 0})
	if err != nil || len(msgs) == 0 || len(msgs[0]) < 3 {
		return nil
	}
	for i, direction := range []string{sdk.IPsecIn, sdk.IPsecForward, sdk.IPsecOut} { // struct xfrm_userpolicy_default
		if msgs[0][i] == xfrmActionBlock {
			out = append(out, sdk.IPsecPolicy{Direction: direction, Action: sdk.IPsecBlock, Priority: 1<<32 - 1})
		}
	}
	return out
}

// rawData is the body of a request.
type rawData []byte

func (d rawData) Len() int          { return len(d) }
func (d rawData) Serialize() []byte { return d }

// subscribeXfrm opens a socket for changes of policies, or returns -1 if the kernel has none.
func subscribeXfrm() (int, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_XFRM)
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return -1, nil
	}
	if err != nil {
		return -1, err
	}
	const groups = 1<<(nl.XFRMNLGRP_POLICY-1) | 1<<(nl.XFRMNLGRP_EXPIRE-1)
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups}); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// drainXfrm discards events, lost ones included: each means that the policies are listed again.
func (e *events) drainXfrm() {
	for range 256 {
		if _, err := unix.Read(e.xfrm, e.buf); errors.Is(err, unix.EAGAIN) {
			return
		}
	}
}
