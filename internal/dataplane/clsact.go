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
	"github.com/kerb-edge/kerb/internal/clsact"
)

// Before Linux 6.6 there is no TCX: the chain is a cls_bpf filter in direct-action mode on the clsact qdisc, and is
// found again by its handle and name. The qdisc is shared with other programs and therefore never deleted.
const (
	clsactFirst     = 1
	clsactLast      = 0xbffe
	clsactNameStart = "kerb_"
)

// clsactHandle distinguishes the filters of agents that have different pin directories.
func (l layout) clsactHandle() uint32 {
	h := fnv.New32a()
	h.Write([]byte(filepath.Clean(l.root)))
	return h.Sum32()&0x7fffffff | 1 // 0 lets the kernel choose
}

// attachClsact attaches a program as a filter of the clsact qdisc, on kernels before TCX (Linux 6.6). It shares an
// existing qdisc, such as one left by a CNI plugin.
func (d *Dataplane) attachClsact(p chain.Point, prog *ebpf.Program) error {
	if err := clsact.AddQdisc(p.Ifindex); err != nil && !errors.Is(err, unix.EEXIST) {
		return attachError(p, err)
	}
	info, err := prog.Info()
	if err != nil {
		return err
	}
	// Kerb's filter always has the same priority and handle: it is replaced atomically, and no packet passes in between.
	f := clsact.Filter{Priority: clsactFirst, Handle: d.layout.clsactHandle(), Name: info.Name}
	if d.opts.Last {
		f.Priority = clsactLast
	}
	if err := clsact.Set(p, f, prog.FD()); err != nil {
		return attachError(p, err)
	}
	return nil
}

func (d *Dataplane) detachClsact(p chain.Point) error {
	found, err := d.listClsact(p)
	if err != nil || found == nil {
		return err
	}
	if err := clsact.Delete(p, *found); err != nil && !errors.Is(err, unix.ENODEV) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("detach from %s: %w", p, err)
	}
	return nil
}

// listClsact returns Kerb's filter on a point, nil if there is none.
func (d *Dataplane) listClsact(p chain.Point) (*clsact.Filter, error) {
	filters, err := clsact.List(p)
	switch {
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENOENT):
		return nil, nil // no clsact qdisc, or no interface
	case err != nil && !errors.Is(err, netlink.ErrDumpInterrupted):
		return nil, fmt.Errorf("filters at %s: %w", p, err)
	}
	for _, f := range filters {
		if f.Handle == d.layout.clsactHandle() && strings.HasPrefix(f.Name, clsactNameStart) {
			return &f, nil
		}
	}
	return nil, err // nil, or the list may lack it
}

// readClsact reads the filters of every interface of the node.
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
				out = append(out, chain.Attached{Point: p, Program: f.Program, Mode: ModeClsact})
			}
		}
	}
	return out, nil
}
