// SPDX-License-Identifier: Apache-2.0

// Command kerb-otlp exports metrics, changes, events and dropped packets of an agent to an OpenTelemetry collector.
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/kerb-edge/kerb/integrations/otlp"
	"github.com/kerb-edge/kerb/internal/paths"
	"github.com/kerb-edge/kerb/internal/version"
)

const usage = `kerb-otlp exports metrics, changes, events and dropped packets of the agent by OTLP over HTTP.
The standard variables say where to: OTEL_EXPORTER_OTLP_ENDPOINT=http://localhost:4318,
OTEL_EXPORTER_OTLP_HEADERS, OTEL_EXPORTER_OTLP_CERTIFICATE, OTEL_RESOURCE_ATTRIBUTES, ...
`

func main() {
	var o otlp.Options
	socket := cmp.Or(os.Getenv("KERB_SOCKET"), paths.Default().Socket())
	flag.StringVar(&o.Agent, "socket", socket, "socket of the agent; also by KERB_SOCKET")
	flag.DurationVar(&o.Interval, "interval", 15*time.Second, "between exports")
	printVersion := flag.Bool("version", false, "print the version")
	flag.Usage = func() {
		fmt.Fprint(os.Stderr, usage)
		flag.PrintDefaults()
	}
	flag.Parse()
	if *printVersion {
		fmt.Println(version.Version())
		return
	}
	if flag.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "kerb-otlp: it takes no arguments; see kerb-otlp --help")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	if err := otlp.Run(ctx, o, log); err != nil {
		log.Error("cannot export", "error", err)
		os.Exit(1)
	}
}
