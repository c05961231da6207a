// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/clsact"
)

// Program is one that runs on an interface.
type Program struct {
	Hook string // xdp, tcx-ingress, tcx-egress, clsact-ingress or clsact-egress, as the kernel sees directions
	ID   ebpf.ProgramID
	Name string // as the kernel or the filter has it, cut to 15 bytes; empty if it may not be read
}

// Programs lists what runs on an interface, in the order in which packets meet
// it on each hook. The link must come from a fresh look.
func Programs(l netlink.Link) ([]Program, error) {
	var all []Program
	if x := l.Attrs().Xdp; x != nil && x.Attached {
		all = append(all, named("xdp", ebpf.ProgramID(x.ProgId)))
	}
	for _, side := range []struct {
		name string
		tcx  ebpf.AttachType
		side chain.Side
	}{
		{"ingress", ebpf.AttachTCXIngress, chain.OnTCIngress},
		{"egress", ebpf.AttachTCXEgress, chain.OnTCEgress},
	} {
		tcx, err := tcxPrograms(l.Attrs().Index, side.tcx, "tcx-"+side.name)
		if err != nil {
			return nil, err
		}
		clsact, err := clsactPrograms(l, side.side, "clsact-"+side.name)
		if err != nil {
			return nil, err
		}
		all = append(append(all, tcx...), clsact...)
	}
	return all, nil
}

// tcxPrograms is empty on kernels before 6.6, which refuse the question.
func tcxPrograms(ifindex int, attach ebpf.AttachType, hook string) ([]Program, error) {
	found, err := link.QueryPrograms(link.QueryOptions{Target: ifindex, Attach: attach})
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENODEV) || errors.Is(err, ebpf.ErrNotSupported) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var all []Program
	for _, p := range found.Programs {
		all = append(all, named(hook, p.ID))
	}
	return all, nil
}

// clsactPrograms is empty where there is no clsact qdisc.
func clsactPrograms(l netlink.Link, side chain.Side, hook string) ([]Program, error) {
	filters, err := clsact.List(chain.Point{Ifindex: l.Attrs().Index, Side: side})
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("filters of %s: %w", l.Attrs().Name, err)
	}
	var all []Program
	for _, f := range filters {
		p := named(hook, ebpf.ProgramID(f.Program))
		if p.Name == "" {
			p.Name = f.Name
		}
		all = append(all, p)
	}
	return all, nil
}

// named looks a program's name up, for which the kernel wants CAP_SYS_ADMIN.
func named(hook string, id ebpf.ProgramID) Program {
	return Program{Hook: hook, ID: id, Name: nameOf(id)}
}

func nameOf(id ebpf.ProgramID) string {
	p, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return ""
	}
	defer p.Close()
	info, err := p.Info()
	if err != nil {
		return ""
	}
	return info.Name
}

// ProgramNames counts the programs that are loaded, by name. It takes
// CAP_SYS_ADMIN.
func ProgramNames() (map[string]int, error) {
	names := make(map[string]int)
	for id := ebpf.ProgramID(0); ; {
		next, err := ebpf.ProgramGetNextID(id)
		if errors.Is(err, fs.ErrNotExist) {
			return names, nil
		}
		if err != nil {
			return names, err
		}
		names[nameOf(next)]++
		id = next
	}
}

// Driver is the name of an interface's driver, as ethtool -i shows it; empty
// if it has none.
func Driver(name string) string {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return ""
	}
	defer unix.Close(fd)
	info, err := unix.IoctlGetEthtoolDrvinfo(fd, name)
	if err != nil {
		return ""
	}
	return unix.ByteSliceToString(info.Driver[:])
}

// XDPFeatures are what a driver says it can do with XDP: NETDEV_XDP_ACT_* of
// linux/netdev.h.
type XDPFeatures uint64

// Has reports whether all of want are there.
func (f XDPFeatures) Has(want XDPFeatures) bool { return f&want == want }

// Features of drivers.
const (
	XDPBasic    XDPFeatures = 1 << 0 // ABORTED, DROP, PASS and TX in the driver
	XDPRedirect XDPFeatures = 1 << 1
	XDPTarget   XDPFeatures = 1 << 2 // others may redirect to it
	XDPZeroCopy XDPFeatures = 1 << 3 // AF_XDP without copying
	XDPOffload  XDPFeatures = 1 << 4 // in the hardware
	XDPFrags    XDPFeatures = 1 << 5 // packets in several buffers
)

// Numbers of the generic netlink family "netdev", of linux/netdev.h.
const (
	netdevCmdDevGet      = 1
	netdevAttrIfindex    = 1
	netdevAttrXDPFeature = 3
)

// genlHeader is a generic netlink header: command, version, two reserved
// bytes. The library's own reads these two from beyond its end, and the kernel
// refuses them if they are not zero.
type genlHeader [nl.SizeofGenlmsg]byte

func (h genlHeader) Len() int          { return len(h) }
func (h genlHeader) Serialize() []byte { return h[:] }

// DriverXDP asks the driver of an interface of the current namespace. Kernels
// before 6.3 do not know: ErrNotSupported.
func DriverXDP(ifindex int) (XDPFeatures, error) {
	family, err := netlink.GenlFamilyGet("netdev")
	if errors.Is(err, unix.ENOENT) {
		return 0, fmt.Errorf("XDP features of drivers (Linux 6.3): %w", ebpf.ErrNotSupported)
	}
	if err != nil {
		return 0, fmt.Errorf("netlink family netdev: %w", err)
	}
	// One at a time: a dump's messages lack the flag by which the library
	// knows that more follow.
	req := nl.NewNetlinkRequest(int(family.ID), 0)
	req.AddData(genlHeader{netdevCmdDevGet, uint8(family.Version)})
	req.AddData(nl.NewRtAttr(netdevAttrIfindex, nl.Uint32Attr(uint32(ifindex))))
	msgs, err := req.Execute(unix.NETLINK_GENERIC, 0)
	if err != nil {
		return 0, fmt.Errorf("XDP features of interface %d: %w", ifindex, err)
	}
	for _, m := range msgs {
		attrs, err := nl.ParseRouteAttr(m[nl.SizeofGenlmsg:])
		if err != nil {
			return 0, fmt.Errorf("XDP features of interface %d: %w", ifindex, err)
		}
		for _, a := range attrs {
			if a.Attr.Type == netdevAttrXDPFeature && len(a.Value) >= 8 {
				return XDPFeatures(nl.NativeEndian().Uint64(a.Value)), nil
			}
		}
	}
	return 0, fmt.Errorf("XDP features of interface %d: no answer: %w", ifindex, ebpf.ErrNotSupported)
}
