// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// HostOptions are the options of a host. The zero value is a bridged host with automatic addresses, the default MTU and
// one queue.
type HostOptions struct {
	// Addr4 and Addr6 are the host's addresses with prefix length; the zero value selects the next addresses of the lab's
	// networks.
	Addr4, Addr6 netip.Prefix
	// Routed connects the host without the bridge: the host gets a default route, and the node a route per address. If the
	// node is the caller's namespace, only IPv4 is forwarded, since IPv6 forwarding is a setting of the whole namespace.
	Routed bool
	// MTU in bytes and Queues (receive and transmit) apply to both ends.
	MTU, Queues int
	// TxChecksumOff makes the host compute checksums itself, so that packets look as they would on the wire.
	TxChecksumOff bool
}

// hostInterface is the inner end of every host's veth.
const hostInterface = "eth0"

// Host is a namespace with loopback and the interface eth0.
type Host struct {
	*Namespace
	lab  *Lab
	name string
	opts HostOptions
	out  *netlink.Veth
	mac  net.HardwareAddr
}

// Host adds a host, which is reachable when Host returns. Its namespace has the name PREFIX-name. After an error,
// nothing remains.
func (l *Lab) Host(name string, opts HostOptions) (*Host, error) {
	h, err := l.add(name, opts)
	if err != nil {
		return nil, err
	}
	return h, h.waitUp()
}

// Hosts adds n hosts called h1 to hn, two at a time.
func (l *Lab) Hosts(n int, opts HostOptions) ([]*Host, error) {
	hosts := make([]*Host, n)
	var group errgroup.Group
	group.SetLimit(2) // the kernel's rtnl lock is the limit, not the CPUs
	for i := range hosts {
		group.Go(func() (err error) {
			hosts[i], err = l.add(fmt.Sprintf("h%d", i+1), opts)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	for _, h := range hosts {
		if err := h.waitUp(); err != nil {
			return nil, err
		}
	}
	return hosts, nil
}

func (l *Lab) add(name string, opts HostOptions) (*Host, error) {
	if name == "" || name == "node" || filepath.Base(name) != name {
		return nil, fmt.Errorf("host name %q cannot be used", name)
	}
	h := &Host{lab: l, name: name}
	if err := h.build(opts); err != nil {
		err = fmt.Errorf("host %s: %w", name, err)
		if !errors.Is(err, ErrExists) { // the existing namespace is another host's
			err = errors.Join(err, h.Remove())
		}
		return nil, err
	}
	return h, nil
}

// upTimeout limits the wait for the kernel's link watch, which processes carrier changes in the background, some only
// once a second.
const upTimeout = 30 * time.Second

// waitUp returns when both ends are operational. Before that the bridge drops packets from the port, and the host
// packets that it sends.
func (h *Host) waitUp() error {
	nl, err := h.netlink()
	if err != nil {
		return err
	}
	defer nl.Close()
	if err := waitOperational(nl, hostInterface); err != nil {
		return fmt.Errorf("host %s: %w", h.name, err)
	}
	return waitOperational(h.lab.nl, h.out.Name)
}

func waitOperational(nl *netlink.Handle, name string) error {
	for deadline := time.Now().Add(upTimeout); ; time.Sleep(time.Millisecond) {
		link, err := nl.LinkByName(name)
		if err != nil {
			return fmt.Errorf("interface %s: %w", name, err)
		}
		if link.Attrs().OperState == netlink.OperUp {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("interface %s is %s after %v", name, link.Attrs().OperState, upTimeout)
		}
	}
}

func (h *Host) build(opts HostOptions) error {
	index := h.lab.takeIndex()
	var err error
	if h.opts, err = h.lab.address(opts, index); err != nil {
		return err
	}
	if h.Namespace, err = createNamespace(h.lab.ctx, h.lab.prefix+"-"+h.name); err != nil {
		return err
	}
	if err := h.addVeth(index); err != nil {
		return err
	}
	if err := h.configureInner(); err != nil {
		return fmt.Errorf("inner interface: %w", err)
	}
	if err := h.configureOuter(); err != nil {
		return fmt.Errorf("outer interface: %w", err)
	}
	return nil
}

func (l *Lab) takeIndex() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.next++
	return l.next - 1
}

// address fills in automatic addresses: host i gets 10.99.(1+i/250).(1+i%250) of the default plan, and the same offset
// in the IPv6 plan.
func (l *Lab) address(opts HostOptions, index int) (HostOptions, error) {
	offset := 256*(1+index/250) + 1 + index%250
	if !opts.Addr4.IsValid() {
		opts.Addr4 = nth(l.opts.Plan4, offset)
	}
	if !opts.Addr6.IsValid() {
		opts.Addr6 = nth(l.opts.Plan6, offset)
	}
	if !opts.Addr4.IsValid() || !opts.Addr6.IsValid() {
		return opts, fmt.Errorf("the plans %s and %s have no address for host %d", l.opts.Plan4, l.opts.Plan6, index)
	}
	if opts.Routed {
		opts.Addr4 = netip.PrefixFrom(opts.Addr4.Addr(), 32)
		opts.Addr6 = netip.PrefixFrom(opts.Addr6.Addr(), 128)
	}
	return opts, nil
}

func (h *Host) addVeth(index int) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = fmt.Sprintf("%s%d", h.lab.prefix, index)
	attrs.Group = linkGroup(h.lab.prefix)
	attrs.MTU = h.opts.MTU
	veth := netlink.NewVeth(attrs)
	veth.PeerName = hostInterface
	veth.PeerNamespace = netlink.NsFd(h.handle)
	veth.PeerMTU = uint32(h.opts.MTU)
	if q := h.opts.Queues; q > 0 {
		veth.NumTxQueues, veth.NumRxQueues = q, q
		veth.PeerNumTxQueues, veth.PeerNumRxQueues = uint32(q), uint32(q)
	}
	if err := h.lab.nl.LinkAdd(veth); err != nil {
		return fmt.Errorf("add veth %s: %w", attrs.Name, err)
	}
	h.out = veth
	return nil
}

func (h *Host) configureInner() error {
	nl, err := h.netlink()
	if err != nil {
		return err
	}
	defer nl.Close()
	link, err := nl.LinkByName(hostInterface)
	if err != nil {
		return err
	}
	h.mac = link.Attrs().HardwareAddr
	if h.opts.TxChecksumOff {
		if err := h.Do(func() error { return SetTxChecksum(hostInterface, false) }); err != nil {
			return err
		}
	}
	if err := AddAddresses(nl, link, h.opts.Addr4, h.opts.Addr6); err != nil {
		return err
	}
	if err := nl.LinkSetUp(link); err != nil {
		return err
	}
	return h.addRoutes(nl, link)
}

// addRoutes adds routes via the gateway; a routed host needs an on-link route to the gateway first.
func (h *Host) addRoutes(nl *netlink.Handle, link netlink.Link) error {
	if !h.opts.Routed && !h.lab.opts.Gateway {
		return nil
	}
	for _, gw := range []netip.Prefix{h.lab.gateway4(), h.lab.gateway6()} {
		if h.opts.Routed {
			direct := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: hostNet(gw.Addr()), Scope: netlink.SCOPE_LINK}
			if err := nl.RouteAdd(direct); err != nil {
				return fmt.Errorf("route to %s: %w", gw.Addr(), err)
			}
		}
		def := &netlink.Route{LinkIndex: link.Attrs().Index, Gw: gw.Addr().AsSlice()}
		err := nl.RouteAdd(def)
		// The kernel adds the route of the address's prefix in the background when it is busy, such as with 1,000 hosts.
		for deadline := time.Now().Add(upTimeout); errors.Is(err, unix.EHOSTUNREACH) && time.Now().Before(deadline); {
			time.Sleep(time.Millisecond)
			err = nl.RouteAdd(def)
		}
		if err != nil {
			return fmt.Errorf("default route by %s: %w", gw.Addr(), err)
		}
	}
	return nil
}

