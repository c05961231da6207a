// SPDX-License-Identifier: Apache-2.0

// Command intercept-watch receives a class of the module intercept, and prints every second the number of packets and
// their delays.
//
//	go run ./examples/intercept-watch -module intercept -class ctrl
package main

import (
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/kerb-edge/kerb/intercept"
)

func main() {
	module := flag.String("module", "intercept", "name of the module")
	class := flag.String("class", "ctrl", "name of the class")
	takeover := flag.Bool("takeover", false, "take the class from the program that has it")
	fifo := flag.Int("fifo", 0, "SCHED_FIFO priority")
	flag.Parse()
	if err := watch(*module, *class, intercept.Options{Takeover: *takeover, FIFO: *fifo}); err != nil {
		fmt.Fprintln(os.Stderr, "intercept-watch:", err)
		os.Exit(1)
	}
}

func watch(module, class string, o intercept.Options) error {
	r, err := intercept.Open(module, class, o)
	if err != nil {
		return err
	}
	defer r.Close()
	stop := stopped()
	packets := make([]intercept.Packet, 64)
	delays := make([]time.Duration, 0, 1<<20)
	next := time.Now().Add(time.Second)
	for !stop.Load() {
		n, err := r.Receive(packets, time.Until(next).Abs())
		if err != nil {
			return err
		}
		for _, p := range packets[:n] {
			delays = append(delays, time.Duration(p.Received-p.Sent))
		}
		if time.Now().After(next) {
			report(delays, r.Stats())
			delays, next = delays[:0], time.Now().Add(time.Second)
		}
	}
	return nil
}

func stopped() *atomic.Bool {
	var stop atomic.Bool
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-signals
		stop.Store(true)
	}()
	return &stop
}

func report(delays []time.Duration, s intercept.Stats) {
	if len(delays) == 0 {
		fmt.Println("no packets")
		return
	}
	slices.Sort(delays)
	at := func(part int) time.Duration { return delays[len(delays)*part/1000] }
	fmt.Printf("%d packets/s, delay p50 %v p99 %v p99.9 %v; in all %d lost, %d late\n", len(delays), at(500), at(990),
		at(999), s.Lost, s.Late)
}
