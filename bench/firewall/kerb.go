// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/lab/node"
)

func init() { Kerb = openKerb }

// kerb is the agent with the firewall module, stateless as the reference is: every packet is classified.
type kerb struct {
	*node.Node
	program *ebpf.Program
}

func openKerb(lab *netlab.Lab, service *netlab.Host, rules []Rule) (Firewall, error) {
	n, err := node.Start(lab.Node())
	if err != nil {
		return nil, err
	}
	k := &kerb{Node: n}
	if err := n.Apply(node.Service(service), node.Module("firewall", "firewall", "*", firewallConfig(rules))); err != nil {
		return nil, errors.Join(err, k.Close())
	}
	if k.program, err = k.Chain("ingress", 0); err != nil {
		return nil, errors.Join(err, k.Close())
	}
	return k, nil
}

func firewallConfig(rules []Rule) map[string]any {
	var list []map[string]any
	for _, r := range rules {
		ports := any(int(r.PortLow))
		if r.PortHigh != r.PortLow {
			ports = fmt.Sprintf("%d-%d", r.PortLow, r.PortHigh)
		}
		list = append(list, map[string]any{"action": "allow", "direction": "ingress", "protocol": r.Protocol,
			"src": r.Source.String(), "dstPort": ports})
	}
	return map[string]any{
		"defaultPolicy": map[string]any{"ingress": "deny", "egress": "allow"},
		"state":         map[string]any{"enabled": false},
		"malformed":     "allow", // nftables' rules have no word on them either
		"rules":         list,
	}
}

func (k *kerb) Program() *ebpf.Program { return k.program }

func (k *kerb) Close() error {
	if k.program != nil {
		k.program.Close()
	}
	return k.Node.Close()
}
