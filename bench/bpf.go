// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/lab/netlab"
)

// ErrNotBuilt is wrapped if the program was built without the compiled data planes of the references.
var ErrNotBuilt = errors.New("not built in; run `make bpf`, then build again")

// Object reads a compiled data plane from a package's embedded files.
func Object(files fs.FS, name string) (*ebpf.CollectionSpec, error) {
	data, err := fs.ReadFile(files, name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: %w", name, ErrNotBuilt)
	}
	if err != nil {
		return nil, err
	}
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return spec, nil
}

// HaveTCX returns an error if the kernel has no TCX (Linux 6.6).
func HaveTCX() error {
	const loopback = 1 // exists in every namespace; it is only queried
	_, err := link.QueryPrograms(link.QueryOptions{Target: loopback, Attach: ebpf.AttachTCXIngress})
	return err
}

// AttachXDP attaches a program in native mode to an interface of a namespace. If the driver does not support XDP, it
// returns an error for LeftOut.
func AttachXDP(ns *netlab.Namespace, nic string, p *ebpf.Program) (l link.Link, err error) {
	err = ns.Do(func() error {
		device, err := netlink.LinkByName(nic)
		if err != nil {
			return err
		}
		l, err = link.AttachXDP(link.XDPOptions{Program: p, Interface: device.Attrs().Index, Flags: link.XDPDriverMode})
		if err != nil {
			return fmt.Errorf("%w: native XDP on %s: %w", ErrLeftOut, nic, err)
		}
		return nil
	})
	return l, err
}

// AddClsact adds a clsact qdisc to an interface in the thread's namespace. Deleting the qdisc removes its filters.
func AddClsact(ifindex int) (*netlink.Clsact, error) {
	qdisc := &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: ifindex, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}}
	if err := netlink.QdiscAdd(qdisc); err != nil {
		return nil, fmt.Errorf("add clsact: %w", err)
	}
	return qdisc, nil
}

// PutFilter adds a direct-action filter to a clsact qdisc, or replaces the one with its priority and handle. parent is
// netlink.HANDLE_MIN_INGRESS or HANDLE_MIN_EGRESS.
func PutFilter(ifindex int, parent uint32, priority, handle int, p *ebpf.Program) error {
	filter := &netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{LinkIndex: ifindex, Parent: parent, Priority: uint16(priority),
			Handle: uint32(handle), Protocol: unix.ETH_P_ALL},
		Fd: p.FD(), Name: "bench", DirectAction: true,
	}
	if err := netlink.FilterReplace(filter); err != nil {
		return fmt.Errorf("add filter %d: %w", handle, err)
	}
	return nil
}
