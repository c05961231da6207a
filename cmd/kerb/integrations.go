// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"

	"github.com/kerb-edge/kerb/integrations/containers"
	"github.com/kerb-edge/kerb/internal/agent"
	"github.com/kerb-edge/kerb/internal/binpath"
	"github.com/kerb-edge/kerb/internal/config"
	"github.com/kerb-edge/kerb/internal/doctor"
	"github.com/kerb-edge/kerb/internal/integration"
	"github.com/kerb-edge/kerb/internal/paths"
)

// integrations are the integrations inside the binary.
var integrations = map[string]integration.Main{"containers": containers.Main}

// configured returns the integrations that a configuration enables.
func configured(c config.Config) (all []integration.Program) {
	if c.Containers != nil {
		o := c.Containers.WithDefaults()
		all = append(all, integration.Program{Name: "containers",
			Options: containers.Options{Agent: c.Paths.Socket(), Runtime: o.Runtime, Socket: o.Socket,
				Hook: c.Paths.Containers()}})
	}
	if c.Oakestra == nil {
		return all
	}
	node := c.OakestraNode()
	var resolves []netip.Prefix
	for _, text := range node.Oakestra.Ranges { // validated before
		resolves = append(resolves, netip.MustParsePrefix(text))
	}
	return append(all, integration.Program{Name: "oakestra", Program: binpath.Oakestra, Resolves: resolves, Options: node})
}

// checkOakestra also runs on nodes whose configuration has no section oakestra.
func checkOakestra(ctx context.Context, c config.Config, cluster string, services []string) ([]doctor.Check, error) {
	program, err := binpath.NextTo(binpath.Oakestra)
	if err != nil {
		return nil, err
	}
	node := c.OakestraNode()
	node.Cluster, node.Services = cluster, services
	in, err := json.Marshal(node)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, program, "check")
	cmd.Stdin = bytes.NewReader(in)
	out, err := cmd.Output()
	var failed *exec.ExitError
	if errors.As(err, &failed) {
		return nil, errors.New(string(bytes.TrimSpace(failed.Stderr)))
	}
	if err != nil {
		return nil, err
	}
	var all []doctor.Check
	err = json.Unmarshal(out, &all)
	return all, err
}

func runAgent(ctx context.Context, c config.Config, log *slog.Logger) error {
	return agent.Run(ctx, c, log, configured(c)...)
}

// purge removes what kerb-oakestra has created, if it ever ran.
func purge(p paths.Paths) error {
	program, err := binpath.NextTo(binpath.Oakestra)
	if err != nil {
		if _, unused := os.Lstat(p.Oakestra()); unused != nil {
			return nil
		}
		return fmt.Errorf("the network of Oakestra's services is not removed: %w", err)
	}
	out, err := exec.Command(program, "purge", p.State).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, bytes.TrimSpace(out))
	}
	return nil
}
