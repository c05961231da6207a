// SPDX-License-Identifier: Apache-2.0

package contender

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"time"

	"github.com/kerb-edge/kerb/bench/internal/path"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
)

// Others are the services in addition to the measured one.
const Others = 99

// Port is a port of the measured service.
type Port struct {
	Protocol string
	Number   int
}

// Ports are the ports of package path.
var Ports = []Port{{"tcp", path.StreamPort}, {"udp", path.StreamPort}, {"tcp", path.TripPort},
	{"udp", path.TripPort}}

// NFTables returns rules like those of kube-proxy's nftables mode: a map lookup by virtual address finds the service,
// whose chain selects the endpoint, the server.
func NFTables(virtual, server netip.Addr, ports []Port) string {
	family, word := "ip", "ipv4_addr"
	if virtual.Is6() {
		family, word = "ip6", "ipv6_addr"
	}
	var chains, elements strings.Builder
	for _, p := range ports {
		chain := fmt.Sprintf("service-%s-%d", p.Protocol, p.Number)
		fmt.Fprintf(&chains, "\tchain endpoint-%s { meta l4proto %s dnat to %s; }\n", chain, p.Protocol,
			netip.AddrPortFrom(server, uint16(p.Number)))
		fmt.Fprintf(&chains, "\tchain %s { numgen random mod 1 vmap { 0 : goto endpoint-%s }; }\n", chain, chain)
		fmt.Fprintf(&elements, "\t\t\t%s . %s . %d : goto %s,\n", virtual, p.Protocol, p.Number, chain)
	}
	other := virtual
	for range Others {
		other = other.Next()
		fmt.Fprintf(&elements, "\t\t\t%s . tcp . 80 : goto service-%s-%d,\n", other, ports[0].Protocol, ports[0].Number)
	}
	return fmt.Sprintf(`table %s kube-proxy {
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
`, family, chains.String(), word, elements.String(), family)
}

// feedTimeout is the timeout for one rule set; 10,000 ranges take seconds.
const feedTimeout = 60 * time.Second

// Feed runs a program in a namespace with rules on its standard input. The error is exec.ErrNotFound if the program is
// not installed.
func Feed(ns *netlab.Namespace, rules string, name string, args ...string) error {
	if _, err := exec.LookPath(name); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), feedTimeout)
	defer cancel()
	cmd := ns.Command(ctx, name, args...)
	var stderr bytes.Buffer
	cmd.Stdin, cmd.Stderr = strings.NewReader(rules), &stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w: %.300s", name, err, &stderr)
	}
	return nil
}
