// SPDX-License-Identifier: Apache-2.0

// Package netlab creates small networks of hosts for tests, benchmarks and the demo. Each host is a named network
// namespace with a veth, whose other end is a port of the lab's bridge or routed. A lab can have a separate namespace,
// the node, so that it does not affect the machine's network. The names of everything that it creates start with its
// prefix. Close removes all of it, as does Sweep after a killed run. It needs root.
package netlab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"regexp"
	"sync"

	"github.com/vishvananda/netlink"

	"github.com/kerb-edge/kerb/internal/lockfile"
)

// ErrExists is wrapped by Open when another lab with the prefix is open, in this process or another one.
var ErrExists = errors.New("a lab with this prefix exists")

// The prefix ends in a letter so that PREFIX+number identifies one lab, and is short enough for interface names of 15
// bytes (IFNAMSIZ).
var prefixPattern = regexp.MustCompile(`^[a-z]([a-z0-9]{0,7}[a-z])?$`)

// Options are the options of a lab. The zero value is a bridge without addresses in the namespace of the caller.
type Options struct {
	// OwnNode creates the bridge and the hosts' outer veth ends in a separate namespace, PREFIX-node.
	OwnNode bool
	// Gateway assigns the first address of each network to the bridge, and sets it as the hosts' default route.
	Gateway bool
	// Plan4 and Plan6 are the networks of the hosts' addresses; by default 10.99.0.0/16 and fd99::/64.
	Plan4, Plan6 netip.Prefix
}

// Lab is a node with a bridge and hosts. It is safe for concurrent use.
type Lab struct {
	prefix string
	opts   Options
	node   *Namespace
	nl     *netlink.Handle
	bridge *netlink.Bridge
	ctx    context.Context
	cancel context.CancelFunc
	owner  *os.File // lock of the prefix

	mu    sync.Mutex
	next  int
	close sync.Once
}

// New opens a lab in the namespace of the caller.
func New(prefix string) (*Lab, error) { return Open(prefix, Options{}) }

// NewIn opens a lab with a separate node namespace and gateway addresses.
func NewIn(prefix string) (*Lab, error) {
	return Open(prefix, Options{OwnNode: true, Gateway: true})
}

// Open creates the node and its bridge. It first takes the lock of the prefix, and removes what a killed run with this
// prefix has left. After an error, nothing remains.
func Open(prefix string, opts Options) (*Lab, error) {
	if !prefixPattern.MatchString(prefix) {
		return nil, fmt.Errorf("netlab prefix %q: want 1 to 9 of a-z0-9 that begin and end with a letter", prefix)
	}
	owner, err := locks.Acquire(prefix, "")
	if errors.Is(err, lockfile.ErrLocked) {
		err = fmt.Errorf("%w: %w", ErrExists, err)
	}
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	l := &Lab{prefix: prefix, opts: opts.withDefaults(), ctx: ctx, cancel: cancel, owner: owner}
	if err := l.build(); err != nil {
		return nil, errors.Join(fmt.Errorf("open lab %s: %w", prefix, err), l.Close())
	}
	return l, nil
}

func (o Options) withDefaults() Options {
	if !o.Plan4.IsValid() {
		o.Plan4 = netip.MustParsePrefix("10.99.0.0/16")
	}
	if !o.Plan6.IsValid() {
		o.Plan6 = netip.MustParsePrefix("fd99::/64")
	}
	return o
}

func (l *Lab) build() error {
	err := Sweep(l.prefix)
	if err != nil {
		return err
	}
	if l.node, err = l.openNode(); err != nil {
		return err
	}
	if l.nl, err = l.node.netlink(); err != nil {
		return err
	}
	return l.addBridge()
}

func (l *Lab) openNode() (*Namespace, error) {
	if !l.opts.OwnNode {
		return currentNamespace(l.ctx)
	}
	node, err := createNamespace(l.ctx, l.prefix+"-node")
	if err != nil {
		return nil, err
	}
	return node, node.Do(prepareNode)
}

