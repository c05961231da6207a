// SPDX-License-Identifier: Apache-2.0

// Package clsact attaches and lists BPF programs that are filters of the qdisc clsact, in direct-action mode. With
// netlink.FilterReplace and netlink.FilterList, every type of filter and action would be part of the binary.
package clsact

import (
	"encoding/binary"
	"errors"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/chain"
)

// Filter is a BPF program on one side of an interface. The kernel finds it by priority and handle.
type Filter struct {
	Priority uint16 // the lowest runs first
	Handle   uint32 // 0 lets the kernel choose
	Name     string
	Program  uint32 // its ID, 0 on kernels that do not report it
}

// AddQdisc adds the qdisc. The error is unix.EEXIST where there is one.
func AddQdisc(ifindex int) error {
	req := request(unix.RTM_NEWQDISC, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK,
		nl.TcMsg{Ifindex: int32(ifindex), Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT})
	req.AddData(nl.NewRtAttr(nl.TCA_KIND, nl.ZeroTerminated("clsact")))
	return execute(req)
}

// Set attaches the program with a descriptor. It replaces a filter that has the same priority and handle atomically.
func Set(p chain.Point, f Filter, fd int) error {
	req := modify(unix.RTM_NEWTFILTER, unix.NLM_F_CREATE, p, f)
	options := nl.NewRtAttr(nl.TCA_OPTIONS, nil)
	options.AddRtAttr(nl.TCA_BPF_FD, nl.Uint32Attr(uint32(fd)))
	options.AddRtAttr(nl.TCA_BPF_NAME, nl.ZeroTerminated(f.Name))
	options.AddRtAttr(nl.TCA_BPF_FLAGS, nl.Uint32Attr(nl.TCA_BPF_FLAG_ACT_DIRECT))
	req.AddData(options)
	return execute(req)
}

// Delete removes a filter.
func Delete(p chain.Point, f Filter) error { return execute(modify(unix.RTM_DELTFILTER, 0, p, f)) }

// List returns the BPF programs of a point in the order in which they run; none where there is no such interface or
// qdisc. With netlink.ErrDumpInterrupted it returns what it has, which may lack some.
func List(p chain.Point) ([]Filter, error) {
	req := request(unix.RTM_GETTFILTER, unix.NLM_F_DUMP, nl.TcMsg{Ifindex: int32(p.Ifindex), Parent: parent(p.Side)})
	msgs, interrupted := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWTFILTER)
	if interrupted != nil && !errors.Is(interrupted, netlink.ErrDumpInterrupted) {
		return nil, interrupted
	}
	var out []Filter
	for _, m := range msgs {
		head := nl.DeserializeTcMsg(m)
		options, err := bpfOptions(m[head.Len():])
		if err != nil {
			return nil, err
		}
		if options == nil {
			continue // of another type, or the head of a list of filters
		}
		f := Filter{Priority: uint16(head.Info >> 16), Handle: head.Handle}
		for _, o := range options {
			switch o.Attr.Type {
			case nl.TCA_BPF_NAME:
				f.Name = unix.ByteSliceToString(o.Value)
			case nl.TCA_BPF_ID:
				f.Program = binary.NativeEndian.Uint32(o.Value)
			}
		}
		out = append(out, f)
	}
	return out, interrupted
}

// bpfOptions returns the options of a filter whose attributes these are, nil if it is no BPF program.
func bpfOptions(attributes []byte) ([]syscall.NetlinkRouteAttr, error) {
	all, err := nl.ParseRouteAttr(attributes)
	isBPF := false
	for _, a := range all {
		switch a.Attr.Type {
		case nl.TCA_KIND:
			isBPF = unix.ByteSliceToString(a.Value) == "bpf"
		case nl.TCA_OPTIONS:
			if isBPF {
				return nl.ParseRouteAttr(a.Value)
			}
		}
	}
	return nil, err
}

func parent(s chain.Side) uint32 {
	if s == chain.OnTCEgress {
		return netlink.HANDLE_MIN_EGRESS
	}
	return netlink.HANDLE_MIN_INGRESS
}

func modify(command, flags int, p chain.Point, f Filter) *nl.NetlinkRequest {
	req := request(command, flags|unix.NLM_F_ACK, nl.TcMsg{Ifindex: int32(p.Ifindex), Handle: f.Handle,
		Parent: parent(p.Side), Info: netlink.MakeHandle(f.Priority, nl.Swap16(unix.ETH_P_ALL))})
	req.AddData(nl.NewRtAttr(nl.TCA_KIND, nl.ZeroTerminated("bpf")))
	return req
}

func request(command, flags int, m nl.TcMsg) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(command, flags)
	req.AddData(&m)
	return req
}

func execute(req *nl.NetlinkRequest) error {
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}
