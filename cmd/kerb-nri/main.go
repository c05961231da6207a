// SPDX-License-Identifier: Apache-2.0

// Command kerb-nri is the plugin of the container runtime that kerb-kube-node --nri starts: kerb-nri SOCKET.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"

	"github.com/kerb-edge/kerb/integrations/kubernetes/nri/plugin"
)

func main() {
	if len(os.Args) != 2 || os.Args[1] == "" || os.Args[1][0] == '-' {
		fmt.Fprintln(os.Stderr, "usage: kerb-nri SOCKET; kerb-kube-node --nri SOCKET starts it")
		os.Exit(2)
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(25) // resident memory matters more than CPU time
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	if err := plugin.Relay(context.Background(), os.Args[1], os.Stdin, os.Stdout, log); err != nil {
		log.Error("kerb-nri has ended", "error", err)
		os.Exit(1)
	}
}
