// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/clsact"
)

// HookView is everything that runs on a point, in the order in which packets meet it.
type HookView struct {
	Mode     string
	Programs []string // "name (id 12)", foreign ones included
}

// View examines a point, foreign programs included. What cannot be read without permission is left out.
func (d *Dataplane) View(p chain.Point) HookView {
	switch p.Side {
	case chain.OnXDP:
		return viewXDP(p.Ifindex)
	case chain.OnSockets:
		return HookView{Mode: ModeCgroup, Programs: cgroupPrograms(p)}
	}
	v := HookView{Mode: ModeClsact}
	if d.tcx {
		v.Mode = ModeTCX
		v.Programs = tcxPrograms(p)
	}
	v.Programs = append(v.Programs, clsactPrograms(p)...)
	return v
}

// cgroupPrograms lists the programs on sockets of a cgroup itself; those of the cgroups above run, too.
func cgroupPrograms(p chain.Point) (out []string) {
	dir, err := dirOf(p)
	if err != nil {
		return nil
	}
	f, err := os.Open(dir)
	if err != nil {
		return nil
	}
	defer f.Close()
	result, err := link.QueryPrograms(link.QueryOptions{Target: int(f.Fd()), Attach: ebpf.AttachCGroupSockOps})
	if err != nil {
		return nil
	}
	for _, prog := range result.Programs {
		out = append(out, describeProgram(prog.ID))
	}
	return out
}

// viewXDP returns the program on XDP, of Kerb or not, and how it is attached: XDP_ATTACHED_DRV and XDP_ATTACHED_SKB of
// if_link.h.
func viewXDP(ifindex int) HookView {
	l, err := netlink.LinkByIndex(ifindex)
	if err != nil || l.Attrs().Xdp == nil || !l.Attrs().Xdp.Attached {
		return HookView{}
	}
	xdp := l.Attrs().Xdp
	v := HookView{Programs: []string{describeProgram(ebpf.ProgramID(xdp.ProgId))}}
	switch xdp.AttachMode {
	case 1: // XDP_ATTACHED_DRV
		v.Mode = ModeXDPNative
	case 2: // XDP_ATTACHED_SKB
		v.Mode = ModeXDPGeneric
	}
	return v
}

// tcxPrograms returns the programs on one side of an interface in the order in which they run; none on kernels without
// TCX (before Linux 6.6).
func tcxPrograms(p chain.Point) []string {
	attach := ebpf.AttachTCXIngress
	if p.Side == chain.OnTCEgress {
		attach = ebpf.AttachTCXEgress
	}
	result, err := link.QueryPrograms(link.QueryOptions{Target: p.Ifindex, Attach: attach})
	if err != nil {
		return nil
	}
	var out []string
	for _, prog := range result.Programs {
		out = append(out, describeProgram(prog.ID))
	}
	return out
}

// clsactPrograms lists cls_bpf filters, which run after TCX programs.
func clsactPrograms(p chain.Point) []string {
	filters, err := clsact.List(p)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil
	}
	var out []string
	for _, f := range filters {
		out = append(out, fmt.Sprintf("%s (id %d, clsact priority %d)", f.Name, f.Program, f.Priority))
	}
	return out
}

// describeProgram names a program; its name needs CAP_SYS_ADMIN.
func describeProgram(id ebpf.ProgramID) string {
	p, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return fmt.Sprintf("(id %d)", id)
	}
	defer p.Close()
	info, err := p.Info()
	if err != nil {
		return fmt.Sprintf("(id %d)", id)
	}
	return fmt.Sprintf("%s (id %d)", info.Name, id)
}
