// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"fmt"
	"sync/atomic"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/bench/kerbmods"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/lab/node"
)

// kerb is the agent with four modules on every service.
type kerb struct {
	*node.Node
	pkg      string
	services atomic.Int32
}

func openKerb(lab *netlab.Lab) (Node, error) {
	n, err := node.Start(lab.Node())
	if err != nil {
		return nil, err
	}
	k := &kerb{Node: n}
	if k.pkg, err = kerbmods.Extract("pass", n.Dir); err != nil {
		return nil, err
	}
	return k, k.Apply(k.modules(4)...)
}

// modules returns a chain of n modules.
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
	k.services.Add(int32(len(services)))
	return k.Apply(resources...)
}

// check checks, by the agent's view of the kernel, that every service runs chains in which a module is nearest to it.
func (k *kerb) check(nearest string) error {
	var chains []v1.Chain
	if err := k.Get("/v1/chains", &chains); err != nil {
		return err
	}
	points := 0
	for _, c := range chains {
		at := map[string]int{"egress": 0, "ingress": 3}[c.Direction] // packets to a service reach the nearest module last
		if len(c.Modules) == 4 && c.Modules[at] == nearest {
			points += len(c.Points)
		}
	}
	if services := int(k.services.Load()); points != 2*services {
		return fmt.Errorf("%d attach points run a chain with %s nearest to the service, expected two for each of %d services",
			points, nearest, services)
	}
	return nil
}

// Check returns an error if the changes are not in effect. It is not part of the measured time.
func (k *kerb) Check(rechained bool) error {
	if rechained {
		return k.check("m3")
	}
	return k.check("m0")
}

// Rechain moves the last module to the front, so that every service gets another program.
func (k *kerb) Rechain() error {
	m := node.Module("m3", k.pkg, "*", nil)
	m.Spec.Order.Priority = 1
	return k.Apply(m)
}
