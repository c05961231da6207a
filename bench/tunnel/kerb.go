// SPDX-License-Identifier: Apache-2.0

package tunnel

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path/filepath"

	"github.com/kerb-edge/kerb/bench"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/lab/node"
)

// kerb is an agent on each node, with the tunnel on the service and on the wire.
type kerb struct{ agents []*node.Node }

func raiseKerb(g *ground, authenticated bool) (io.Closer, error) {
	return startKerb(g, authenticated, func(int) map[string]any { return map[string]any{} }, g.wire.Interface)
}

// startKerb starts the agents with the configuration of each node, to which the nodes and perhaps a key are added.
func startKerb(g *ground, authenticated bool, configOf func(node int) map[string]any,
	underlay func(*netlab.Lab) string) (io.Closer, error) {
	k := &kerb{}
	secret := make([]byte, 16)
	if _, err := rand.Read(secret); err != nil {
		return nil, err
	}
	for i, lab := range g.labs {
		n, err := node.Start(lab.Node())
		if err != nil {
			return nil, errors.Join(err, k.Close())
		}
		k.agents = append(k.agents, n)
		config := configOf(i)
		if config["nodes"] == nil {
			config["nodes"] = []any{nodeConfig(g, 0), nodeConfig(g, 1)}
		}
		if authenticated {
			file := filepath.Join(n.Dir, "tunnel.key")
			if err := os.WriteFile(file, []byte(hex.EncodeToString(secret)+"\n"), 0o600); err != nil {
				return nil, errors.Join(err, k.Close())
			}
			config["keys"] = []any{map[string]any{"id": 1, "key": map[string]any{"fromFile": file}}}
		}
		tunnel := node.Module("tunnel", "tunnel", "*", config)
		tunnel.Spec.Attach.Interfaces = []string{underlay(lab)}
		host := g.client
		if i == 1 {
			host = g.server
		}
		if err := n.Apply(node.Service(host), tunnel); err != nil {
			return nil, errors.Join(err, k.Close())
		}
	}
	return k, nil
}

// nodeConfig is a node with the addresses of its services.
func nodeConfig(g *ground, i int) map[string]any {
	return map[string]any{"address": g.node(i).String(), "subnets": []any{plans[i][0].String(), plans[i][1].String()}}
}

// Close ends the agents.
func (k *kerb) Close() error { return bench.CloseAll(k.agents) }
