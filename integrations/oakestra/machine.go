// SPDX-License-Identifier: Apache-2.0

package oakestra

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// A virtual machine (unikernel, crosvm) has a named network namespace, in which NodeEngine starts its hypervisor:
//
//	oakestra0   the veth to the bridge of the node, with the addresses of the service
//	virbr0      192.168.1.1/30, fd6b:6572:62::1/126
//	tap0        the port of virbr0 that the hypervisor opens; the machine has 192.168.1.2 and fd6b:6572:62::2
//
// The namespace is a router: it translates the addresses of the service to those of the machine, and back.
const (
	machineBridge = "virbr0"
	machineTap    = "tap0"
	netnsDir      = "/run/netns"
)

var (
	machineGateways = [...]netip.Prefix{netip.MustParsePrefix("192.168.1.1/30"),
		netip.MustParsePrefix("fd6b:6572:62::1/126")}
	machineAddresses = [...]netip.Addr{netip.MustParseAddr("192.168.1.2"), netip.MustParseAddr("fd6b:6572:62::2")}
)

// machineNamespace returns the name of the namespace that NodeEngine expects. Names of services have no slash.
func machineNamespace(name string, instance int) string {
	return fmt.Sprintf("%s.instance.%d", name, instance)
}

// onHost runs f on a separate thread in the mount namespace of the node, since NodeEngine does not see mounts in the
// namespace of a systemd unit. The thread ends afterwards.
func onHost(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		err := enterHostMounts()
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return <-done
}

func enterHostMounts() error {
	const host = "/proc/1/ns/mnt"
	var theirs, own unix.Stat_t
	err := unix.Stat(host, &theirs)
	if errors.Is(err, unix.EACCES) {
		return nil // the first process belongs to another user namespace, whose mounts no agent can enter
	}
	if err := errors.Join(err, unix.Stat("/proc/thread-self/ns/mnt", &own)); err != nil {
		return fmt.Errorf("mount namespace of the node: %w", err)
	}
	if theirs.Ino == own.Ino && theirs.Dev == own.Dev {
		return nil
	}
	fd, err := unix.Open(host, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("mount namespace of the node: %w", err)
	}
	defer unix.Close(fd)
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("mount namespace of the node: %w", err)
	}
	if err := unix.Setns(fd, unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("enter the mount namespace of the node: %w; virtual machines need CAP_SYS_CHROOT, "+
			"see docs/oakestra.md#virtual-machines", err)
	}
	return nil
}

// openMachine returns the namespace of a machine and its inode, or fs.ErrNotExist.
func openMachine(name string) (ns netns.NsHandle, inode uint64, err error) {
	ns = netns.None()
	err = onHost(func() (err error) {
		ns, err = netns.GetFromPath(filepath.Join(netnsDir, name))
		return err
	})
	if err != nil {
		return ns, 0, err
	}
	var info unix.Stat_t
	if err := unix.Fstat(int(ns), &info); err != nil {
		ns.Close()
		return netns.None(), 0, err
	}
	return ns, info.Ino, nil
}

// makeMachine creates the namespace with its bridge and tap. It replaces an existing namespace of that name: names of
// this form are NodeEngine's, and the state file may have been lost.
func makeMachine(name string, mtu int) (netns.NsHandle, uint64, error) {
	if err := removeMachine(name); err != nil {
		return netns.None(), 0, err
	}
	err := onHost(func() error {
		ns, err := netns.NewNamed(name) // switches the thread to the namespace
		if err != nil {
			return fmt.Errorf("network namespace %s: %w", name, err)
		}
		defer ns.Close()
		return addMachineLinks(mtu)
	})
	if err != nil {
		return netns.None(), 0, errors.Join(err, removeMachine(name))
	}
	return openMachine(name)
}

