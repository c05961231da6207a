// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
)

// Wire is an underlay: a veth pair between the nodes of two labs.
type Wire struct {
	ends [2]wireEnd
}

type wireEnd struct {
	lab          *Lab
	name         string
	index        int
	addr4, addr6 netip.Addr
}

// Networks of a wire; the first lab has address 1, the second address 2.
var (
	wire4 = netip.MustParsePrefix("192.0.2.0/24")
	wire6 = netip.MustParsePrefix("2001:db8::/64")
)

// Connect creates a wire between two labs with separate nodes. mtu is in bytes. Closing either lab removes it.
func Connect(a, b *Lab, mtu int) (*Wire, error) {
	if !a.opts.OwnNode || !b.opts.OwnNode {
		return nil, errors.New("only labs with a node of their own can be connected")
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.Group = a.prefix+"u", mtu, linkGroup(a.prefix)
	veth := netlink.NewVeth(attrs)
	veth.PeerName, veth.PeerNamespace, veth.PeerMTU = b.prefix+"u", netlink.NsFd(b.node.handle), uint32(mtu)
	if err := a.nl.LinkAdd(veth); err != nil {
		return nil, fmt.Errorf("add wire %s: %w", attrs.Name, err)
	}
	w := &Wire{[2]wireEnd{{lab: a, name: attrs.Name}, {lab: b, name: veth.PeerName}}}
	for i := range w.ends {
		if err := w.ends[i].configure(i + 1); err != nil {
			return nil, fmt.Errorf("wire %s: %w", w.ends[i].name, err)
		}
	}
	for _, e := range w.ends {
		if err := waitOperational(e.lab.nl, e.name); err != nil {
			return nil, err
		}
	}
	return w, nil
}

func (e *wireEnd) configure(n int) error {
	link, err := e.lab.nl.LinkByName(e.name)
	if err != nil {
		return err
	}
	e.index = link.Attrs().Index
	e.addr4, e.addr6 = nth(wire4, n).Addr(), nth(wire6, n).Addr()
	if err := AddAddresses(e.lab.nl, link, nth(wire4, n), nth(wire6, n)); err != nil {
		return err
	}
	return e.lab.nl.LinkSetUp(link)
}

func (w *Wire) end(l *Lab) wireEnd {
	if w.ends[0].lab == l {
		return w.ends[0]
	}
	return w.ends[1]
}

// Interface returns the name of the wire's end in a lab's node.
func (w *Wire) Interface(l *Lab) string { return w.end(l).name }

// Index returns the interface index of the wire's end in a lab's node.
func (w *Wire) Index(l *Lab) int { return w.end(l).index }

// Addr4 returns a lab's IPv4 address on the wire.
func (w *Wire) Addr4(l *Lab) netip.Addr { return w.end(l).addr4 }

// Addr6 returns a lab's IPv6 address on the wire.
func (w *Wire) Addr6(l *Lab) netip.Addr { return w.end(l).addr6 }
