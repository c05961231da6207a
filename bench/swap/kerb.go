// SPDX-License-Identifier: Apache-2.0

package swap

import (
	"github.com/kerb-edge/kerb/bench/kerbmods"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/lab/node"
)

func init() { Kerb = openKerb }

// kerb is the agent with the stamping module alongside a counting one. Each replacement is a change of the module's
// config through the API: planned, linked, verified, swapped, committed to the store.
type kerb struct {
	*node.Node
	stamp, pass string // package directories
	service     *netlab.Host
}

func openKerb(lab *netlab.Lab, service *netlab.Host) (Replacer, error) {
	n, err := node.Start(lab.Node())
	if err != nil {
		return nil, err
	}
	k := &kerb{Node: n, service: service}
	if k.stamp, err = kerbmods.Extract("stamp", n.Dir); err != nil {
		return nil, err
	}
	if k.pass, err = kerbmods.Extract("pass", n.Dir); err != nil {
		return nil, err
	}
	return k, k.Replace(1)
}

func (k *kerb) Replace(generation uint32) error {
	return k.Apply(node.Service(k.service), node.Module("count", k.pass, "*", nil),
		node.Module("stamp", k.stamp, "*", map[string]any{"port": streamPort, "generation": generation}))
}
