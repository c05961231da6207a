// SPDX-License-Identifier: Apache-2.0

package responder

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"

	"github.com/kerb-edge/kerb/internal/lab/netlab"
)

// place is where a contender serves: the client's host, the server's and the interface at which requests come in there.
type place struct {
	lab            *netlab.Lab
	client, server *netlab.Namespace
	nic            string
	address        netip.Addr
	// The other end of the server's veth: its namespace and name.
	peer    *netlab.Namespace
	peerNIC string
}

// openPlace builds hosts joined by one veth, whose node is the server (direct), or two with a node that routes
// (routed). The server's address is one of IPv6 in direct6 and routed6.
func openPlace(kind, prefix string, t *tools) (*place, error) {
	lab, err := netlab.NewIn(prefix)
	if err != nil {
		return nil, err
	}
	p := &place{lab: lab}
	// Checksums are complete, as on a wire.
	opts := netlab.HostOptions{Routed: true, TxChecksumOff: true}
	client, err := lab.Host("client", opts)
	if err == nil {
		p.client = client.Namespace
		way, ipv6 := strings.CutSuffix(kind, "6")
		if way == "direct" {
			p.joinDirectly(client, ipv6)
		} else {
			err = p.joinByRouter(client, opts, t, ipv6)
		}
	}
	if err != nil {
		return nil, errors.Join(err, lab.Close())
	}
	return p, nil
}

// joinDirectly makes the node the server.
func (p *place) joinDirectly(client *netlab.Host, ipv6 bool) {
	p.server, p.nic, p.address = p.lab.Node(), client.Outer(), p.lab.Gateway4()
	if ipv6 {
		p.address = p.lab.Gateway6()
	}
	p.peer, p.peerNIC = client.Namespace, client.Interface()
}

// joinByRouter has the router hand the client's packets to the server's CPU, so that no answer is made on the time of
// who asks.
func (p *place) joinByRouter(client *netlab.Host, opts netlab.HostOptions, t *tools, ipv6 bool) error {
	server, err := p.lab.Host("server", opts)
	if err != nil {
		return err
	}
	p.server, p.nic, p.address = server.Namespace, server.Interface(), server.Addr4()
	if ipv6 {
		p.address = server.Addr6()
	}
	p.peer, p.peerNIC = p.lab.Node(), server.Outer()
	return setPacketSteering(p.lab.Node(), client.Outer(), t.others)
}

// setPacketSteering sets receive packet steering, which sysfs alone knows, and that of the namespace it was mounted in.
func setPacketSteering(ns *netlab.Namespace, nic string, cpus []int) error {
	script := fmt.Sprintf("mount -t sysfs sysfs /sys && echo %x >/sys/class/net/%s/queues/rx-0/rps_cpus", mask(cpus), nic)
	out, err := ns.Command(context.Background(), "unshare", "--mount", "sh", "-c", script).CombinedOutput()
	if err != nil {
		return fmt.Errorf("receive packet steering on %s: %w: %s", nic, err, out)
	}
	return nil
}

// mask is of the first 32 CPUs: one word, and more than one receive queue needs.
func mask(cpus []int) (m uint32) {
	for _, cpu := range cpus {
		if cpu < 32 {
			m |= 1 << cpu
		}
	}
	return m
}

// command prepares a program in the server's or client's namespace.
func command(ns *netlab.Namespace, program string, args ...string) *exec.Cmd {
	return ns.Command(context.Background(), program, args...)
}
