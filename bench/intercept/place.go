// SPDX-License-Identifier: Apache-2.0

package intercept

import (
	"os"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"

	"github.com/kerb-edge/kerb/bench"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/lab/node"
	"github.com/kerb-edge/kerb/kmod"
)

// place has the sender's host, and the receiver's node with an interface, at whose hook the program stamp_arrival of
// stamp.bpf.c takes T1 before the receivers' programs.
type place struct {
	hook   string
	lab    *netlab.Lab
	sender *netlab.Host
	nic    string
	node   *node.Node                 // nil without an agent
	socket string                     // socket on which the intercept module opens classes
	files  func() ([]*os.File, error) // files that a receiver inherits, from descriptor 3 on
	front  *ebpf.Collection           // in front of Kerb's chain; nil without one
	bench.Closers
	err error // why the place is not available
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
		err = p.setup()
	}
	return p, p.CloseOn(err)
}

// setup attaches the programs of the hook.
func (p *place) setup() error {
	switch p.hook {
	case "kerb":
		return p.startKerb("steal")
	case "both":
		return p.startKerb("copy")
	case "ring":
		return p.startController("steal", nil)
	case "law": // in the kernel
		return p.startController("answer", map[string]any{"app": "echo", "sourceRate": 0})
	case "plain", "dpdk": // its driver attaches a separate program
		return nil
	case "xsk":
		return p.attach("redirect_socket", "sockets")
	case "array":
		return p.attach("copy_to_array", "slots")
	}
	return p.attach("", "")
}

// inherited returns the files that a receiver inherits, from descriptor 3 on. If others receive the same packets, the
// kernel module copies them.
func (p *place) inherited(c config) ([]*os.File, error) {
	switch {
	case c.program != "kmod":
		return p.files()
	case c.hook == "kmod":
		return p.attachKmod(kmod.Steal)
	}
	return p.attachKmod(kmod.Copy)
}

// unsent returns the number of packets dropped because the queue of the sender's interface was full: before Linux 6.5,
// the softirq that empties it may have to wait for the sender, which has real-time priority.
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
