// SPDX-License-Identifier: Apache-2.0

// Command speedlimit-server is the road sign of docs/responder.md as an ordinary UDP server. It can run alone, or
// behind the responder module, which answers most requests before they reach it.
package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/kerb-edge/kerb/modules/responder/apps/speedlimit/server"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "speedlimit-server:", err)
		os.Exit(1)
	}
}

func run() error {
	listen := flag.String("listen", ":8080", "address and port")
	socket := flag.String("socket", "/run/kerb/kerb.sock", "the agent's socket")
	module := flag.String("module", "", "name of the responder module; empty: no responder module")
	listener := flag.String("listener", "speedlimit-8080", "its listener")
	every := flag.Duration("print", 10*time.Second, "interval between printed counters")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	address, err := net.ResolveUDPAddr("udp", *listen)
	if err != nil {
		return err
	}
	conn, err := net.ListenUDP("udp", address)
	if err != nil {
		return err
	}
	var m *server.Module
	if *module != "" {
		m = server.NewModule(*socket, *module, *listener)
	}
	s := server.New(m)
	go report(ctx, s, *every)
	return s.Serve(ctx, conn)
}

func report(ctx context.Context, s *server.Server, every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			t := s.Totals()
			fmt.Printf("%d cars; answered %d here, %d in the kernel; left %d here, %d in the kernel\n", t.Cars, t.Answered,
				t.KernelAnswered, t.Left, t.KernelLeft)
		}
	}
}
