// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// HostOptions shape a host. The zero value is a bridged host with automatic
// addresses, the default MTU and one queue.
type HostOptions struct {
	// Addr4 and Addr6 are the host's addresses with the prefix length of its
	// network; zero takes the next ones of the lab's plans.
	Addr4, Addr6 netip.Prefix
	// Routed leaves the outer end off the bridge: the host gets a default
	// route, the node a host route per address. IPv6 beyond the node needs
	// Options.OwnNode, because forwarding of IPv6 is switched per namespace.
	Routed bool
	// MTU in bytes and Queues (receive and transmit) hold for both ends.
	MTU, Queues int
	// TxChecksumOff makes the host compute checksums itself, as packets that
	// leave the machine would carry them.
	TxChecksumOff bool
}

// Host is a namespace with loopback and the interface eth0.
type Host struct {
	*Namespace
	lab  *Lab
	name string
	opts HostOptions
	veth *netlink.Veth
	mac  net.HardwareAddr
	idx  int
}

// hostInterface is the inner end of every host's veth.
const hostInterface = "eth0"

// Host adds a host; its namespace is called PREFIX-name.
func (l *Lab) Host(name string, opts HostOptions) (*Host, error) {
	if name == "" || name == "node" || filepath.Base(name) != name {
		return nil, fmt.Errorf("host name %q cannot be used", name)
	}
	h := &Host{lab: l, name: name, opts: l.fill(&opts)}
	l.mu.Lock()
	h.idx = l.next - 1
	l.mu.Unlock()
	return h, nil
}
