// SPDX-License-Identifier: Apache-2.0

package intercept

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/vishvananda/netlink"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/lab/node"
	"github.com/kerb-edge/kerb/kmod"
)

// ringSize holds the data that arrives while a receiver is not scheduled, like the sockets' buffers.
const ringSize = 32 << 20

// class is the class that the receivers open.
const class = "data"

// startKerb runs the agent on the receiver's node, with the intercept module on the interface that receives the
// packets. With the action copy, the stack gets the packets, too.
func (p *place) startKerb(action string) error {
	n, err := node.Start(p.lab.Node())
	if err != nil {
		return err
	}
	p.Later(n.Close)
	p.node = n
	p.socket = n.ModuleSocket("intercept")
	if err := n.Apply(p.module("intercept", map[string]any{"classes": []map[string]any{{
		"name": class, "match": map[string]any{"protocol": "udp", "ports": []any{port}}, "action": action,
		"ring": strconv.Itoa(ringSize), "watchdog": "10s",
	}}})); err != nil {
		return err
	}
	if err := p.attachFront(); err != nil {
		return err
	}
	return p.awaitSocket()
}

// awaitSocket waits until programs can open classes, shortly after the data plane is attached.
func (p *place) awaitSocket() (err error) {
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if _, err = os.Stat(p.socket); err == nil {
			return nil
		}
	}
	return fmt.Errorf("the intercept module accepts no programs: %w", err)
}

func (p *place) module(pkg string, config map[string]any) v1.Module {
	m := node.Module(filepath.Base(pkg), pkg, "", config)
	m.Spec.Attach = v1.Attach{Interfaces: []string{p.nic}}
	m.Spec.Hook = "xdp"
	return m
}

// attachKmod opens a class of the kernel module on the node's interface, for a receiver to inherit.
func (p *place) attachKmod(action uint32) (files []*os.File, err error) {
	err = p.lab.Node().Do(func() error {
		device, err := netlink.LinkByName(p.nic)
		if err != nil {
			return err
		}
		f, err := kmod.Attach(kmod.Rule{Ifindex: uint32(device.Attrs().Index), Ring: ringSize, Action: action,
			Watchdog: uint64(time.Minute), Protocol: 17, FirstPort: port, LastPort: port})
		files = []*os.File{f}
		return err
	})
	return files, err
}
