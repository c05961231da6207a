// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/cilium/ebpf"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/sdk"
)

// Trial is a running chain whose maps exist as long as the trial is open.
type Trial struct {
	spec    chain.Spec
	running []*mapSet
}

// OpenTrial opens the maps of a running chain.
func (d *Dataplane) OpenTrial(spec chain.Spec, modules map[string]Module) (*Trial, error) {
	running, err := d.openMembers(spec, modules)
	t := &Trial{spec, running}
	if err != nil {
		t.Close()
		return nil, err
	}
	return t, nil
}

// Close closes the maps.
func (t *Trial) Close() { closeMembers(t.running) }

// Try runs a frame through a copy of a chain, with copies of its maps and their entries, without effect on packets or
// counters of the node. The trace has the verdict of each module; the caller closes it. Contents of other maps, such as
// rings, are not copied: the copy of a module that delivers packets to programs finds none.
func (t *Trial) Try(ifindex int, frame []byte) (*Trace, Tried, error) {
	var members []*mapSet
	defer func() { closeMembers(members) }()
	for _, g := range t.running {
		c, err := g.copy()
		if err != nil {
			return nil, Tried{}, fmt.Errorf("module %s: copy its maps: %w", g.Name, err)
		}
		members = append(members, c)
	}
	trace, err := NewTrace(TraceFilter{})
	if err != nil {
		return nil, Tried{}, err
	}
	c, err := trace.link(t.spec, members, 1, nil)
	if err != nil {
		trace.Close()
		return nil, Tried{}, err
	}
	tried, err := tryFrame(c.entry(), t.spec.Side.Hook(), ifindex, frame)
	if err != nil {
		trace.Close()
		return nil, Tried{}, err
	}
	return trace, tried, nil
}

// Tried is the result of a chain for a frame.
type Tried struct {
	Action uint32 // of the hook
	Frame  []byte // as it left
}

// Passed reports whether the packet passes to what comes after the chain.
func (t Tried) Passed(hook chain.Hook) bool {
	if hook == chain.XDP {
		const xdpPass = 2
		return t.Action == xdpPass
	}
	const tcUnspec = 0xffffffff // TC_ACT_UNSPEC; TCX_NEXT
	return t.Action == tcUnspec || t.Action == 0
}

// headroom is for headers that modules insert before the packet.
const headroom = 512

// tryFrame runs the program once, on the interface, if the kernel's test runs support interfaces: for XDP since Linux
// 5.15.
func tryFrame(p *ebpf.Program, hook chain.Hook, ifindex int, frame []byte) (Tried, error) {
	run := ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+headroom)}
	if hook == chain.TC {
		const skbSize, skbIfindex = 192, 40 // struct __sk_buff
		ctx := make([]byte, skbSize)
		binary.NativeEndian.PutUint32(ctx[skbIfindex:], uint32(ifindex))
		run.Context = ctx
	} else {
		const mdSize, mdEnd, mdIfindex = 24, 4, 12 // struct xdp_md
		ctx := make([]byte, mdSize)
		binary.NativeEndian.PutUint32(ctx[mdEnd:], uint32(len(frame)))
		binary.NativeEndian.PutUint32(ctx[mdIfindex:], uint32(ifindex))
		run.Context = ctx
	}
	action, err := p.Run(&run)
	if err != nil && hook == chain.XDP {
		run.Context, run.DataOut = nil, make([]byte, len(frame)+headroom)
		action, err = p.Run(&run)
	}
	if err != nil {
		return Tried{}, fmt.Errorf("test run: %w", err)
	}
	return Tried{action, run.DataOut}, nil
}

// copy creates maps of the same layout with the same entries. Constants have the values of the module's settings.
func (g *mapSet) copy() (*mapSet, error) {
	c := &mapSet{g.Module, map[string]*ebpf.Map{}}
	if g.ID == UnavailableID {
		return c, nil
	}
	sets := map[string]*ebpf.Map{} // which modules only read
	for _, name := range sdk.SetMaps {
		if m := g.maps[name]; m != nil {
			sets[name] = m
		}
	}
	if err := c.createMaps(nil, sets); err != nil {
		c.Close()
		return nil, err
	}
	for pin, m := range g.maps {
		constant := strings.Contains(pin, "-rodata") || strings.Contains(pin, "-kconfig")
		if to := c.maps[pin]; to != nil && !constant && sets[pin] == nil {
			if err := copyEntries(pin, m, to); err != nil {
				c.Close()
				return nil, err
			}
		}
	}
	return c, nil
}
