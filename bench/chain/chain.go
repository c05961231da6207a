// SPDX-License-Identifier: Apache-2.0

// Package chain implements `kerb bench chain`: the time of one packet in 1 to 16 trivial modules, each of which matches
// a UDP packet and counts it per CPU. It compares Kerb's linked chain, a list of TCX programs, a tail-call chain, a
// list of clsact filters, and one hand-written program, the upper limit.
//
// Loads xdp/n and tc-run/n are PROG_TEST_RUN of one 64-byte frame, which can only measure configs with a single entry
// program. Loads tc/n are live and include every config: XDP test runs in live-frames mode (Linux 5.18) send frames up
// the stack through the ingress hook of a loopback interface in a separate namespace, to which the chain is attached,
// followed by one dropping program. All of it is one system call, without scheduling or the noise of a sender. The
// figure is the difference to the same run with the dropping program alone, measured alternately. XDP has no live load:
// a frame would come through a driver, which takes many times as long as a chain and varies by more than configs
// differ, or in live-frames mode, which calls the program as any test run does.
//
// The packet is one over IPv4, and over IPv6 in loads of kinds that end in -ipv6. Config kerb is a chain as the agent
// builds it; kerb-uncounted is the same without the counts of packets and verdicts; kerb-flows has the module flows
// after the others, and the difference to kerb is its cost. For single programs (kerb, bare) the instructions are
// counted: those that the verifier processed, and those that the frame executes, with an interpreter.
package chain

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/kerb-edge/kerb/bench"
)

// labPrefix is the prefix of the experiment's hosts.
const labPrefix = "kbchain"

func init() {
	bench.Register(bench.Experiment{
		Name:       "chain",
		Short:      "ns per packet in a chain of modules, compared with TCX, tail calls and clsact",
		Baseline:   "bare",
		Loads:      loads("xdp", "tc", "tc-run", "xdp-ipv6", "tc-ipv6", "tc-run-ipv6"),
		QuickLoads: []string{"xdp/1", "xdp/8", "tc/1", "tc/8"},
		Run:        run,
	})
}

func loads(kinds ...string) []string {
	var all []string
	for _, kind := range kinds {
		for _, n := range []int{1, 2, 4, 8, 16} {
			all = append(all, fmt.Sprintf("%s/%d", kind, n))
		}
	}
	return all
}

func run(ctx context.Context, r *bench.Run) (err error) {
	testbed, err := openTestbed(r.Quick)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, testbed.close()) }()
	for _, load := range r.Loads() {
		kind, number, _ := strings.Cut(load, "/")
		of := ipv4
		if plain, six := strings.CutSuffix(kind, "-ipv6"); six {
			kind, of = plain, ipv6
		}
		configs, err := available(of)
		if err != nil {
			return err
		}
		testbed.frame = frame(of)
		if err := bench.HaveTCX(); err != nil && kind != "xdp" {
			r.Note("TC loads are left out, as they need TCX and live test runs: %v", err)
			continue
		}
		n, err := strconv.Atoi(number)
		if err != nil {
			return err
		}
		trials := testbed.trials(r, configs, kind, n)
		if err := r.Interleave(ctx, load, trials...); err != nil {
			return err
		}
	}
	return nil
}

// trials returns the configs that a kind of load can measure.
func (s *testbed) trials(r *bench.Run, configs []config, kind string, n int) []bench.Trial {
	var trials []bench.Trial
	for _, c := range configs {
		if !c.measurable(kind, n) {
			continue
		}
		trials = append(trials, bench.Trial{Config: c.name, Measure: func(context.Context) ([]bench.Sample, error) {
			return s.measure(r, c, kind, n)
		}})
	}
	return trials
}

// cleanupPause is a pause in which the kernel frees the programs of the previous trial. With 16 clsact filters, this
// occupied a CPU for 15 ms, which would delay the next trial.
const cleanupPause = 50 * time.Millisecond

// measure loads and attaches a chain, sends packets through it, replaces a module, and checks that every module has
// counted every packet.
func (s *testbed) measure(r *bench.Run, c config, kind string, n int) (samples []bench.Sample, err error) {
	hook, _, _ := strings.Cut(kind, "-")
	time.Sleep(cleanupPause)
	start := time.Now()
	ch, err := c.load(hook, n)
	if err != nil {
		return nil, fmt.Errorf("load: %w", err)
	}
	loaded := time.Since(start)
	defer func() { err = errors.Join(err, ch.Close()) }()
	if samples, err = timedCopy(c.name, ch); err != nil {
		return nil, fmt.Errorf("timed copy: %w", err)
	}
	p, err := s.place(hook, ch)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.detach()) }()
	packet, err := s.packet(kind, ch)
	if err != nil {
		return nil, err
	}
	if err := check(ch, n, packet.sent); err != nil {
		r.Invalidate("%s %s/%d: %v", c.name, kind, n, err)
	}
	swapped, err := s.swap(r, c.name, kind, ch, p)
	if err != nil {
		return nil, fmt.Errorf("swap: %w", err)
	}
	instructions, err := s.instructions(ch)
	if err != nil {
		return nil, fmt.Errorf("count instructions: %w", err)
	}
	return append(append(samples, instructions...), []bench.Sample{
		bench.P50("packet", "ns", packet.ns),
		bench.P50("per_module", "ns", packet.added/float64(n)),
		bench.P50("load_time", "ms", loaded.Seconds()*1e3),
		bench.P50("swap_time", "ms", swapped.Seconds()*1e3),
	}...), nil
}

// timedCopy links the copy of the chain that measures latencies of modules, if there is one. Changes do not wait for
// it: the agent links it a second later.
func timedCopy(config string, ch Chain) ([]bench.Sample, error) {
	k, is := ch.(*kerb)
	if !is || config == "kerb-uncounted" { // there is none without counts
		return nil, nil
	}
	start := time.Now()
	if err := k.loaded.Time(50 * time.Microsecond); err != nil {
		return nil, err
	}
	return []bench.Sample{bench.P50("timed_copy", "ms", time.Since(start).Seconds()*1e3)}, nil
}

// check compares the modules' counters with the number of sent packets. They may exceed it, since the library repeats
// interrupted test runs.
func check(ch Chain, n int, sent uint64) error {
	counts, err := ch.Packets()
	if err != nil {
		return err
	}
	if len(counts) != n {
		return fmt.Errorf("%d modules counted packets, expected %d", len(counts), n)
	}
	for i, got := range counts {
		if got < sent {
			return fmt.Errorf("module %d counted %d of %d packets", i, got, sent)
		}
	}
	return nil
}

// swap replaces the module in the middle, and sends a few packets to check that the new one is in effect, whether its
// counters restart or continue.
func (s *testbed) swap(r *bench.Run, name, kind string, ch Chain, p placed) (time.Duration, error) {
	start := time.Now()
	if err := p.swap(); err != nil {
		return 0, err
	}
	took := time.Since(start)
	before, err := ch.Packets()
	if err != nil {
		return 0, err
	}
	if _, err := s.send(kind, ch, swapCheck); err != nil {
		return 0, err
	}
	after, err := ch.Packets()
	if err != nil {
		return 0, err
	}
	if i := middle(len(after)); after[i] < before[i]+swapCheck {
		r.Invalidate("%s %s/%d: the replaced module counted %d of %d packets", name, kind, len(after), after[i]-before[i],
			swapCheck)
	}
	return took, nil
}

// swapCheck is the number of packets that check a replaced module.
const swapCheck = 64

// middle returns the index of the module that a swap replaces.
func middle(n int) int { return n / 2 }
