// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/chain"
)

// Modes in which a chain runs on a point.
const (
	ModeTCX        = "tcx"
	ModeClsact     = "clsact"
	ModeXDPNative  = "native"
	ModeXDPGeneric = "generic"
	ModeCgroup     = "cgroup"
)

// attachPoint is a kind of attach point: XDP or TC of an interface, or a cgroup for modules on sockets.
type attachPoint interface {
	// create links, verifies and pins a chain.
	create(spec chain.Spec, members []*mapSet) error
	// put attaches the chain that is pinned in dir to a point.
	put(p chain.Point, dir string) error
	// release prepares a chain for its removal.
	release(c chain.Pinned) error
	// newLink attaches a program to a point without a link of Kerb.
	newLink(p chain.Point, prog *ebpf.Program) (link.Link, error)
	mode(p chain.Point) string
	programs(p chain.Point) []string
}

type onDevice struct{ *Dataplane }
type onXDP struct{ onDevice }
type onTC struct{ onDevice }
type onSockets struct{ *Dataplane }

func (d *Dataplane) on(s chain.Side) attachPoint {
	switch s {
	case chain.OnSockets:
		return onSockets{d}
	case chain.OnXDP:
		return onXDP{onDevice{d}}
	}
	return onTC{onDevice{d}}
}

func (d onDevice) create(spec chain.Spec, members []*mapSet) error {
	c, err := loadChain(spec, members)
	if err == nil {
		defer c.Close()
		err = c.pin(d.layout)
	}
	return err
}

func (d onDevice) put(p chain.Point, dir string) error {
	prog, err := ebpf.LoadPinnedProgram(entryPin(dir), nil)
	if err != nil {
		return fmt.Errorf("open chain: %w", err)
	}
	defer prog.Close()
	return d.attach(p, prog)
}

func (onDevice) release(chain.Pinned) error { return nil }

// attach attaches a program to a free point, or atomically replaces Kerb's program there: every packet meets either the
// old or the new program.
func (d *Dataplane) attach(p chain.Point, prog *ebpf.Program) error {
	if p.Side.Hook() == chain.TC && !d.tcx {
		return d.attachClsact(p, prog)
	}
	d.links.forget(p)
	id, err := objectID(prog.FD())
	if err == nil {
		err = d.attachLink(p, prog)
	}
	if err == nil && p.Side.Hook() == chain.TC {
		d.links.set(chain.Attached{Point: p, Program: id, Mode: ModeTCX})
	}
	return err
}

func (d *Dataplane) attachLink(p chain.Point, prog *ebpf.Program) error {
	old, err := openPin(d.layout.link(p))
	if errors.Is(err, os.ErrNotExist) {
		return d.attachNew(p, prog)
	}
	if err != nil {
		return err
	}
	defer unix.Close(old)
	err = updateLink(old, prog)
	// of a removed interface or cgroup, whose index may have been reused
	if errors.Is(err, unix.ENOLINK) || errors.Is(err, unix.ENODEV) {
		if err := os.Remove(d.layout.link(p)); err != nil {
			return fmt.Errorf("unpin link of %s: %w", p, err)
		}
		return d.attachNew(p, prog)
	}
	if err != nil {
		return fmt.Errorf("replace program on %s: %w", p, err)
	}
	return nil
}

// attachNew attaches a program to a point without a link of Kerb, and pins the link, so that it outlives the agent.
func (d *Dataplane) attachNew(p chain.Point, prog *ebpf.Program) error {
	l, err := d.on(p.Side).newLink(p, prog)
	if err != nil {
		return err
	}
	defer l.Close()
	if err := os.MkdirAll(d.layout.links(), 0o700); err != nil {
		return err
	}
	if err := l.Pin(d.layout.link(p)); err != nil {
		return fmt.Errorf("pin link of %s: %w", p, err) // closing the unpinned link detaches the program
	}
	return nil
}

