// SPDX-License-Identifier: Apache-2.0

// Command kerb is the agent of a node and its command line.
package main

import (
	"os"

	"github.com/kerb-edge/kerb/integrations/containers/hook"
	"github.com/kerb-edge/kerb/internal/cli"
	"github.com/kerb-edge/kerb/internal/control"
	"github.com/kerb-edge/kerb/internal/integration"
	"github.com/kerb-edge/kerb/internal/version"
	"github.com/kerb-edge/kerb/modules"
)

func main() {
	control.Intercept(modules.Controls())
	integration.Intercept(integrations)
	os.Exit(cli.Main(build()))
}

func build() cli.Build {
	return cli.Build{Version: version.Version(), Agent: runAgent, Purge: purge,
		CheckOakestra: checkOakestra, ReportContainer: hook.Report, ContainerState: hook.State,
		RefuseContainer: hook.Refuse}
}
