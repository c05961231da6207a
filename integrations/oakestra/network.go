// SPDX-License-Identifier: Apache-2.0

package oakestra

import (
	"crypto/rand"
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"net/netip"
	"path/filepath"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/netdump"
)

const (
	// innerName is the interface in the service's namespace. Runtimes call theirs eth0.
	innerName = "oakestra0"
	// firstNumber is the first host number for a service: 0 is the network, 1 the bridge.
	firstNumber = 2
)

// network is the bridge of the node and its veths.
type network struct {
	bridge           string
	subnet4, subnet6 netip.Prefix
	group            uint32
	mtu              int
	veth             string // prefix of the names of host ends
	complete         bool   // services complete the checksums of their packets
}

func newNetwork(o Options) *network {
	group := linkGroup(o.State)
	n := &network{bridge: o.Bridge, mtu: o.MTU, group: group, veth: fmt.Sprintf("ko%04x-", uint16(group))}
	if o.Subnet != "" { // both were validated with the configuration
		n.subnet4, n.subnet6 = netip.MustParsePrefix(o.Subnet), netip.MustParsePrefix(o.Subnet6)
	}
	return n
}

// assigned reports whether the node has a subnet.
func (n *network) assigned() bool { return n.subnet4.IsValid() }

// renumber sets the subnets, and removes a bridge with addresses of other ones. There are no services on it.
func (n *network) renumber(four, six netip.Prefix) error {
	n.subnet4, n.subnet6 = four, six
	link, err := netlink.LinkByName(n.bridge)
	var missing netlink.LinkNotFoundError
	if errors.As(err, &missing) || err == nil && link.Attrs().Group != n.group {
		return nil
	}
	if err != nil {
		return err
	}
	return removeLink(link)
}

// linkGroup returns the link group that marks the interfaces of one agent's listener from their creation.
func linkGroup(state string) uint32 {
	h := fnv.New32a()
	h.Write([]byte("kerb/oakestra" + state))
	return h.Sum32() | 1 // group 0 is the default of all interfaces
}

// host returns the name of a service's interface on the node.
func (n *network) host(number int) string { return fmt.Sprintf("%s%d", n.veth, number) }

// addresses returns the addresses of a number, with the prefix length of the subnets.
func (n *network) addresses(number int) (four, six netip.Prefix) {
	return nth(n.subnet4, number), nth(n.subnet6, number)
}

// nth returns address number n of a network.
func nth(network netip.Prefix, n int) netip.Prefix {
	addr := network.Addr()
	for range n {
		addr = addr.Next()
	}
	return netip.PrefixFrom(addr, network.Bits())
}

// maxServices limits the services in larger subnets: a bridge has at most 1,023 ports.
const maxServices = 1023

// numberEnd returns the number after the last that a service may have. The last IPv4 address is the broadcast address.
func (n *network) numberEnd() int {
	size := func(p netip.Prefix) int { return 1 << min(p.Addr().BitLen()-p.Bits(), 16) }
	return min(size(n.subnet4)-1, size(n.subnet6), firstNumber+maxServices)
}

// allocateNumber returns a free number. It continues after the last one, round-robin: other hosts may still associate a
// freed address with its former owner.
func (n *network) allocateNumber(s *state) (int, error) {
	used := map[int]bool{}
	for _, x := range s.Services {
		used[x.Number] = true
	}
	count := n.numberEnd() - firstNumber
	for i := 1; i <= count; i++ {
		number := firstNumber + (max(s.Last, firstNumber-1)-firstNumber+i)%count
		if !used[number] {
			s.Last = number
			return number, nil
		}
	}
	return 0, fmt.Errorf("all %d addresses of %s and %s are in use", count, n.subnet4, n.subnet6)
}

// ensureBridge returns the bridge, and creates it if it does not exist.
func (n *network) ensureBridge() (netlink.Link, error) {
	link, err := netlink.LinkByName(n.bridge)
	var missing netlink.LinkNotFoundError
	if errors.As(err, &missing) {
		return n.makeBridge()
	}
	if err != nil {
		return nil, fmt.Errorf("bridge %s: %w", n.bridge, err)
	}
	if link.Type() != "bridge" || link.Attrs().Group != n.group {
		return nil, fmt.Errorf("the interface %s is there and is not this agent's bridge; set oakestra.bridge to "+
			"another name", n.bridge)
	}
	return link, n.setUpBridge(link)
}

func (n *network) makeBridge() (netlink.Link, error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.Group, attrs.MTU = n.bridge, n.group, n.mtu
	attrs.HardwareAddr = randomMAC() // otherwise it changes with the ports, and services lose their gateway
	snooping := false                // the bridge has no multicast querier, which snooping needs
	bridge := &netlink.Bridge{LinkAttrs: attrs, MulticastSnooping: &snooping}
	if err := netlink.LinkAdd(bridge); err != nil {
		return nil, fmt.Errorf("add bridge %s: %w", n.bridge, err)
	}
	return bridge, n.setUpBridge(bridge)
}

// setUpBridge is idempotent: a killed process may have left an incomplete bridge.
func (n *network) setUpBridge(link netlink.Link) error {
	four, six := n.addresses(1)
	for _, p := range []netip.Prefix{four, six} {
		if err := netlink.AddrReplace(link, address(p)); err != nil {
			return fmt.Errorf("address %s of bridge %s: %w", p, n.bridge, err)
		}
	}
	return netlink.LinkSetUp(link)
}

