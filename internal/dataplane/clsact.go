// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"errors"
	"fmt"
	"hash/fnv"
	"path/filepath"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/chain"
)

// Before Linux 6.6 there is no TCX: the chain is a cls_bpf filter in direct-action mode on the clsact qdisc, found
// again by its handle and name. The qdisc is shared with others and therefore never deleted.
const (
	clsactFirst     = 1
	clsactLast      = 0xbffe
	clsactNameStart = "kerb_"
)

func clsactParent(s chain.Side) uint32 {
	if s == chain.OnTCEgress {
		return netlink.HANDLE_MIN_EGRESS
	}
	return netlink.HANDLE_MIN_INGRESS
}

// clsactHandle tells the filters of one agent from those of another one, which has its pins elsewhere.
func (l layout) clsactHandle() uint32 {
	h := fnv.New32a()
	h.Write([]byte(filepath.Clean(l.root)))
	return h.Sum32()&0x7fffffff | 1 // 0 lets the kernel choose
}

// attachClsact attaches a program as a filter of the qdisc clsact, on kernels before TCX (Linux 6.6). A qdisc that is
// there already, as CNI plugins leave one, is shared.
func (d *Dataplane) attachClsact(p chain.Point, prog *ebpf.Program) error {
	qdisc := &netlink.GenericQdisc{QdiscType: "clsact", QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: p.Ifindex, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}}
	if err := netlink.QdiscAdd(qdisc); err != nil && !errors.Is(err, unix.EEXIST) {
		return attachError(p, err)
	}
	info, err := prog.Info()
	if err != nil {
		return err
	}
	if err := netlink.FilterReplace(d.clsactFilter(p, prog.FD(), info.Name)); err != nil {
		return attachError(p, err)
	}
	return nil
}

// clsactFilter identifies Kerb's filter by priority and handle: replacing a filter with the same ones is atomic, so
// that no packet passes between two chains.
func (d *Dataplane) clsactFilter(p chain.Point, fd int, name string) *netlink.BpfFilter {
	priority := uint16(clsactFirst)
	if d.opts.Last {
		priority = clsactLast
	}
	return &netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{LinkIndex: p.Ifindex, Parent: clsactParent(p.Side), Handle: d.layout.clsactHandle(),
			Protocol: unix.ETH_P_ALL, Priority: priority},
		Fd: fd, Name: name, DirectAction: true,
	}
}

func (d *Dataplane) detachClsact(p chain.Point) error {
	found, err := d.listClsact(p)
	if err != nil || found == nil {
		return err
	}
	if err := netlink.FilterDel(found); err != nil && !errors.Is(err, unix.ENODEV) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("detach from %s: %w", p, err)
	}
	return nil
}

// listClsact returns Kerb's own filter on a point, nil if there is none.
func (d *Dataplane) listClsact(p chain.Point) (*netlink.BpfFilter, error) {
	l, err := netlink.LinkByIndex(p.Ifindex)
	var missing netlink.LinkNotFoundError
	if errors.As(err, &missing) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	filters, err := netlink.FilterList(l, clsactParent(p.Side))
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, nil // no clsact qdisc
	}
	for _, f := range filters {
		b, ok := f.(*netlink.BpfFilter)
		if ok && b.Handle == d.layout.clsactHandle() && strings.HasPrefix(b.Name, clsactNameStart) {
			return b, nil
		}
	}
	return nil, err // nil, or the list may lack it
}

// readClsact examines every interface of the node.
func (d *Dataplane) readClsact() ([]chain.Attached, error) {
	links, err := netlink.LinkList()
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, err
	}
	var out []chain.Attached
	for _, l := range links {
		for _, side := range []chain.Side{chain.OnTCIngress, chain.OnTCEgress} {
			p := chain.Point{Ifindex: l.Attrs().Index, Side: side}
			f, err := d.listClsact(p)
			if err != nil {
				return nil, err
			}
			if f != nil {
				out = append(out, chain.Attached{Point: p, Program: uint32(f.Id), Mode: ModeClsact})
			}
		}
	}
	return out, nil
}
