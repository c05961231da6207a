// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"

	"github.com/kerb-edge/kerb/internal/dataplane/probe"
	"github.com/kerb-edge/kerb/internal/netdump"
)

// ownPrefix begins the names of Kerb's programs.
const ownPrefix = "kerb_"

// interfaces reports each interface of the node, and of veths, which are
// services and may be hundreds, together unless something foreign runs there.
// A program whose name may not be read counts as foreign without a warning.
func interfaces(Options) []Check {
	links, err := netdump.Links()
	if err != nil {
		return []Check{bad(Warn, "interfaces", "ip link", "cannot list them: %v", err)}
	}
	var checks []Check
	veths := 0
	for _, l := range links {
		foreign, err := foreignPrograms(l)
		if l.Type() == "veth" && len(foreign) == 0 && err == nil {
			veths++
			continue
		}
		checks = append(checks, onInterface(l, foreign, err))
	}
	return append(checks, ok("veths", "%d without foreign programs", veths))
}

func foreignPrograms(l netlink.Link) ([]probe.Program, error) {
	all, err := probe.Programs(l)
	var foreign []probe.Program
	for _, p := range all {
		if !strings.HasPrefix(p.Name, ownPrefix) {
			foreign = append(foreign, p)
		}
	}
	return foreign, err
}

// onInterface describes an interface and the foreign programs on it. A foreign XDP program is a warning, because Kerb
// cannot share XDP with it; foreign TC programs are not.
func onInterface(l netlink.Link, foreign []probe.Program, err error) Check {
	a := l.Attrs()
	name := "interface " + a.Name
	found := fmt.Sprintf("MTU %d, %d rx and %d tx queues, %s", a.MTU, a.NumRxQueues, a.NumTxQueues, xdpModes(l))
	if err != nil {
		return bad(Warn, name, "sudo kerb doctor", "%s; cannot list its programs: %s", found, probe.Reason(err))
	}
	if len(foreign) == 0 {
		return ok(name, "%s", found)
	}
	found += "; other programs: " + list(foreign)
	if foreign[0].Hook == "xdp" && foreign[0].Name != "" {
		return bad(Warn, name, fmt.Sprintf("have its owner remove it, or: ip link set dev %s xdp off", a.Name),
			"%s; Kerb cannot use XDP here while it is attached, TC is shared", found)
	}
	return ok(name, "%s", found)
}

func list(programs []probe.Program) string {
	var all []string
	for _, p := range programs {
		all = append(all, fmt.Sprintf("%s %s (id %d)", p.Hook, cmp.Or(p.Name, "of unknown name"), p.ID))
	}
	return strings.Join(all, ", ")
}

// xdpModes says which modes the driver announces. To attach would show more
// and might interrupt the link, so that is left to who asks for it.
func xdpModes(l netlink.Link) string {
	driver := probe.Driver(l.Attrs().Name)
	if driver == "" {
		driver = "(none)"
	}
	features, err := probe.DriverXDP(l.Attrs().Index)
	switch {
	case errors.Is(err, ebpf.ErrNotSupported):
		return fmt.Sprintf("XDP of driver %s: generic; whether native is unknown before Linux 6.3", driver)
	case err != nil:
		return fmt.Sprintf("XDP of driver %s: unknown: %v", driver, err)
	}
	return fmt.Sprintf("XDP of driver %s: %s", driver, modes(features))
}

// modes lists the XDP modes of a driver, fastest first. Generic mode needs no driver support, so it is always
// available.
func modes(features probe.XDPFeatures) string {
	if !features.Has(probe.XDPBasic) {
		return "generic only"
	}
	all := []string{"native"}
	for _, f := range []struct {
		bit  probe.XDPFeatures
		name string
	}{{probe.XDPFrags, "native-frags"}, {probe.XDPRedirect, "redirect"}, {probe.XDPZeroCopy, "zero-copy"},
		{probe.XDPOffload, "offload"}} {
		if features.Has(f.bit) {
			all = append(all, f.name)
		}
	}
	return strings.Join(append(all, "generic"), ", ")
}
