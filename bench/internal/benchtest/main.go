// SPDX-License-Identifier: Apache-2.0

// Package benchtest makes test programs agents, so that what a benchmark's tests run is built from the same sources.
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

// Main runs the tests; in a program that a benchmark has started as its agent it is that, and does not return.
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
