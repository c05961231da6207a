// SPDX-License-Identifier: Apache-2.0

// Command kerb is the agent of a node and the command line to it.
package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/kerb-edge/kerb/bench"
	_ "github.com/kerb-edge/kerb/bench/all"
	"github.com/kerb-edge/kerb/internal/agent"
	"github.com/kerb-edge/kerb/internal/cli"
	"github.com/kerb-edge/kerb/internal/control/sandbox"
	"github.com/kerb-edge/kerb/internal/demo"
	"github.com/kerb-edge/kerb/internal/version"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == sandbox.Argument {
		fmt.Fprintln(os.Stderr, "kerb:", sandbox.Main(os.Args[2:]))
		os.Exit(1)
	}
	os.Exit(cli.Main(cli.Build{
		Version:  version.Version(),
		Agent:    agent.Run,
		Commands: []*cobra.Command{bench.Command(), demo.Command()},
	}))
}
