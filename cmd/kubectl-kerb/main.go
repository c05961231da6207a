// SPDX-License-Identifier: Apache-2.0

// Command kubectl-kerb is the plugin of kubectl for Kerb: kubectl kerb rollout status.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/kerb-edge/kerb/integrations/kubernetes/kubectl"
	"github.com/kerb-edge/kerb/internal/version"
)

func main() {
	if len(os.Args) == 2 && os.Args[1] == "--version" {
		fmt.Println(version.Version())
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	code, err := kubectl.Run(ctx, os.Args[1:], os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "kubectl-kerb:", err)
	}
	os.Exit(code)
}
