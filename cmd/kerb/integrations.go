// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"log/slog"
	"net/netip"

	"github.com/kerb-edge/kerb/integrations/containers"
	"github.com/kerb-edge/kerb/integrations/oakestra"
	"github.com/kerb-edge/kerb/internal/agent"
	"github.com/kerb-edge/kerb/internal/config"
	"github.com/kerb-edge/kerb/internal/doctor"
	"github.com/kerb-edge/kerb/internal/integration"
	"github.com/kerb-edge/kerb/internal/paths"
)

// integrations are those inside the binary.
var integrations = map[string]integration.Main{"oakestra": oakestra.Main, "containers": containers.Main}

// configured are the integrations that a configuration asks for.
func configured(c config.Config) (all []integration.Program) {
	if c.Containers != nil {
		o := c.Containers.WithDefaults()
		all = append(all, integration.Program{Name: "containers",
			Options: containers.Options{Agent: c.Paths.Socket(), Runtime: o.Runtime, Socket: o.Socket}})
	}
	if c.Oakestra == nil {
		return all
	}
	o := c.Oakestra.WithDefaults(c.Paths)
	var resolves []netip.Prefix
	for _, text := range o.Ranges { // were checked
		resolves = append(resolves, netip.MustParsePrefix(text))
	}
	return append(all, integration.Program{Name: "oakestra", Resolves: resolves, Options: oakestraOptions(c, o)})
}

func oakestraOptions(c config.Config, o config.Oakestra) oakestra.Options {
	return oakestra.Options{
		Agent: c.Paths.Socket(), State: c.Paths.State, File: c.Paths.Oakestra(),
		Socket: o.Socket, SocketGroup: c.SocketGroup, TCP: o.TCP, TLS: o.TLS,
		Bridge: o.Bridge, Alongside: o.Alongside, Subnet: o.Subnet, Subnet6: o.Subnet6, Ranges: o.Ranges,
		Broker: oakestra.Broker(o.Broker), Address: o.Address, Port: o.Port, NetManager: o.NetManager,
		Packages: o.Packages, RequireModules: o.RequireModules, Abstractor: o.AbstractorPort,
	}
}

// checkOakestra also runs on nodes whose configuration has no section oakestra.
func checkOakestra(ctx context.Context, c config.Config, cluster string, services []string) ([]doctor.Check, error) {
	var o config.Oakestra
	if c.Oakestra != nil {
		o = *c.Oakestra
	}
	options := oakestraOptions(c, o.WithDefaults(c.Paths))
	options.Cluster = cluster
	found, err := oakestra.Check(ctx, oakestra.CheckOptions{Options: options, Services: services})
	checks := make([]doctor.Check, 0, len(found))
	for _, f := range found {
		checks = append(checks, doctor.Check{Name: f.Name, Status: doctor.Status(f.Status), Found: f.Found, Remedy: f.Remedy})
	}
	return checks, err
}

func runAgent(ctx context.Context, c config.Config, log *slog.Logger) error {
	return agent.Run(ctx, c, log, configured(c)...)
}

func purge(p paths.Paths) error { return oakestra.Purge(p.State) }
