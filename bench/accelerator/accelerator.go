// SPDX-License-Identifier: Apache-2.0

// Package accelerator implements `kerb bench accelerator`: TCP connections within a node, plain, with Kerb's
// accelerator, with redirection of every message, with the published design, and with AF_UNIX sockets as the upper
// limit. Workloads are requests and replies, one-way streams, a file, Redis and HTTP, over loopback, between two
// services on a bridge, through a proxy on the node, and through two sidecars. Client and server of the first three
// workloads are written in C; the others are the real programs.
package accelerator

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kerb-edge/kerb/bench"
)

func init() {
	e := newRun()
	bench.Register(bench.Experiment{
		Name:       "accelerator",
		Short:      "connections within a node, compared with plain TCP, redirection of all messages, and AF_UNIX",
		Baseline:   "plain",
		Loads:      loads(),
		QuickLoads: []string{"loopback/echo-24", "loopback/stream-64", "veth/echo-24", "sidecar/redis-1"},
		Configs:    configs,
		Flags:      e.flags,
		Run:        e.execute,
	})
}

// experiment is the state of one run: its options, the compiled programs, and the running contenders at one place.
type experiment struct {
	variant
	proxy, cpus string
	family      string // of addresses: 4 or 6
	run         *bench.Run
	tools       *tools
	lengths     lengths
	where       string // the place of the running contenders
	up          map[string]*contender
	bytes       map[string]uint64 // of a stream, by load; the same for all configs
}

// variant has the differences between `kerb bench accelerator` and `kerb bench mesh`.
type variant struct {
	labs      string // prefix of the labs' names
	configs   []string
	workloads []workload
	openPlace func(kind, prefix string, f family) (*place, error)
	available func(kind string) error // reports whether the programs of a place are installed
	allow     func() []string         // further programs that the config kerb accelerates
	addNotes  func(*experiment)       // adds the last notes
	only      map[string]string       // the place of configs that are measured at one place only
}

var accelerator = variant{"kba", configs, workloads, openPlace, func(string) error { return nil },
	func() []string { return nil }, (*experiment).noteCosts, nil}

func newRun() *experiment { return newVariant(accelerator) }

func newVariant(v variant) *experiment {
	return &experiment{variant: v, proxy: "haproxy", family: "4", up: map[string]*contender{}, bytes: map[string]uint64{}}
}

// The contenders. Plain is measured twice, so that a report shows the difference between equal configs.
var configs = []string{"plain", "plain-again", "kerb", "kerb-allow", "redirect-all", publishedKeys, "unix"}

func (e *experiment) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&e.proxy, "proxy", "haproxy", "program used for proxies and sidecars: "+strings.Join(proxyNames(), ", "))
	f.StringVar(&e.family, "ip", "4", "IP version: 4 or 6")
	e.cpusFlag(cmd)
}

func (e *experiment) cpusFlag(cmd *cobra.Command) {
	cmd.Flags().StringVar(&e.cpus, "cpus", "one", "one: all processes share a CPU, so that results show the path and "+
		"not wakeups between CPUs; two: one CPU for each side")
}

// check validates the values of flags.
func (e *experiment) check() error {
	if _, known := proxies[e.proxy]; !known {
		return fmt.Errorf("--proxy %s: must be one of %s", e.proxy, strings.Join(proxyNames(), ", "))
	}
	if _, known := families[e.family]; !known {
		return fmt.Errorf("--ip %s: must be 4 or 6", e.family)
	}
	if e.cpus != "one" && e.cpus != "two" {
		return fmt.Errorf("--cpus %s: must be one or two", e.cpus)
	}
	return nil
}

func (e *experiment) execute(ctx context.Context, r *bench.Run) (err error) {
	if err := e.check(); err != nil {
		return err
	}
	e.run, e.lengths = r, lengthsOf(r.Quick).share(r.Scale)
	if e.tools, err = compile(ctx, e.cpus); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.closePlace(), e.tools.Close()) }()
	for _, load := range r.Loads() {
		if err := e.runLoad(ctx, load); err != nil {
			return err
		}
	}
	e.notes()
	return nil
}

func (e *experiment) runLoad(ctx context.Context, load string) error {
	place, name, _ := strings.Cut(load, "/")
	if e.run.LeftOut(place, e.available(place)) {
		return nil
	}
	w := e.workload(name)
	if err := e.move(place); err != nil {
		return err
	}
	var trials []bench.Trial
	for _, config := range e.configs {
		if config == "unix" && (!w.unix || !slices.Contains(unixPlaces, place)) || e.only[config] != "" &&
			e.only[config] != place {
			continue
		}
		trials = append(trials, e.trial(ctx, load, config, w))
	}
	return e.run.Interleave(ctx, load, trials...)
}

func (e *experiment) trial(ctx context.Context, load, config string, w workload) bench.Trial {
	var s *serving
	t := bench.Trial{Config: config,
		Open:    func() (_ io.Closer, err error) { s, err = e.serve(ctx, config, w); return s, err },
		Measure: func(ctx context.Context) ([]bench.Sample, error) { return s.round(ctx) }}
	if config == publishedKeys {
		return e.noteFailures(load, t)
	}
	return t
}

func (e *experiment) serve(ctx context.Context, config string, w workload) (*serving, error) {
	c, err := e.contender(ctx, config)
	if err != nil {
		return nil, err
	}
	return c.serve(ctx, w)
}

// contender opens a config's hosts at the current place, once for all its loads.
func (e *experiment) contender(ctx context.Context, config string) (*contender, error) {
	if c := e.up[config]; c != nil {
		return c, nil
	}
	c, err := e.open(ctx, config)
	if err == nil {
		e.up[config] = c
	}
	return c, err
}

// move changes the place, and closes the contenders of the previous one.
func (e *experiment) move(place string) error {
	if e.where == place {
		return nil
	}
	err := e.closePlace()
	e.where = place
	return err
}

func (e *experiment) closePlace() error {
	var errs []error
	for config, c := range e.up {
		errs = append(errs, c.Close())
		delete(e.up, config)
	}
	return errors.Join(errs...)
}