func randomMAC() net.HardwareAddr {
	mac := make(net.HardwareAddr, 6)
	_, _ = rand.Read(mac) // never fails
	mac[0] = mac[0]&^1 | 2
	return mac
}

// address returns p without duplicate address detection: only this process assigns addresses of the subnet.
func address(p netip.Prefix) *netlink.Addr {
	a := &netlink.Addr{IPNet: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}}
	if p.Addr().Is6() {
		a.Flags = unix.IFA_F_NODAD
	}
	return a
}

// connect creates a veth between a namespace and the bridge, which passes no packets until open. After an error it
// leaves nothing behind.
func (n *network) connect(ns netns.NsHandle, number int) error {
	bridge, err := n.ensureBridge()
	if err != nil {
		return err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.Group, attrs.MTU, attrs.MasterIndex = n.host(number), n.group, n.mtu, bridge.Attrs().Index
	veth := netlink.NewVeth(attrs)
	veth.PeerName, veth.PeerNamespace, veth.PeerMTU = innerName, netlink.NsFd(ns), uint32(n.mtu)
	if err := netlink.LinkAdd(veth); err != nil {
		return fmt.Errorf("add veth %s: %w", attrs.Name, err)
	}
	if err := n.setUp(veth, ns, number); err != nil {
		return errors.Join(err, n.disconnect(number))
	}
	return nil
}

func (n *network) setUp(veth netlink.Link, ns netns.NsHandle, number int) error {
	if err := netlink.LinkSetIP6AddrGenMode(veth, nl6None); err != nil {
		return fmt.Errorf("veth %s: %w", veth.Attrs().Name, err)
	}
	return n.setUpInner(ns, number)
}

// open lets packets pass between a service and the bridge.
func (n *network) open(number int) error {
	link, err := netlink.LinkByName(n.host(number))
	if err == nil {
		err = netlink.LinkSetUp(link)
	}
	if err != nil {
		return fmt.Errorf("veth %s: %w", n.host(number), err)
	}
	return nil
}

// nl6None is IN6_ADDR_GEN_MODE_NONE: a port of a bridge has no address, and sends nothing.
const nl6None = 1

// setUpInner adds addresses and routes to the service's end. It uses a netlink handle in the namespace, so that no
// thread has to enter it. It sets lo up if it exists.
func (n *network) setUpInner(ns netns.NsHandle, number int) error {
	h, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("namespace of the service: %w", err)
	}
	defer h.Close()
	link, err := h.LinkByName(innerName)
	if err != nil {
		return fmt.Errorf("%s in the service: %w", innerName, err)
	}
	four, six := n.addresses(number)
	for _, p := range []netip.Prefix{four, six} {
		if err := h.AddrAdd(link, address(p)); err != nil {
			return fmt.Errorf("address %s in the service: %w", p, err)
		}
	}
	if n.complete {
		if err := completeChecksums(ns, innerName); err != nil {
			return err
		}
	}
	if err := errors.Join(setUpIfExists(h, "lo"), h.LinkSetUp(link)); err != nil {
		return fmt.Errorf("%s in the service: %w", innerName, err)
	}
	return n.addRoutes(h, link)
}

func setUpIfExists(h *netlink.Handle, name string) error {
	link, err := h.LinkByName(name)
	if err != nil {
		return err
	}
	return h.LinkSetUp(link)
}

// addRoutes adds routes by the bridge. A default route that a runtime has set is kept.
func (n *network) addRoutes(h *netlink.Handle, link netlink.Link) error {
	four, six := n.addresses(1)
	for _, gw := range []netip.Prefix{four, six} {
		route := &netlink.Route{LinkIndex: link.Attrs().Index, Gw: gw.Addr().AsSlice()}
		if err := h.RouteAdd(route); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("default route of the service by %s: %w", gw.Addr(), err)
		}
	}
	return nil
}

// disconnect removes the veth of a number, if it exists and belongs to the listener.
func (n *network) disconnect(number int) error {
	link, err := n.find(number)
	if link == nil || err != nil {
		return err
	}
	return removeLink(link)
}

// find returns the host end of a number, or nil if there is none.
func (n *network) find(number int) (netlink.Link, error) {
	link, err := netlink.LinkByName(n.host(number))
	var missing netlink.LinkNotFoundError
	if errors.As(err, &missing) || err == nil && link.Attrs().Group != n.group {
		return nil, nil
	}
	return link, err
}

func removeLink(link netlink.Link) error {
	err := netlink.LinkDel(link)
	if errors.Is(err, unix.ENODEV) {
		return nil // removed with its namespace in the meantime
	}
	return err
}

// removeStale removes interfaces of the listener that no service in s has.
func (n *network) removeStale(s *state) error {
	keep := map[string]bool{n.bridge: true}
	for _, x := range s.Services {
		keep[n.host(x.Number)] = true
	}
	return removeLinks(n.group, keep)
}

func removeLinks(group uint32, keep map[string]bool) error {
	links, err := netdump.Links()
	for _, link := range links {
		if link.Attrs().Group == group && !keep[link.Attrs().Name] && (link.Type() == "veth" || link.Type() == "bridge") {
			err = errors.Join(err, removeLink(link))
		}
	}
	return err
}

// Purge removes the NAT table, the bridge and all veths of the listener of an agent with this state directory. Services
// lose their connection.
func Purge(state string) error {
	return errors.Join(purgeTable(linkGroup(state)), removeLinks(linkGroup(state), nil),
		purgeMachines(filepath.Join(state, "oakestra.json")))
}
