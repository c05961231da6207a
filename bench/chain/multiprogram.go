// SPDX-License-Identifier: Apache-2.0

package chain

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/kerb-edge/kerb/bench"
)

// loadModules loads n independent modules.
func (o *objects) loadModules(n int) (modules, error) {
	var ms modules
	for range n {
		m, err := o.loadModule("tc", 0, nil)
		if err != nil {
			return nil, errors.Join(err, ms.Close())
		}
		ms = append(ms, m)
	}
	return ms, nil
}

// replace loads a new module n/2, and activates it with put.
func (ms modules) replace(o *objects, put func(i int, m module) error) error {
	i := middle(len(ms))
	m, err := o.loadModule("tc", 0, nil)
	if err != nil {
		return err
	}
	if err := put(i, m); err != nil {
		return errors.Join(err, m.Close())
	}
	old := ms[i]
	ms[i] = m
	return old.Close()
}

// tcx is a list of TCX programs (Linux 6.6).
type tcx struct {
	modules
	objs  *objects
	links []link.Link
}

func (o *objects) loadTCX(_ string, n int) (Chain, error) {
	ms, err := o.loadModules(n)
	return &tcx{modules: ms, objs: o}, err
}

// attach relies on detach for cleanup after an error.
func (t *tcx) attach(ifindex int, last *ebpf.Program) error {
	for _, m := range append(t.modules[:len(t.modules):len(t.modules)], module{program: last}) {
		l, err := attachTCX(ifindex, m.program)
		if err != nil {
			return err
		}
		t.links = append(t.links, l)
	}
	return nil
}

// attachTCX attaches a program after those on the ingress.
func attachTCX(ifindex int, p *ebpf.Program) (link.Link, error) {
	l, err := link.AttachTCX(link.TCXOptions{Interface: ifindex, Program: p, Attach: ebpf.AttachTCXIngress,
		Anchor: link.Tail()})
	if err != nil {
		return nil, fmt.Errorf("attach tcx: %w", err)
	}
	return l, nil
}

func (t *tcx) swap() error {
	return t.replace(t.objs, func(i int, m module) error { return t.links[i].Update(m.program) })
}

func (t *tcx) detach() error { return bench.CloseAll(t.links) }

// clsact is a list of direct-action filters in one instance of cls_bpf with separate handles, which costs less per
// packet than an instance (a priority) for each.
type clsact struct {
	modules
	objs  *objects
	qdisc *netlink.Clsact
}

func (o *objects) loadClsact(_ string, n int) (Chain, error) {
	ms, err := o.loadModules(n)
	return &clsact{modules: ms, objs: o}, err
}

func (c *clsact) attach(ifindex int, last *ebpf.Program) error {
	var err error
	if c.qdisc, err = bench.AddClsact(ifindex); err != nil {
		return err
	}
	if err := addFilter(ifindex, 2, 1, last); err != nil {
		return err
	}
	for i := len(c.modules) - 1; i >= 0; i-- { // the newest filter runs first
		if err := addFilter(ifindex, 1, i+1, c.modules[i].program); err != nil {
			return err
		}
	}
	return nil
}

// addFilter adds a filter to the ingress, or replaces the one with its handle.
func addFilter(ifindex, priority, handle int, p *ebpf.Program) error {
	return bench.PutFilter(ifindex, netlink.HANDLE_MIN_INGRESS, priority, handle, p)
}

func (c *clsact) swap() error {
	return c.replace(c.objs, func(i int, m module) error {
		return addFilter(c.qdisc.LinkIndex, 1, i+1, m.program)
	})
}

func (c *clsact) detach() error {
	if c.qdisc == nil {
		return nil
	}
	return netlink.QdiscDel(c.qdisc)
}