// prepareNode configures a separate node as a router whose bridge is a plain switch: br_netfilter would pass every
// bridged frame through iptables.
func prepareNode() error {
	return errors.Join(
		setSysctl("net/ipv4/ip_forward", "1"),
		setSysctl("net/ipv6/conf/all/forwarding", "1"),
		setSysctl("net/bridge/bridge-nf-call-iptables", "0"),
		setSysctl("net/bridge/bridge-nf-call-ip6tables", "0"),
		setSysctl("net/bridge/bridge-nf-call-arptables", "0"),
		linkUp("lo"),
	)
}

func (l *Lab) addBridge() error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = l.prefix + "br"
	attrs.Group = linkGroup(l.prefix)
	attrs.HardwareAddr = BridgeMAC
	snooping := false
	bridge := &netlink.Bridge{LinkAttrs: attrs, MulticastSnooping: &snooping}
	if err := l.nl.LinkAdd(bridge); err != nil {
		return fmt.Errorf("add bridge %s: %w", attrs.Name, err)
	}
	l.bridge = bridge
	if l.opts.Gateway {
		if err := AddAddresses(l.nl, bridge, l.gateway4(), l.gateway6()); err != nil {
			return err
		}
	}
	return l.nl.LinkSetUp(bridge)
}

// BridgeMAC is the MAC address of bridges. An automatic one would change with the ports, and hosts would lose their
// gateway.
var BridgeMAC = net.HardwareAddr{2, 0, 0, 0, 0, 1}

// Underlay is the interface that AddUnderlay adds.
const Underlay = "underlay0"

// AddUnderlay adds an interface with 192.0.2.1/24 to the node, like that of a network between nodes. Its peer is not
// connected.
func (l *Lab) AddUnderlay() error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = Underlay
	underlay := &netlink.Veth{LinkAttrs: attrs, PeerName: "underlay1"}
	if err := l.nl.LinkAdd(underlay); err != nil {
		return fmt.Errorf("add %s: %w", Underlay, err)
	}
	if err := AddAddresses(l.nl, underlay, netip.MustParsePrefix("192.0.2.1/24")); err != nil {
		return err
	}
	peer, err := l.nl.LinkByName(underlay.PeerName)
	if err != nil {
		return fmt.Errorf("find %s: %w", underlay.PeerName, err)
	}
	return errors.Join(l.nl.LinkSetUp(underlay), l.nl.LinkSetUp(peer))
}

func (l *Lab) gateway4() netip.Prefix { return nth(l.opts.Plan4, 1) }
func (l *Lab) gateway6() netip.Prefix { return nth(l.opts.Plan6, 1) }

// Prefix returns the prefix of all names in the lab.
func (l *Lab) Prefix() string { return l.prefix }

// Bridge returns the interface name of the lab's bridge, in the node.
func (l *Lab) Bridge() string { return l.bridge.Name }

// Gateway4 returns the node's IPv4 address in the hosts' network.
func (l *Lab) Gateway4() netip.Addr { return l.gateway4().Addr() }

// Gateway6 returns the node's IPv6 address in the hosts' network.
func (l *Lab) Gateway6() netip.Addr { return l.gateway6().Addr() }

// Node returns the namespace with the bridge and the outer veth ends.
func (l *Lab) Node() *Namespace { return l.node }

// Close kills the processes of Command and removes everything that the lab created. It may be called several times, and
// after a failure.
func (l *Lab) Close() error {
	var err error
	l.close.Do(func() {
		l.cancel()
		if l.node != nil && !l.opts.OwnNode {
			err = l.node.Do(func() error { return removeLinks(l.prefix) })
		}
		err = errors.Join(err, sweepNamespaces(l.prefix))
		if l.nl != nil {
			l.nl.Close()
		}
		if l.node != nil {
			l.node.close()
		}
		err = errors.Join(err, lockfile.Release(l.owner))
	})
	return err
}
