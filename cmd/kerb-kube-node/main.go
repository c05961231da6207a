// SPDX-License-Identifier: Apache-2.0

// Command kerb-kube-node makes the agent of a Kubernetes node run the ClusterModules of its cluster.
package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"syscall"

	"github.com/kerb-edge/kerb/integrations/kubernetes/metrics"
	"github.com/kerb-edge/kerb/integrations/kubernetes/node"
	"github.com/kerb-edge/kerb/internal/version"
)

// maxCPUs is GOMAXPROCS. The Go runtime caches memory per CPU: 2 MB more with 16.
const maxCPUs = 2

func main() {
	var o node.Options
	flag.StringVar(&o.Node, "node", os.Getenv("NODE_NAME"), "name of this Node; default is NODE_NAME of the environment")
	flag.StringVar(&o.Kubeconfig, "kubeconfig", "", "kubeconfig file; default is the service account of the pod")
	flag.StringVar(&o.Agent, "agent", "/run/kerb/kerb.sock", "socket of the agent")
	flag.StringVar(&o.State, "state", "/var/lib/kerb-kube", "directory of the last known state")
	flag.StringVar(&o.NRI, "nri", "", "socket of the container runtime's NRI, such as /run/nri/nri.sock: containers "+
		"of a pod start when its modules are there; default is not to connect")
	tcp := metrics.Flags(flag.CommandLine)
	purge := flag.Bool("purge", false, "remove the last known state, and end")
	printVersion := flag.Bool("version", false, "print the version")
	flag.Parse()
	o.Metrics = *tcp
	if *printVersion {
		fmt.Println(version.Version())
		return
	}
	if *purge {
		if err := node.Purge(o.State); err != nil {
			fmt.Fprintln(os.Stderr, "kerb-kube-node: purge:", err)
			os.Exit(1)
		}
		return
	}
	if flag.NArg() > 0 || o.Node == "" {
		fmt.Fprintln(os.Stderr, "kerb-kube-node: give the name of this Node by --node or NODE_NAME, and no arguments")
		os.Exit(2)
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(15) // resident memory matters more than CPU time
	}
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(min(maxCPUs, runtime.GOMAXPROCS(0)))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	log.Info("started", "version", version.Version(), "node", o.Node)
	if err := node.Run(ctx, o, log); err != nil {
		log.Error("cannot start", "error", err)
		os.Exit(1)
	}
}