func (h *Host) configureOuter() error {
	conf := "net/ipv6/conf/" + h.out.Name
	if !h.opts.Routed {
		// A bridge port needs no address; without one it also sends nothing.
		if err := h.lab.node.Do(func() error { return setSysctl(conf+"/disable_ipv6", "1") }); err != nil {
			return err
		}
		if err := h.lab.nl.LinkSetMasterByIndex(h.out, h.lab.bridge.Index); err != nil {
			return err
		}
		return h.lab.nl.LinkSetUp(h.out)
	}
	return h.routeOuter()
}

func (h *Host) routeOuter() error {
	err := h.lab.node.Do(func() error {
		return errors.Join(
			setSysctl("net/ipv6/conf/"+h.out.Name+"/accept_dad", "0"),
			setSysctl("net/ipv4/conf/"+h.out.Name+"/forwarding", "1"))
	})
	if err != nil {
		return err
	}
	nl, gw4, gw6 := h.lab.nl, h.lab.gateway4().Addr(), h.lab.gateway6().Addr()
	if err := AddAddresses(nl, h.out, netip.PrefixFrom(gw4, 32), netip.PrefixFrom(gw6, 128)); err != nil {
		return err
	}
	if err := nl.LinkSetUp(h.out); err != nil {
		return err
	}
	for _, addr := range []netip.Addr{h.Addr4(), h.Addr6()} {
		route := &netlink.Route{LinkIndex: h.out.Index, Dst: hostNet(addr), Scope: netlink.SCOPE_LINK}
		if err := nl.RouteAdd(route); err != nil {
			return fmt.Errorf("route to %s: %w", addr, err)
		}
	}
	return nil
}

// Name returns the host's name without the lab's prefix.
func (h *Host) Name() string { return h.name }

// Addr4 returns the host's IPv4 address.
func (h *Host) Addr4() netip.Addr { return h.opts.Addr4.Addr() }

// Addr6 returns the host's IPv6 address.
func (h *Host) Addr6() netip.Addr { return h.opts.Addr6.Addr() }

// MAC returns the hardware address of the inner interface.
func (h *Host) MAC() net.HardwareAddr { return h.mac }

// Interface returns the name of the inner interface, in the host.
func (h *Host) Interface() string { return hostInterface }

// Outer returns the name of the outer interface, in the node.
func (h *Host) Outer() string { return h.out.Name }

// OuterIndex returns the interface index of the outer interface, in the node.
func (h *Host) OuterIndex() int { return h.out.Index }

// Remove removes the host from the lab, as if a service disappeared.
func (h *Host) Remove() error {
	var errs []error
	if h.out != nil {
		err := h.lab.nl.LinkDel(h.out)
		if !errors.As(err, new(netlink.LinkNotFoundError)) {
			errs = append(errs, err)
		}
		h.out = nil
	}
	if h.Namespace != nil {
		h.close()
		errs = append(errs, removeNamespace(h.lab.prefix+"-"+h.name))
		h.Namespace = nil
	}
	return errors.Join(errs...)
}
