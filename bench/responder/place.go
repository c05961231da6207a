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

// place has the client's host, the server's host, and the interface that receives the requests.
type place struct {
	lab            *netlab.Lab
	client, server *netlab.Namespace
	nic            string
	address        netip.Addr
	// Namespace and name of the peer of the server's veth.
	peer    *netlab.Namespace
	peerNIC string
}

// openPlace builds a host connected to the node, which is the server (direct), or two hosts with the node as a router
// (routed). direct6 and routed6 use IPv6.
func openPlace(kind, prefix string, t *tools) (*place, error) {
	lab, err := netlab.NewIn(prefix)
	if err != nil {
		return nil, err
	}
	p := &place{lab: lab}
	// No checksum offload, as on a wire.
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

// joinByRouter makes the router process the client's packets on the server's CPU, so that the client's CPU does no work
// for answers.
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

// setPacketSteering sets receive packet steering. It requires the sysfs mount of the namespace.
func setPacketSteering(ns *netlab.Namespace, nic string, cpus []int) error {
	script := fmt.Sprintf("mount -t sysfs sysfs /sys && echo %x >/sys/class/net/%s/queues/rx-0/rps_cpus", mask(cpus), nic)
	out, err := ns.Command(context.Background(), "unshare", "--mount", "sh", "-c", script).CombinedOutput()
	if err != nil {
		return fmt.Errorf("receive packet steering on %s: %w: %s", nic, err, out)
	}
	return nil
}

// mask returns a mask of the first 32 CPUs, more than one receive queue needs.
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
