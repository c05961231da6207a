// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"fmt"

	"github.com/kerb-edge/kerb/bench/internal/node"
	"github.com/kerb-edge/kerb/bench/kerbmods"
	"github.com/kerb-edge/kerb/internal/netlab"
)

func init() { Kerb = openKerb }

// kerb is the agent with four modules on every service.
type kerb struct {
	*node.Node
	pkg string
}

func openKerb(lab *netlab.Lab) (Node, error) {
	n, err := node.Start(lab)
	if err != nil {
		return nil, err
	}
	k := &kerb{Node: n}
	if k.pkg, err = kerbmods.Extract("pass", n.Dir()); err != nil {
		return nil, err
	}
	return k, k.Apply(k.modules(4)...)
}

// modules is a chain of n.
func (k *kerb) modules(n int) []any {
	var out []any
	for i := range n {
		out = append(out, node.Module(fmt.Sprintf("m%d", i), k.pkg, "*", nil))
	}
	return out
}

func (k *kerb) Attach(services []*netlab.Host) error {
	var resources []any
	for _, s := range services {
		resources = append(resources, node.Service(s))
	}
	return k.Apply(resources...)
}

// Rechain moves the last module to the front: every service gets another program.
func (k *kerb) Rechain() error {
	m := node.Module("m3", k.pkg, "*", nil)
	m.Spec.Order.Priority = 1
	return k.Apply(m)
}
