// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/kerb-edge/kerb/bench/internal/contender"
	"github.com/kerb-edge/kerb/internal/lab/classbench"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
)

// nftables has the rules as sets, see chainOf. It uses the same hook as Kerb, the egress of the service's outer
// interface (family netdev, Linux 5.16), or on older kernels the bridge's forward hook.
type nftables struct {
	lab     *netlab.Lab
	ruleset func(rules []Rule) string
	family  string
}

func openNFTables(lab *netlab.Lab, service *netlab.Host, rules []Rule) (Firewall, error) {
	n := &nftables{lab, func(rules []Rule) string { return netdevRuleset(service.Outer(), rules) }, "netdev"}
	err := n.Replace(rules)
	if err != nil {
		n.ruleset, n.family = func(rules []Rule) string { return bridgeRuleset(service.Outer(), rules) }, "bridge"
		err = errors.Join(err, n.Replace(rules))
	}
	return n, err
}

// Replace implements Firewall. It is one transaction.
func (n *nftables) Replace(rules []Rule) error { return n.load("flush ruleset\n" + n.ruleset(rules)) }

func (n *nftables) load(ruleset string) error {
	return contender.Feed(n.lab.Node(), ruleset, "nft", "-f", "-")
}

func (n *nftables) Close() error { return n.load("flush ruleset") }

func netdevRuleset(device string, rules []Rule) string {
	sets, chain := chainOf(rules)
	return fmt.Sprintf(`table netdev bench {
%s	chain service {
		type filter hook egress device "%s" priority 0; policy drop;
%s		meta protocol arp accept
	}
}
`, sets, device, chain)
}

func bridgeRuleset(device string, rules []Rule) string {
	sets, chain := chainOf(rules)
	return fmt.Sprintf(`table bridge bench {
%s	chain service {
		type filter hook forward priority 0; policy accept;
		oifname != "%s" accept
%s		ether type arp accept
		drop
	}
}
`, sets, device, chain)
}

// minSetRules is the number of rules from which on a set pays off.
const minSetRules = 8

// chainOf returns the rules in the form that nftables evaluates fastest: a verdict map for each layer of rules that do
// not overlap, with a hash for exact rules. Overlapping rules cannot be elements of one map. From the first layer with
// few rules on, rules are evaluated in order.
func chainOf(rules []Rule) (maps, chain string) {
	if isSet(rules) {
		return nftSet(rules)
	}
	var m, c strings.Builder
	all := layers(rules)
	for i, layer := range all {
		if len(layer) < minSetRules && len(rules) > minSetRules {
			rest := map[Rule]bool{}
			for _, l := range all[i:] {
				for _, r := range l {
					rest[r] = true
				}
			}
			for _, r := range rules {
				if rest[r] {
					fmt.Fprintf(&c, "\t\t%s\n", linear(&r))
				}
			}
			break
		}
		exact, other := splitExact(layer)
		if len(exact) > 0 {
			writeMap(&m, &c, fmt.Sprint("exact", i), exact, "")
		}
		if len(other) > 0 {
			writeMap(&m, &c, fmt.Sprint("interval", i), other, "\t\tflags interval\n")
		}
	}
	return m.String(), c.String()
}

// splitExact separates the rules that fit into a hash.
func splitExact(rules []Rule) (exact, other []Rule) {
	columns := columnsOf(rules)
	for i := range rules {
		single := true
		for _, c := range columns {
			single = single && !strings.ContainsAny(c.cell(&rules[i]), "-/")
		}
		if single {
			exact = append(exact, rules[i])
		} else {
			other = append(other, rules[i])
		}
	}
	if len(other) > 0 && len(exact) < minSetRules {
		return nil, rules
	}
	return exact, other
}

func writeMap(maps, chain *strings.Builder, name string, rules []Rule, flags string) {
	columns := columnsOf(rules)
	types, keys, cells := make([]string, len(columns)), make([]string, len(columns)), make([]string, len(columns))
	for i, c := range columns {
		types[i], keys[i] = c.kind, c.key
	}
	fmt.Fprintf(maps, "\tmap %s {\n\t\ttype %s : verdict\n%s\t\telements = {", name, strings.Join(types, " . "), flags)
	for i := range rules {
		for j, c := range columns {
			cells[j] = c.cell(&rules[i])
		}
		fmt.Fprintf(maps, "\t\t%s : %s,\n", strings.Join(cells, " . "), verdict(&rules[i]))
	}
	maps.WriteString("\t\t}\n\t}\n")
	fmt.Fprintf(chain, "\t\t%s vmap @%s\n", strings.Join(keys, " . "), name)
}

// column is a field of rules in the syntax of nftables.
type column struct {
	kind, key string
	any       func(r *Rule) bool
	cell      func(r *Rule) string
}

var columns = []column{
	{"ipv4_addr", "ip saddr", func(r *Rule) bool { return !r.Src.IsValid() },
		func(r *Rule) string { return prefixText(r.Src) }},
	{"ipv4_addr", "ip daddr", func(r *Rule) bool { return !r.Dst.IsValid() },
		func(r *Rule) string { return prefixText(r.Dst) }},
	{"inet_proto", "meta l4proto", func(r *Rule) bool { return r.Protocol == classbench.Any }, func(r *Rule) string {
		if r.Protocol == classbench.Any {
			return "0-255"
		}
		return fmt.Sprint(r.Protocol)
	}},
	{"inet_service", "th sport", func(r *Rule) bool { return r.SrcPort == classbench.AnyPort },
		func(r *Rule) string { return portsText(r.SrcPort) }},
	{"inet_service", "th dport", func(r *Rule) bool { return r.DstPort == classbench.AnyPort },
		func(r *Rule) string { return portsText(r.DstPort) }},
}

func prefixText(p netip.Prefix) string {
	switch {
	case !p.IsValid():
		return "0.0.0.0/0"
	case p.IsSingleIP():
		return p.Addr().String()
	}
	return p.String()
}

// columnsOf returns the fields that any of the rules restricts.
func columnsOf(rules []Rule) (out []column) {
	for _, c := range columns {
		for i := range rules {
			if !c.any(&rules[i]) {
				out = append(out, c)
				break
			}
		}
	}
	return out
}

// linear returns a rule as a line of a chain.
func linear(r *Rule) string {
	var s strings.Builder
	for _, c := range columns {
		if !c.any(r) {
			fmt.Fprintf(&s, "%s %s ", c.key, c.cell(r))
		}
	}
	return s.String() + verdict(r)
}

func verdict(r *Rule) string {
	if r.Allow {
		return "accept"
	}
	return "drop"
}
