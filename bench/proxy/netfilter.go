// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"

	"github.com/kerb-edge/kerb/bench/internal/path"
)

// others are the services alongside the one that is measured.
const others = 99

// ports of the measured service.
var ports = []struct {
	protocol string
	port     int
}{{"tcp", path.StreamPort}, {"udp", path.StreamPort}, {"tcp", path.TripPort}, {"tcp", flowPort}, {"tcp", flowPort + 1}}

// netfilter's rules live in the lab's node and go with it.
func (g *ground) feed(rules string, name string, args ...string) (closer, error) {
	if _, err := exec.LookPath(name); err != nil {
		return nil, err
	}
	cmd := g.lab.Node().Command(context.Background(), name, args...)
	var stderr bytes.Buffer
	cmd.Stdin, cmd.Stderr = strings.NewReader(rules), &stderr
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%s: %w: %s", name, err, stderr.String())
	}
	return nothing{}, nil
}

// raiseNFTables makes kube-proxy's nftables mode: one map look-up finds the service, a chain of its own the endpoint.
func raiseNFTables(g *ground) (closer, error) {
	family, word := "ip", "ipv4_addr"
	if g.virtual[0].Is6() {
		family, word = "ip6", "ipv6_addr"
	}
	var chains, elements strings.Builder
	for _, p := range ports {
		chain := fmt.Sprintf("service-%s-%d", p.protocol, p.port)
		fmt.Fprintf(&chains, "\tchain endpoint-%s { meta l4proto %s dnat to %s; }\n", chain, p.protocol,
			endpoint(g.addr(g.server), p.port))
		fmt.Fprintf(&chains, "\tchain %s { numgen random mod 1 vmap { 0 : goto endpoint-%s }; }\n", chain, chain)
		fmt.Fprintf(&elements, "\t\t\t%s . %s . %d : goto %s,\n", g.virtual[1], p.protocol, p.port, chain)
	}
	other := g.virtual[1]
	for range others {
		other = other.Next()
		fmt.Fprintf(&elements, "\t\t\t%s . tcp . 80 : goto service-tcp-%d,\n", other, path.TripPort)
	}
	return g.feed(fmt.Sprintf(`table %s kube-proxy {
%s	map service-ips {
		type %s . inet_proto . inet_service : verdict
		elements = {
%s		}
	}
	chain services { %s daddr . meta l4proto . th dport vmap @service-ips; }
	chain nat-prerouting {
		type nat hook prerouting priority dstnat; policy accept;
		jump services
	}
}
`, family, chains.String(), word, elements.String(), family), "nft", "-f", "-")
}

func endpoint(addr netip.Addr, port int) string {
	return netip.AddrPortFrom(addr, uint16(port)).String()
}

// raiseIPTables makes kube-proxy's iptables mode: a list of services, a chain for each, and one for its endpoint.
func raiseIPTables(g *ground) (closer, error) {
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
			endpoint(g.addr(g.server), to))
	}
	other := g.virtual[1]
	for i := range others {
		if i == others/2 {
			for n, p := range ports {
				service(fmt.Sprintf("BENCH%d", n), g.virtual[1], p.protocol, p.port, p.port)
			}
		}
		other = other.Next()
		service(fmt.Sprintf("OTHER%d", i), other, "tcp", 80, path.TripPort)
	}
	return g.feed(fmt.Sprintf("*nat\n:PREROUTING ACCEPT [0:0]\n:KUBE-SERVICES - [0:0]\n%s-A PREROUTING -j "+
		"KUBE-SERVICES\n%sCOMMIT\n",
		chains.String(), rules.String()), command)
}
