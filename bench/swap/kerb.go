// SPDX-License-Identifier: Apache-2.0

package swap

import (
	"fmt"
	"net/http"
	"strings"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/bench/kerbmods"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/lab/node"
)

// kerb is the agent with the stamping module alongside a counting one. Each replacement is a change of the module's
// config through the API: planned, linked, verified, swapped, committed to the store.
type kerb struct {
	*node.Node
	stamp, pass string // package directories
	service     *netlab.Host
}

// openKerb starts with generation 1 of the module in the ingress chain of a service. traffic.Stream describes what the
// module does to packets.
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

// SetValue changes one of 100 rules of a firewall on the service, none of which matches the stream. The first call, and
// the first one after a replacement, adds the firewall.
func (k *kerb) SetValue(n int) (time.Duration, error) {
	rules := []any{map[string]any{"action": "deny", "protocol": "udp", "dstPort": 20000 + n, "direction": "ingress"}}
	for i := range 99 {
		rules = append(rules, map[string]any{"action": "deny", "src": fmt.Sprint("203.0.113.", i), "direction": "ingress"})
	}
	fw := node.Module("fw", "firewall", "*", map[string]any{"rules": rules,
		"defaultPolicy": map[string]any{"ingress": "allow"}})
	var r v1.ApplyResult
	start := time.Now()
	err := k.Call(http.MethodPost, "/v1/apply", []any{fw}, &r)
	took := time.Since(start)
	if valueOnly := len(r.Steps) == 1 && strings.HasPrefix(r.Steps[0], "set values "); err == nil && n > 0 && !valueOnly {
		err = fmt.Errorf("a change of one rule takes steps other than setting values: %q", r.Steps)
	}
	return took, err
}

func (k *kerb) Replace(generation uint32) error {
	return k.Apply(node.Service(k.service), node.Module("count", k.pass, "*", nil),
		node.Module("stamp", k.stamp, "*", map[string]any{"port": streamPort, "generation": generation}))
}
