// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"errors"
	"fmt"
	"runtime"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/clsact"
)

// ErrNoNamespace: the node does not let this process make a network namespace
// to try things in, which takes CAP_SYS_ADMIN.
var ErrNoNamespace = errors.New("cannot make a network namespace to try it in")

// inScratch runs f in a network namespace that holds nothing but a veth pair
// and ends with the call.
func inScratch(f func(outer, inner netlink.Link) error) error {
	runtime.LockOSThread()
	home, err := netns.Get()
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("current namespace: %w", err)
	}
	defer home.Close()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("%w: %w", ErrNoNamespace, err)
	}
	defer func() {
		// A thread that cannot go home stays locked and ends with its goroutine.
		if netns.Set(home) == nil {
			runtime.UnlockOSThread()
		}
	}()
	outer, inner, err := addPair()
	if err != nil {
		return err
	}
	return f(outer, inner)
}

func addPair() (outer, inner netlink.Link, err error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = objectName + "0"
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: objectName + "1"}); err != nil {
		return nil, nil, fmt.Errorf("add a veth pair: %w", err)
	}
	if outer, err = netlink.LinkByName(objectName + "0"); err != nil {
		return nil, nil, err
	}
	inner, err = netlink.LinkByName(objectName + "1")
	return outer, inner, err
}

// tryTCX attaches as a link. Linux 6.6.
func tryTCX() error {
	return inScratch(func(outer, _ netlink.Link) error {
		p, err := ebpf.NewProgram(pass(ebpf.SchedCLS))
		if err != nil {
			return err
		}
		defer p.Close()
		l, err := link.AttachTCX(link.TCXOptions{Interface: outer.Attrs().Index, Program: p, Attach: ebpf.AttachTCXIngress})
		if err != nil {
			return err
		}
		return l.Close()
	})
}

// tryClsact attaches as a filter in direct-action mode, as before TCX.
func tryClsact() error {
	return inScratch(func(outer, _ netlink.Link) error {
		p, err := ebpf.NewProgram(pass(ebpf.SchedCLS))
		if err != nil {
			return err
		}
		defer p.Close()
		return addClsact(outer, p)
	})
}

func addClsact(l netlink.Link, p *ebpf.Program) error {
	index := l.Attrs().Index
	if err := clsact.AddQdisc(index); err != nil {
		return fmt.Errorf("clsact qdisc: %w", err)
	}
	return clsact.Set(chain.Point{Ifindex: index, Side: chain.OnTCIngress},
		clsact.Filter{Priority: 1, Handle: 1, Name: objectName}, p.FD())
}

// xdpMode is a way to attach XDP: in the driver, or generic behind it, and
// with or without packets that lie in several buffers.
type xdpMode struct {
	load   uint32
	attach link.XDPAttachFlags
}

var (
	native  = xdpMode{0, link.XDPDriverMode}
	frags   = xdpMode{unix.BPF_F_XDP_HAS_FRAGS, link.XDPDriverMode} // Linux 5.18
	generic = xdpMode{0, link.XDPGenericMode}
)

func (m xdpMode) program() (*ebpf.Program, error) {
	spec := pass(ebpf.XDP)
	spec.Flags = m.load
	return ebpf.NewProgram(spec)
}

func (m xdpMode) attachTo(l netlink.Link, p *ebpf.Program) error {
	x, err := link.AttachXDP(link.XDPOptions{Interface: l.Attrs().Index, Program: p, Flags: m.attach})
	if err != nil {
		return err
	}
	return x.Close()
}

func tryXDP(m xdpMode) error {
	return inScratch(func(outer, _ netlink.Link) error {
		p, err := m.program()
		if err != nil {
			return err
		}
		defer p.Close()
		return m.attachTo(outer, p)
	})
}

// NativeMTU is the largest MTU of a veth, in bytes, with which native XDP is
// accepted when programs do not know of fragments.
func NativeMTU() (int, error) {
	works := 0
	err := inScratch(func(outer, inner netlink.Link) error {
		p, err := native.program()
		if err != nil {
			return err
		}
		defer p.Close()
		for low, high := 1280, 65535; low <= high; {
			mtu := (low + high) / 2
			if err := errors.Join(netlink.LinkSetMTU(outer, mtu), netlink.LinkSetMTU(inner, mtu)); err != nil {
				return err
			}
			if err = native.attachTo(outer, p); err == nil {
				works, low = mtu, mtu+1
			} else {
				high = mtu - 1
			}
			if high < 1280 {
				return err
			}
		}
		return nil
	})
	return works, err
}
