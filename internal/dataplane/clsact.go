// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"errors"
	"fmt"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Before Linux 6.6 there is no TCX: the chain is a cls_bpf filter in direct-action mode on the clsact qdisc, found again
// by its handle and name. The qdisc is shared with others and therefore never deleted.
const (
	clsactHandle    = 0x6b657262 // "kerb"
	clsactFirst     = 1
	clsactLast      = 0xbffe
	clsactNameStart = "kerb_"
)

func clsactParent(s Side) uint32 {
	if s == OnTCEgress {
		return netlink.HANDLE_MIN_EGRESS
	}
	return netlink.HANDLE_MIN_INGRESS
}

func attachClsact(p Point, prog *ebpf.Program, last bool) error {
	qdisc := &netlink.GenericQdisc{QdiscType: "clsact", QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: p.Ifindex, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}}
	if err := netlink.QdiscAdd(qdisc); err != nil && !errors.Is(err, unix.EEXIST) {
		return attachError(p, err)
	}
	info, err := prog.Info()
	if err != nil {
		return err
	}
	if err := netlink.FilterReplace(clsactFilter(p, prog.FD(), info.Name, last)); err != nil {
		return attachError(p, err)
	}
	return nil
}

func clsactFilter(p Point, fd int, name string, last bool) *netlink.BpfFilter {
	priority := uint16(clsactFirst)
	if last {
		priority = clsactLast
	}
	return &netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{LinkIndex: p.Ifindex, Parent: clsactParent(p.Side), Handle: clsactHandle, Protocol: unix.ETH_P_ALL, Priority: priority},
		Fd:          fd, Name: name, DirectAction: true,
	}
}

func detachClsact(p Point) error {
	found, err := listClsact(p)
	if err != nil || found == nil {
		return err
	}
	if err := netlink.FilterDel(found); err != nil && !errors.Is(err, unix.ENODEV) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("detach from %s: %w", p, err)
	}
	return nil
}

// listClsact returns Kerb's own filter on a point, nil if there is none.
func listClsact(p Point) (*netlink.BpfFilter, error) {
	l, err := netlink.LinkByIndex(p.Ifindex)
	var missing netlink.LinkNotFoundError
	if errors.As(err, &missing) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	filters, err := netlink.FilterList(l, clsactParent(p.Side))
	if err != nil {
		return nil, nil // no clsact qdisc
	}
	for _, f := range filters {
		b, ok := f.(*netlink.BpfFilter)
		if ok && b.Handle == clsactHandle && strings.HasPrefix(b.Name, clsactNameStart) {
			return b, nil
		}
	}
	return nil, nil
}

// readClsact looks at every interface of the node.
func readClsact() ([]Attached, error) {
	links, err := netlink.LinkList()
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, err
	}
	var out []Attached
	for _, l := range links {
		for _, side := range []Side{OnTCIngress, OnTCEgress} {
			p := Point{Ifindex: l.Attrs().Index, Side: side}
			f, err := listClsact(p)
			if err != nil {
				return nil, err
			}
			if f != nil {
				out = append(out, Attached{Point: p, Program: ebpf.ProgramID(f.Id), Mode: ModeClsact})
			}
		}
	}
	return out, nil
}
