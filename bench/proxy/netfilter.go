// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/kerb-edge/kerb/bench/internal/contender"
	"github.com/kerb-edge/kerb/bench/internal/path"
)

// ports of the measured service.
var ports = append([]contender.Port{{Protocol: "tcp", Number: flowPort}, {Protocol: "tcp", Number: flowPort + 1}},
	contender.Ports...)

// setupNFTables loads rules in the lab's node.
func setupNFTables(g *topology) error {
	return contender.Feed(g.lab.Node(), contender.NFTables(g.virtual[1], g.addr(g.server), ports), "nft", "-f", "-")
}

// setupIPTables loads rules like those of kube-proxy's iptables mode: a list of services, a chain for each, and one for
// its endpoint.
func setupIPTables(g *topology) error {
	command, bits := "iptables-restore", 32
	if g.virtual[0].Is6() {
		command, bits = "ip6tables-restore", 128
	}
	var chains, rules strings.Builder
	service := func(name string, addr netip.Addr, protocol string, from, to int) {
		fmt.Fprintf(&chains, ":KUBE-SVC-%s - [0:0]\n:KUBE-SEP-%s - [0:0]\n", name, name)
		fmt.Fprintf(&rules, "-A KUBE-SERVICES -d %s/%d -p %s -m %s --dport %d -j KUBE-SVC-%s\n", addr, bits, protocol,
			protocol, from, name)
		fmt.Fprintf(&rules, "-A KUBE-SVC-%s -j KUBE-SEP-%s\n", name, name)
		fmt.Fprintf(&rules, "-A KUBE-SEP-%s -p %s -m %s -j DNAT --to-destination %s\n", name, protocol, protocol,
			netip.AddrPortFrom(g.addr(g.server), uint16(to)))
	}
	other := g.virtual[1]
	for i := range contender.Others {
		if i == contender.Others/2 {
			for n, p := range ports {
				service(fmt.Sprintf("BENCH%d", n), g.virtual[1], p.Protocol, p.Number, p.Number)
			}
		}
		other = other.Next()
		service(fmt.Sprintf("OTHER%d", i), other, "tcp", 80, path.TripPort)
	}
	return contender.Feed(g.lab.Node(), fmt.Sprintf("*nat\n"+
		":PREROUTING ACCEPT [0:0]\n:KUBE-SERVICES - [0:0]\n%s-A PREROUTING "+
		"-j KUBE-SERVICES\n%sCOMMIT\n",
		chains.String(), rules.String()), command)
}
