// SPDX-License-Identifier: Apache-2.0

// Command kerb-oakestra connects the agent of a node with a cluster of Oakestra. The agent starts it if its
// configuration has a section oakestra. kerb runs it to check the cluster, and to remove what it has created.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/kerb-edge/kerb/integrations/oakestra"
	"github.com/kerb-edge/kerb/internal/config"
	"github.com/kerb-edge/kerb/internal/integration"
	"github.com/kerb-edge/kerb/internal/integration/link"
	"github.com/kerb-edge/kerb/internal/version"
)

const usage = `kerb-oakestra connects the agent of this node with a cluster of Oakestra. The agent starts it if kerb.yaml has
a section oakestra (docs/oakestra.md); "kerb oakestra check" and "kerb purge" run it, too.
`

func main() {
	integration.Intercept(map[string]integration.Main{"oakestra": serve})
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	switch args := os.Args[1:]; {
	case len(args) == 1 && args[0] == "check":
		err = check(ctx)
	case len(args) == 2 && args[0] == "purge":
		err = oakestra.Purge(args[1])
	case len(args) == 1 && args[0] == "--version":
		fmt.Println(version.Version())
	default:
		fmt.Fprint(os.Stderr, usage)
		os.Exit(2)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "kerb-oakestra:", err)
		os.Exit(1)
	}
}

// serve is the integration. in is the JSON of a config.OakestraNode.
func serve(ctx context.Context, in []byte, log *slog.Logger, agent *link.Agent) error {
	var n config.OakestraNode
	if err := json.Unmarshal(in, &n); err != nil {
		return fmt.Errorf("options: %w", err)
	}
	return oakestra.Main(ctx, options(n), log, agent)
}

// check reads the JSON of a config.OakestraNode, and writes its results as JSON.
func check(ctx context.Context) error {
	var n config.OakestraNode
	if err := json.NewDecoder(os.Stdin).Decode(&n); err != nil {
		return fmt.Errorf("options: %w", err)
	}
	o := oakestra.CheckOptions{Options: options(n), Services: n.Services}
	o.Cluster = n.Cluster
	found, err := oakestra.Check(ctx, o)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(found)
}

func options(n config.OakestraNode) oakestra.Options {
	o := n.Oakestra
	return oakestra.Options{
		Agent: n.Paths.Socket(), State: n.Paths.State, File: n.Paths.Oakestra(),
		Socket: o.Socket, SocketGroup: n.SocketGroup, TCP: o.TCP, TLS: o.TLS,
		Bridge: o.Bridge, Alongside: o.Alongside, Subnet: o.Subnet, Subnet6: o.Subnet6, Ranges: o.Ranges,
		Broker: oakestra.Broker(o.Broker), Address: o.Address, Port: o.Port, NetManager: o.NetManager,
		Packages: o.Packages, RequireModules: o.RequireModules, Abstractor: o.AbstractorPort,
	}
}
