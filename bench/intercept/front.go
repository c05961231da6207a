// SPDX-License-Identifier: Apache-2.0

package intercept

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/kerb-edge/kerb/bench"
)

// xdpHasFrags is BPF_F_XDP_HAS_FRAGS (Linux 5.18). Either a program and all programs that it calls have it, or none.
const xdpHasFrags = 1 << 5

// loadFront loads the program stamp_arrival, and a program of stamp.bpf.c that it calls, if one is named, with its map.
func loadFront(program, inherited string, flags uint32) (*ebpf.Collection, error) {
	spec, err := bench.Object(files, "stamp.bpf.o")
	if err != nil {
		return nil, err
	}
	if err := spec.Variables["server_port"].Set(uint16(port)); err != nil {
		return nil, err
	}
	for name, p := range spec.Programs {
		if p.Flags |= flags; name != "stamp_arrival" && name != program {
			delete(spec.Programs, name)
		}
	}
	for _, name := range []string{"sockets", "slots"} {
		if name != inherited {
			delete(spec.Maps, name)
		}
	}
	bpf, err := ebpf.NewCollection(spec)
	if err != nil {
		return nil, err
	}
	if p := bpf.Programs[program]; p != nil {
		err = bpf.Maps["receiver"].Put(uint32(0), p)
	}
	if err != nil {
		bpf.Close()
		return nil, err
	}
	return bpf, nil
}

// attach attaches stamp_arrival in native mode to the node's interface, with a program of stamp.bpf.c as its tail call,
// if one is named. Receivers inherit the map.
func (p *place) attach(program, inherited string) error {
	bpf, err := loadFront(program, inherited, 0)
	if errors.Is(err, bench.ErrNotBuilt) {
		return err
	}
	if err != nil {
		return fmt.Errorf("%w: %w", bench.ErrLeftOut, err)
	}
	p.Later(func() error { bpf.Close(); return nil })
	if m := bpf.Maps[inherited]; m != nil {
		p.files = func() ([]*os.File, error) { return dup(m.FD(), inherited) }
	}
	l, err := bench.AttachXDP(p.lab.Node(), p.nic, bpf.Programs["stamp_arrival"])
	if err == nil {
		p.Later(l.Close)
	}
	return err
}

// attachFront replaces the chain that the agent has attached by stamp_arrival, which calls the chain. The agent reverts
// this when it reconciles, for example some seconds after its start. putInFront is therefore called before each round,
// and does nothing if stamp_arrival is attached.
func (p *place) attachFront() error {
	if p.node == nil {
		return nil
	}
	id, err := p.attachedProgram()
	if err != nil {
		return err
	}
	if p.front != nil {
		if info, err := p.front.Programs["stamp_arrival"].Info(); err != nil {
			return err
		} else if own, _ := info.ID(); own == id {
			return nil
		}
	}
	chain, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return fmt.Errorf("open the chain: %w", err)
	}
	defer chain.Close()
	bpf, err := loadBefore(chain)
	if err != nil {
		return err
	}
	if err := updateLink(id, bpf.Programs["stamp_arrival"]); err != nil {
		bpf.Close()
		return err
	}
	if p.front == nil {
		p.Later(func() error { p.front.Close(); return nil })
	} else {
		p.front.Close()
	}
	p.front = bpf
	return nil
}

// attachedProgram returns the native XDP program of the node's interface.
func (p *place) attachedProgram() (id ebpf.ProgramID, err error) {
	err = p.lab.Node().Do(func() error {
		device, err := netlink.LinkByName(p.nic)
		if err != nil {
			return err
		}
		if x := device.Attrs().Xdp; x != nil {
			id = ebpf.ProgramID(x.ProgId)
		}
		return nil
	})
	if err == nil && id == 0 {
		err = fmt.Errorf("%s has no XDP program", p.nic)
	}
	return id, err
}

// loadBefore loads stamp_arrival with the chain as its tail call.
func loadBefore(chain *ebpf.Program) (*ebpf.Collection, error) {
	var errs []error
	for _, flags := range []uint32{xdpHasFrags, 0} {
		bpf, err := loadFront("", "", flags)
		if errors.Is(err, bench.ErrNotBuilt) {
			return nil, err
		}
		if err == nil {
			if err = bpf.Maps["receiver"].Put(uint32(0), chain); err == nil {
				return bpf, nil
			}
			bpf.Close()
		}
		errs = append(errs, err)
	}
	return nil, fmt.Errorf("insert the program that takes T1 in front of the chain: %w", errors.Join(errs...))
}

// updateLink replaces the program of the link with program `of`.
func updateLink(of ebpf.ProgramID, by *ebpf.Program) error {
	it := new(link.Iterator)
	defer it.Close()
	for it.Next() {
		if info, err := it.Link.Info(); err == nil && info.Program == of {
			return it.Link.Update(by)
		}
	}
	return errors.Join(fmt.Errorf("no link to program %d", of), it.Err())
}