// attachError names the point. It returns chain.ErrGone for an interface that vanished in the meantime, and
// chain.ErrBusy for a hook held by another program, for which the kernel returns EBUSY or EEXIST.
func attachError(p chain.Point, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.ENODEV):
		return fmt.Errorf("interface %d: %w", p.Ifindex, chain.ErrGone)
	case errors.Is(err, unix.EBUSY), errors.Is(err, unix.EEXIST):
		return fmt.Errorf("%s of %s: %w (%w); see its owner with: bpftool net show", p.Side, interfaceName(p.Ifindex),
			chain.ErrBusy, err)
	}
	return fmt.Errorf("%s of %s: %w", p.Side, interfaceName(p.Ifindex), err)
}

func interfaceName(ifindex int) string {
	l, err := net.InterfaceByIndex(ifindex)
	if err != nil {
		return fmt.Sprintf("interface %d", ifindex)
	}
	return l.Name
}

// newLink places the program first or last among the TCX programs, as configured. Foreign programs are never changed.
func (d onTC) newLink(p chain.Point, prog *ebpf.Program) (link.Link, error) {
	opts := link.TCXOptions{Interface: p.Ifindex, Program: prog, Attach: tcxOf(p.Side), Anchor: link.Head()}
	if d.opts.Last {
		opts.Anchor = link.Tail()
	}
	l, err := link.AttachTCX(opts)
	return l, attachError(p, err)
}

func tcxOf(s chain.Side) ebpf.AttachType {
	if s == chain.OnTCEgress {
		return ebpf.AttachTCXEgress
	}
	return ebpf.AttachTCXIngress
}

func (onXDP) newLink(p chain.Point, prog *ebpf.Program) (link.Link, error) {
	l, err := attachXDP(p.Ifindex, prog)
	return l, attachError(p, err)
}

// attachXDP tries driver mode first: which modes a driver supports depends on MTU, features and frags.
func attachXDP(ifindex int, prog *ebpf.Program) (link.Link, error) {
	l, err := link.AttachXDP(link.XDPOptions{Interface: ifindex, Program: prog, Flags: link.XDPDriverMode})
	if err == nil || errors.Is(err, unix.EBUSY) || errors.Is(err, unix.EEXIST) || errors.Is(err, unix.ENODEV) {
		return l, err
	}
	l, genericErr := link.AttachXDP(link.XDPOptions{Interface: ifindex, Program: prog, Flags: link.XDPGenericMode})
	if genericErr != nil {
		return nil, errors.Join(fmt.Errorf("native: %w", err), fmt.Errorf("generic: %w", genericErr))
	}
	return l, nil
}

// Detach detaches Kerb's chain from a point. A point without one, or a removed interface, is not an error.
func (d *Dataplane) Detach(p chain.Point) error {
	if p.Side.Hook() == chain.TC && !d.tcx {
		return d.detachClsact(p)
	}
	d.links.forget(p)
	path := d.layout.link(p)
	l, err := openPin(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(l)
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("unpin link of %s: %w", p, err)
	}
	// Closing the last handle would detach as well, but later, from a workqueue.
	if err := detachLink(l); err != nil && !errors.Is(err, unix.ENODEV) && !errors.Is(err, unix.ENOLINK) &&
		!errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("detach from %s: %w", p, err)
	}
	return nil
}

// readLink returns what a pinned link runs. The pin outlives its interface or cgroup: the kernel then reports index or
// id 0, and Program is 0. Program is also 0 if the index now belongs to another interface.
func (d *Dataplane) readLink(p chain.Point) (chain.Attached, error) {
	info, err := pinnedLink(d.layout.link(p))
	if err != nil {
		return chain.Attached{}, err
	}
	a, ifindex := chain.Attached{Point: p, Program: info.program, Mode: ModeTCX}, uint32(0)
	switch info.kind {
	case unix.BPF_LINK_TYPE_CGROUP:
		a.Mode = ModeCgroup
		if info.cgroup() != p.Cgroup { // 0 when the cgroup has been removed
			a.Program = 0
		}
		return a, nil
	case unix.BPF_LINK_TYPE_XDP:
		ifindex, a.Mode = info.ifindex(), ""
	case unix.BPF_LINK_TYPE_TCX:
		ifindex = info.ifindex()
	}
	if int(ifindex) != p.Ifindex {
		a.Program = 0
	}
	return a, nil
}
