// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// nth returns the n-th address of a network with its prefix length, or the zero Prefix if the network is too small.
func nth(network netip.Prefix, n int) netip.Prefix {
	addr := network.Masked().Addr()
	for range n {
		addr = addr.Next()
	}
	if !network.Contains(addr) {
		return netip.Prefix{}
	}
	return netip.PrefixFrom(addr, network.Bits())
}

// hostNet returns the network of one address.
func hostNet(addr netip.Addr) *net.IPNet {
	return IPNet(netip.PrefixFrom(addr, addr.BitLen()))
}

// IPNet converts a prefix, or an address with prefix length, to the type of package netlink.
func IPNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// AddAddresses adds addresses. IPv6 addresses are usable immediately, without duplicate address detection.
func AddAddresses(nl *netlink.Handle, link netlink.Link, prefixes ...netip.Prefix) error {
	for _, p := range prefixes {
		addr := &netlink.Addr{IPNet: IPNet(p)}
		if p.Addr().Is6() {
			addr.Flags = unix.IFA_F_NODAD
		}
		if err := nl.AddrAdd(link, addr); err != nil {
			return fmt.Errorf("address %s on %s: %w", p, link.Attrs().Name, err)
		}
	}
	return nil
}
