// SPDX-License-Identifier: Apache-2.0

package intercept

import (
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"

	"github.com/kerb-edge/kerb/bench"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/lab/node"
)

// place is a sender's host and the receiver's node with an interface, at which a hook takes T1.
type place struct {
	hook   string
	lab    *netlab.Lab
	sender *netlab.Host
	nic    string
	node   *node.Node                 // nil where no agent runs
	socket string                     // where the intercept module hands out its classes
	files  func() ([]*os.File, error) // that a receiver inherits, from descriptor 3 on
	bench.Closers
	err error // why there is none
}

func openPlace(hook string) (*place, error) {
	prefix := "kbi" + hook[:2]
	lab, err := netlab.NewIn(prefix)
	if err != nil {
		return nil, err
	}
	p := &place{hook: hook, lab: lab, Closers: bench.Closers{lab.Close},
		files: func() ([]*os.File, error) { return nil, nil }}
	if p.sender, err = lab.Host("sender", netlab.HostOptions{Routed: true, TxChecksumOff: true}); err == nil {
		p.nic = p.sender.Outer()
		err = p.raise()
	}
	return p, p.CloseOn(err)
}

// raise puts the hook into place.
func (p *place) raise() error {
	switch p.hook {
	case "kerb":
		return p.startKerb("steal")
	case "both":
		return p.startKerb("copy")
	case "ring":
		return p.startController("steal", nil)
	case "law": // in the kernel
		return p.startController("answer", map[string]any{"app": "echo", "sourceRate": 0})
	case "plain":
		return nil
	case "kmod":
		return p.openKmod()
	case "xsk":
		return p.attach("to_socket", "sockets")
	case "array":
		return p.attach("to_array", "slots")
	}
	return p.attach("stamp", "")
}

// attach puts a program of stamp.bpf.c on the node's interface, native; a receiver inherits the map.
func (p *place) attach(program, inherited string) error {
	spec, err := bench.Object(files, "stamp.bpf.o")
	if err != nil {
		return err
	}
	if err := spec.Variables["server_port"].Set(uint16(port)); err != nil {
		return err
	}
	spec.Programs = map[string]*ebpf.ProgramSpec{program: spec.Programs[program]}
	bpf, err := ebpf.NewCollection(spec)
	if err != nil {
		return fmt.Errorf("%w: %w", bench.ErrLeftOut, err)
	}
	p.Later(func() error { bpf.Close(); return nil })
	if m := bpf.Maps[inherited]; m != nil {
		p.files = func() ([]*os.File, error) { return dup(m.FD(), inherited) }
	}
	l, err := bench.AttachXDP(p.lab.Node(), p.nic, bpf.Programs[program])
	if err == nil {
		p.Later(l.Close)
	}
	return err
}

// unsent counts packets that found the queue of the sender's interface full: before Linux 6.5 what empties it may have
// to wait for a sender that goes before all others.
func (p *place) unsent() (n uint64, err error) {
	err = p.sender.Do(func() error {
		device, err := netlink.LinkByName(p.sender.Interface())
		if err == nil {
			n = device.Attrs().Statistics.TxDropped
		}
		return err
	})
	return n, err
}
