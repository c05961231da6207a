// SPDX-License-Identifier: Apache-2.0

// Package intercept implements `kerb bench intercept`. It measures the delay of packets from the kernel to a program,
// their loss, and the CPU time, with the intercept module, sockets, AF_XDP and a polled array, at the published sizes
// and rates, on an idle machine and under stress. Sender and receivers are C programs, compiled at the start, on
// separate CPUs.
package intercept

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kerb-edge/kerb/bench"
)

func init() {
	e := &experiment{places: map[string]*place{}}
	bench.Register(bench.Experiment{
		Name:       "intercept",
		Short:      "delay of packets to a program by the kernel's shortest paths, compared with sockets, AF_XDP and polling",
		Baseline:   "socket",
		Loads:      loads(),
		LongLoads:  []string{"64/50k/endurance", "64/50k/endurance-stress"},
		QuickLoads: []string{"512/6k/idle", "64/50k/stress"},
		Configs:    names(),
		Flags:      e.flags,
		Run:        e.execute,
	})
}

// The loads: bytes per packet, packets per second, and background load.
func loads() []string {
	var all []string
	for _, cell := range []string{"1024/3k", "512/6k", "64/50k", "64/200k"} {
		all = append(all, cell+"/idle", cell+"/stress")
	}
	return append(all, "64/50k/io", "64/50k/memory", "64/0k/idle")
}

// load is a parsed load.
type load struct {
	name       string
	size, rate int
	background string // idle, stress, io, memory
	endurance  bool
}

func parseLoad(name string) (load, error) {
	part := strings.Split(name, "/")
	l := load{name: name, background: part[2]}
	var err, err2 error
	l.size, err = strconv.Atoi(part[0])
	l.rate, err2 = strconv.Atoi(strings.TrimSuffix(part[1], "k"))
	l.rate *= 1000
	if strings.HasPrefix(l.background, "endurance") {
		l.endurance = true
		l.background = strings.TrimPrefix(strings.TrimPrefix(l.background, "endurance"), "-")
	}
	return l, errors.Join(err, err2)
}

// length returns the duration of a round of a config. The published experiment took 11 s once; five full rounds take
// 7.5 s.
func (l load) length(asked time.Duration, quick bool, scale float64) time.Duration {
	switch {
	case scale > 0:
		return max(100*time.Millisecond, time.Duration(scale*float64(publishedPackets[l.rate])/float64(l.rate)*1e9))
	case asked > 0:
		return asked
	case l.endurance:
		return 2 * time.Minute // five rounds: ten minutes of each config
	case quick:
		return 200 * time.Millisecond
	case l.rate == 0:
		return time.Second
	}
	return 1500 * time.Millisecond
}

// publishedPackets are the published numbers of packets by rate.
var publishedPackets = map[int]int{50_000: 524_288, 6_000: 65_536, 3_000: 32_768}

// experiment is the state of one run: its options, the compiled programs and the open places.
type experiment struct {
	length time.Duration // of a round, if not 0
	run    *bench.Run
	tools  *tools
	places map[string]*place // by hook

	packets string // directory for the receivers' records of packets, if not empty
}

func (e *experiment) flags(cmd *cobra.Command) {
	cmd.Flags().DurationVar(&e.length, "length", 0, "duration of each round of a receiver, such as 2s")
}

func (e *experiment) execute(ctx context.Context, r *bench.Run) (err error) {
	if e.tools, err = compile(ctx, sources); err != nil {
		return err
	}
	e.run = r
	defer func() { err = errors.Join(err, e.close()) }()
	for _, name := range r.Loads() {
		l, err := parseLoad(name)
		if err != nil {
			return err
		}
		if err := e.runLoad(ctx, l); err != nil {
			return err
		}
	}
	e.notes()
	return nil
}

func (e *experiment) close() error {
	errs := []error{e.tools.Close()}
	for hook, p := range e.places {
		errs = append(errs, p.Close())
		delete(e.places, hook) // the next run opens new ones
	}
	return errors.Join(errs...)
}

// chosen returns the configs of a load.
func (e *experiment) chosen(l load) []config {
	var patterns []string
	switch {
	case len(e.run.Configs) > 0: // named on the command line
	case l.endurance:
		patterns = longConfigs
	case e.run.Quick:
		patterns = quickConfigs
	}
	return slices.DeleteFunc(slices.Clone(configs), func(c config) bool {
		return len(patterns) > 0 && !slices.ContainsFunc(patterns, c.matchesName) || !e.run.Wants(c.name)
	})
}

// runLoad opens all places before it starts the background load, under which agents would take minutes to start.
func (e *experiment) runLoad(ctx context.Context, l load) (err error) {
	var trials []bench.Trial
	for _, c := range e.chosen(l) {
		p, err := e.place(c.hook)
		if err == nil {
			err = c.possible()
		}
		if e.run.LeftOut(c.name, err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		trials = append(trials, bench.Trial{Config: c.name, Measure: func(ctx context.Context) ([]bench.Sample, error) {
			return e.measure(ctx, c, p, l)
		}})
	}
	s, err := startStress(l.background)
	if e.run.LeftOut(l.name, err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	return e.run.Interleave(ctx, l.name, trials...)
}

func (e *experiment) notes() {
	e.run.Note("delay is T2-T1, for sockets T3-T1: from the packet's arrival at the driver's hook until the receiving " +
		"program has it. The same program takes T1 for all receivers, in front of their own programs at the hook: the " +
		"delay includes Kerb's parser and classes, and the counterparts of the others. In older reports, T1 of Kerb's ring " +
		"and of same-t3 was taken after Kerb's parser")
	e.run.Note("to_program is from when the sender has built the message (T0) until the receiving program has it; all " +
		"messages of a burst are built before its first packet is sent")
	e.run.Note("the sender, SCHED_FIFO, is pinned to CPU %d and receivers to CPU %d; the kernel's work for a packet, up "+
		"to the wakeup of the receiver, runs on the sender's", e.tools.sender, e.tools.receiver)
	e.run.Note("ringbuf is the library without options, adaptive and eager; -spin never sleeps, -adaptive spins briefly " +
		"and then sleeps, the others sleep; -eager has nice -20 and slices of 100 us (Linux 6.12), -ready the same with " +
		"idle CPUs that poll instead of halting (PM QoS, an option of the library), -fifo is SCHED_FIFO with priority 50, " +
		"the others and the stress run at default priority; cpu is the share of one CPU that the receiver uses, for Kerb " +
		"with the agent and its control planes while packets arrive, which agent_cpu shows alone; memory is resident: a " +
		"ring of 32 MiB counts twice, as its pages are mapped twice; waits and preempted are the receiver's voluntary and " +
		"involuntary context switches per second; none of these include what the kernel keeps for sockets")
	e.run.Note("clock-fifo receives nothing: a thread reads the clock all the time, which shows how late it would see " +
		"packets, and so the delay that the machine adds for any receiver")
	e.run.Note("above 10,000 packets/s the sender wakes ten thousand times per second and sends what is due, so that " +
		"packets arrive in bursts of five or more")
}
