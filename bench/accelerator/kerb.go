// SPDX-License-Identifier: Apache-2.0

package accelerator

import (
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/bench/internal/node"
)

// modes of the module, by config.
var modes = map[string]string{"kerb": "adaptive", "redirect-all": "redirect-all"}

// startKerb runs the agent on the node, with the accelerator on all that runs in the contender's cgroup.
func (c *contender) startKerb() error {
	n, err := node.Start(c.place.lab)
	if err != nil {
		return err
	}
	c.later(n.Close)
	m := node.Module("accelerator", "accelerator", "", map[string]any{"mode": modes[c.config]})
	m.Spec.Attach = v1.Attach{Cgroups: []string{c.group.Dir()}}
	return n.Apply(m)
}

// settles is how long it takes until the agent has looked at a program that is new, and connections of it are accelerated.
func (c *contender) settles() time.Duration {
	if modes[c.config] == "" {
		return 0
	}
	return 300 * time.Millisecond
}
