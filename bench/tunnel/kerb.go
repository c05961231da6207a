// SPDX-License-Identifier: Apache-2.0

package tunnel

import (
	"crypto/rand"
	"encoding/hex"
	"os"
	"path/filepath"

	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/lab/node"
)

// setupKerb starts an agent on each node, with the tunnel on the service and on the wire.
func setupKerb(g *topology, authenticated bool) error {
	return startKerb(g, authenticated, func(int) map[string]any { return map[string]any{} }, g.wire.Interface)
}

// startKerb starts the agents with the configuration of each node, and adds the nodes and, if authenticated, a key.
func startKerb(g *topology, authenticated bool, configOf func(node int) map[string]any,
	underlay func(*netlab.Lab) string) error {
	secret := make([]byte, 16)
	if _, err := rand.Read(secret); err != nil {
		return err
	}
	for i, lab := range g.labs {
		n, err := node.Start(lab.Node())
		if err != nil {
			return err
		}
		g.Later(n.Close)
		g.agents = append(g.agents, n)
		config := configOf(i)
		if config["nodes"] == nil {
			config["nodes"] = []any{nodeConfig(g, 0), nodeConfig(g, 1)}
		}
		if authenticated {
			file := filepath.Join(n.Dir, "tunnel.key")
			if err := os.WriteFile(file, []byte(hex.EncodeToString(secret)+"\n"), 0o600); err != nil {
				return err
			}
			config["keys"] = []any{map[string]any{"id": 1, "key": map[string]any{"fromFile": file}}}
		}
		tunnel := node.Module("tunnel", "tunnel", "*", config)
		tunnel.Spec.Attach.Interfaces = []string{underlay(lab)}
		if err := n.Apply(node.Service([]*netlab.Host{g.client, g.server}[i]), tunnel); err != nil {
			return err
		}
	}
	return nil
}

// nodeConfig returns a node with the addresses of its services.
func nodeConfig(g *topology, i int) map[string]any {
	return map[string]any{"address": g.node(i).String(), "subnets": []any{plans[i][0].String(), plans[i][1].String()}}
}
