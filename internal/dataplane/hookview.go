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

// Mode returns the mode in which programs run on a point; empty if there is nothing on XDP.
func (d *Dataplane) Mode(p chain.Point) string { return d.on(p.Side).mode(p) }

func (onXDP) mode(p chain.Point) string { return xdpModes[xdpOf(p.Ifindex).AttachMode] }

func (onSockets) mode(chain.Point) string { return ModeCgroup }

func (d onTC) mode(chain.Point) string {
	if d.tcx {
		return ModeTCX
	}
	return ModeClsact
}

// Programs lists the programs on a point in the order in which packets meet them, including foreign programs: "name (id
// 12)". Programs that cannot be read without permission are left out.
func (d *Dataplane) Programs(p chain.Point) []string { return d.on(p.Side).programs(p) }

func (onXDP) programs(p chain.Point) []string {
	if xdp := xdpOf(p.Ifindex); xdp.Attached {
		return []string{describeProgram(ebpf.ProgramID(xdp.ProgId))}
	}
	return nil
}

func (d onTC) programs(p chain.Point) (out []string) {
	if d.tcx {
		out = queryPrograms(link.QueryOptions{Target: p.Ifindex, Attach: tcxOf(p.Side)})
	}
	return append(out, clsactPrograms(p)...)
}

// programs lists the programs on sockets of a cgroup itself; those of parent cgroups run as well.
func (onSockets) programs(p chain.Point) []string {
	dir, err := dirOf(p)
	if err != nil {
		return nil
	}
	f, err := os.Open(dir)
	if err != nil {
		return nil
	}
	defer f.Close()
	return queryPrograms(link.QueryOptions{Target: int(f.Fd()), Attach: ebpf.AttachCGroupSockOps})
}

func queryPrograms(o link.QueryOptions) (out []string) {
	result, err := link.QueryPrograms(o)
	if err != nil {
		return nil
	}
	for _, prog := range result.Programs {
		out = append(out, describeProgram(prog.ID))
	}
	return out
}

// xdpModes are XDP_ATTACHED_DRV and XDP_ATTACHED_SKB of if_link.h.
var xdpModes = map[uint32]string{1: ModeXDPNative, 2: ModeXDPGeneric}

// xdpOf returns the program on XDP, whether it is Kerb's or not.
func xdpOf(ifindex int) netlink.LinkXdp {
	l, err := netlink.LinkByIndex(ifindex)
	if err != nil || l.Attrs().Xdp == nil {
		return netlink.LinkXdp{}
	}
	return *l.Attrs().Xdp
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

// describeProgram returns a program's name, which requires CAP_SYS_ADMIN, and id.
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
