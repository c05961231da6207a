// SPDX-License-Identifier: Apache-2.0

// Command kerb-bench runs Kerb's benchmarks and the demo. It uses the kerb binary in the same directory for agents and
// commands.
package main

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/kerb-edge/kerb/bench"
	_ "github.com/kerb-edge/kerb/bench/all"
	"github.com/kerb-edge/kerb/bench/traffic"
	"github.com/kerb-edge/kerb/internal/binpath"
	"github.com/kerb-edge/kerb/internal/cli"
	"github.com/kerb-edge/kerb/internal/lab/demo"
	"github.com/kerb-edge/kerb/internal/version"
)

func main() { os.Exit(cli.Execute(root())) }

func root() *cobra.Command {
	c := &cobra.Command{
		Use:   binpath.Bench,
		Short: "Kerb's benchmarks and demo",
		Long: "kerb-bench contains Kerb's benchmarks and the demo; \"kerb bench\" and \"kerb demo\" run it. It uses the " +
			"kerb binary that\n" + binpath.KerbEnv + " names, or else the one in its own directory or on PATH.",
		Version: version.Version(),
	}
	if os.Getenv(binpath.KerbEnv) != "" { // started by kerb: help shows the command that was typed
		c.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: binpath.Kerb}
	}
	c.AddCommand(bench.Command(), demo.Command(), traffic.Command())
	return c
}
