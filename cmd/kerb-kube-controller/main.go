// SPDX-License-Identifier: Apache-2.0

// Command kerb-kube-controller aggregates what the nodes of a Kubernetes cluster report about its ClusterModules.
package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/kerb-edge/kerb/integrations/kubernetes/controller"
	"github.com/kerb-edge/kerb/integrations/kubernetes/metrics"
	"github.com/kerb-edge/kerb/internal/version"
)

func main() {
	kubeconfig := flag.String("kubeconfig", "", "kubeconfig file; default is the service account of the pod")
	tcp := metrics.Flags(flag.CommandLine)
	printVersion := flag.Bool("version", false, "print the version")
	flag.Parse()
	if *printVersion {
		fmt.Println(version.Version())
		return
	}
	if flag.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "kerb-kube-controller: it takes no arguments")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	log.Info("started", "version", version.Version())
	if err := controller.Run(ctx, *kubeconfig, *tcp, log); err != nil {
		log.Error("cannot start", "error", err)
		os.Exit(1)
	}
}
