// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/kerb-edge/kerb/internal/lab/netlab"
)

// nftTimeout bounds one rule set; 10,000 ranges take seconds.
const nftTimeout = 60 * time.Second

// nftables is the rule set as one concatenated set and one lookup. On the
// service's outer interface the netdev family has the same hook as Kerb (its
// egress, Linux 5.16); before that the bridge's forward hook is the place.
type nftables struct {
	lab *netlab.Lab
}

func openNFTables(lab *netlab.Lab, service *netlab.Host, rules []Rule) (Firewall, error) {
	if _, err := exec.LookPath("nft"); err != nil {
		return nil, err
	}
	n := &nftables{lab}
	err := n.load(netdevRuleset(service.Outer(), rules))
	if err != nil {
		err = errors.Join(err, n.load(bridgeRuleset(service.Outer(), rules)))
	}
	return n, err
}

func (n *nftables) load(ruleset string) error {
	ctx, cancel := context.WithTimeout(context.Background(), nftTimeout)
	defer cancel()
	cmd := n.lab.Node().Command(ctx, "nft", "-f", "-")
	var stderr bytes.Buffer
	cmd.Stdin, cmd.Stderr = strings.NewReader(ruleset), &stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("nft: %w: %s", err, firstLine(stderr.String()))
	}
	return nil
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}

func (n *nftables) Close() error { return n.load("flush ruleset") }

func netdevRuleset(device string, rules []Rule) string {
	return fmt.Sprintf(`table netdev bench {
%s	chain service {
		type filter hook egress device "%s" priority 0; policy drop;
		ip saddr . meta l4proto . th dport @allowed accept
		meta protocol arp accept
	}
}
`, allowed(rules), device)
}

func bridgeRuleset(device string, rules []Rule) string {
	return fmt.Sprintf(`table bridge bench {
%s	chain service {
		type filter hook forward priority 0; policy accept;
		oifname != "%s" accept
		ip saddr . meta l4proto . th dport @allowed accept
		ether type arp accept
		drop
	}
}
`, allowed(rules), device)
}

// allowed is the set: a hash of exact elements, or one of intervals (pipapo).
func allowed(rules []Rule) string {
	flags := ""
	elements := make([]string, len(rules))
	for i, r := range rules {
		source, port := r.Source.String(), fmt.Sprint(r.PortLow)
		if r.Source.IsSingleIP() {
			source = r.Source.Addr().String()
		} else {
			flags = "\t\tflags interval\n"
		}
		if r.PortHigh != r.PortLow {
			port = fmt.Sprintf("%d-%d", r.PortLow, r.PortHigh)
			flags = "\t\tflags interval\n"
		}
		elements[i] = source + " . " + r.Protocol + " . " + port
	}
	return "\tset allowed {\n\t\ttype ipv4_addr . inet_proto . inet_service\n" + flags +
		"\t\telements = { " + strings.Join(elements, ",\n\t\t") + " }\n\t}\n"
}
