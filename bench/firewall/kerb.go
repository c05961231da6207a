// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/cilium/ebpf"

	"github.com/kerb-edge/kerb/internal/lab/classbench"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/lab/node"
)

// kerb is the agent with the firewall module, stateless as the reference: every packet is classified.
type kerb struct {
	*node.Node
}

func openKerb(lab *netlab.Lab, service *netlab.Host, rules []Rule) (Firewall, error) {
	n, err := node.Start(lab.Node())
	if err != nil {
		return nil, err
	}
	k := &kerb{Node: n}
	if err := errors.Join(n.Apply(node.Service(service)), k.Replace(rules)); err != nil {
		return nil, errors.Join(err, k.Close())
	}
	return k, nil
}

// Replace implements Firewall.
func (k *kerb) Replace(rules []Rule) error {
	return k.Apply(node.Module("firewall", "firewall", "*", firewallConfig(rules)))
}

func firewallConfig(rules []Rule) map[string]any {
	list := make([]map[string]any, len(rules))
	for i := range rules {
		list[i] = ruleConfig(&rules[i])
	}
	return map[string]any{
		"defaultPolicy": map[string]any{"ingress": "deny", "egress": "allow"},
		"state":         map[string]any{"enabled": false},
		"malformed":     "allow", // as with the nftables rules
		"rules":         list,
	}
}

func ruleConfig(r *Rule) map[string]any {
	out := map[string]any{"action": "deny", "direction": "ingress"}
	if r.Allow {
		out["action"] = "allow"
	}
	if r.Protocol != classbench.Any {
		out["protocol"] = r.Protocol
	}
	if r.Src.IsValid() {
		out["src"] = r.Src.String()
	}
	if r.Dst.IsValid() {
		out["dst"] = r.Dst.String()
	}
	if r.SrcPort != classbench.AnyPort {
		out["srcPort"] = portsText(r.SrcPort)
	}
	if r.DstPort != classbench.AnyPort {
		out["dstPort"] = portsText(r.DstPort)
	}
	return out
}

// portsText formats a port or a range.
func portsText(p classbench.Ports) string {
	if p.Low == p.High {
		return strconv.Itoa(int(p.Low))
	}
	return fmt.Sprintf("%d-%d", p.Low, p.High)
}

// Program implements Runnable. Rules that need maps of another size replace the program.
func (k *kerb) Program() (*ebpf.Program, error) { return k.Chain("ingress", 0) }
