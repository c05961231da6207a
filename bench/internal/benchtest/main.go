// SPDX-License-Identifier: Apache-2.0

// Package benchtest lets test binaries act as the agent, so that benchmark tests run an agent built from the same
// sources.
package benchtest

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"testing"

	"github.com/kerb-edge/kerb/internal/agent"
	"github.com/kerb-edge/kerb/internal/binpath"
	"github.com/kerb-edge/kerb/internal/cli"
	"github.com/kerb-edge/kerb/internal/config"
	"github.com/kerb-edge/kerb/internal/control"
	"github.com/kerb-edge/kerb/modules"
)

// Main runs the tests. In a process that a benchmark started as its agent, it runs the agent and does not return.
func Main(m *testing.M) int {
	control.Intercept(modules.Controls())
	if len(os.Args) > 1 && (os.Args[1] == "agent" || os.Args[1] == "purge") {
		run := func(ctx context.Context, c config.Config, log *slog.Logger) error { return agent.Run(ctx, c, log) }
		os.Exit(cli.Main(cli.Build{Version: "test", Agent: run}))
	}
	self, err := os.Executable()
	if err := errors.Join(err, os.Setenv(binpath.KerbEnv, self)); err != nil {
		panic(err)
	}
	return m.Run()
}