func removeMachine(name string) error {
	return onHost(func() error {
		path := filepath.Join(netnsDir, name)
		for {
			err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
			if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
				break // nothing is mounted any more
			}
			if err != nil {
				return fmt.Errorf("network namespace %s: %w", name, err)
			}
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("network namespace %s: %w", name, err)
		}
		return nil
	})
}

// addMachineLinks adds the bridge and the tap. It runs in the namespace.
func addMachineLinks(mtu int) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.HardwareAddr = machineBridge, mtu, randomMAC()
	bridge := &netlink.Bridge{LinkAttrs: attrs}
	if err := netlink.LinkAdd(bridge); err != nil {
		return fmt.Errorf("add bridge %s: %w", machineBridge, err)
	}
	attrs = netlink.NewLinkAttrs()
	attrs.Name = machineTap
	tap := &netlink.Tuntap{LinkAttrs: attrs, Mode: netlink.TUNTAP_MODE_TAP}
	if err := netlink.LinkAdd(tap); err != nil {
		return fmt.Errorf("add %s (it needs /dev/net/tun, see docs/oakestra.md#virtual-machines): %w", machineTap, err)
	}
	err := errors.Join(netlink.LinkSetMTU(tap, mtu), netlink.LinkSetMaster(tap, bridge), netlink.LinkSetUp(tap))
	for _, p := range machineGateways {
		err = errors.Join(err, netlink.AddrReplace(bridge, address(p)))
	}
	if err := errors.Join(err, netlink.LinkSetUp(bridge)); err != nil {
		return fmt.Errorf("interfaces of the machine: %w", err)
	}
	for path, required := range map[string]bool{"ipv4/ip_forward": true, "ipv6/conf/all/forwarding": false} {
		err := os.WriteFile("/proc/sys/net/"+path, []byte("1"), 0)
		if err != nil && (required || !errors.Is(err, fs.ErrNotExist)) {
			return fmt.Errorf("the namespace does not forward: %w", err)
		}
	}
	return nil
}

// translateMachine adds NAT between the addresses of a number and those of the machine to the namespace.
func (n *network) translateMachine(ns netns.NsHandle, number int) error {
	c, err := nftables.New(nftables.WithNetNSFd(int(ns)))
	if err != nil {
		return explainNATError(err)
	}
	table := c.AddTable(newTable(n.group))
	in := c.AddChain(&nftables.Chain{Name: "in", Table: table, Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityNATDest})
	out := c.AddChain(&nftables.Chain{Name: "out", Table: table, Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource})
	four, six := n.addresses(number)
	for i, own := range []netip.Addr{four.Addr(), six.Addr()} {
		machine := machineAddresses[i]
		c.AddRule(&nftables.Rule{Table: table, Chain: in, Exprs: concat(isFamily(own), isTo(own),
			natTo(expr.NATTypeDestNAT, machine))})
		c.AddRule(&nftables.Rule{Table: table, Chain: out, Exprs: concat(isFamily(own),
			isFrom(netip.PrefixFrom(machine, machine.BitLen())), natTo(expr.NATTypeSourceNAT, own))})
	}
	return explainNATError(c.Flush())
}

func isTo(a netip.Addr) []expr.Any {
	at := &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 16, Len: 4}
	if a.Is6() {
		at.Offset, at.Len = 24, 16
	}
	return []expr.Any{at, equal(a.AsSlice())}
}

func natTo(kind expr.NATType, to netip.Addr) []expr.Any {
	return []expr.Any{&expr.Immediate{Register: 1, Data: to.AsSlice()},
		&expr.NAT{Type: kind, Family: uint32(family(to)), RegAddrMin: 1}}
}

// purgeMachines removes the namespaces of all machines in the state file.
func purgeMachines(file string) error {
	s, err := readState(file)
	if err != nil {
		return nil // damaged: the deployed instance is unknown
	}
	for _, x := range s.Services {
		if x.Machine {
			err = errors.Join(err, removeMachine(machineNamespace(x.Name, x.Instance)))
		}
	}
	return err
}
