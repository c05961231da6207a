// SPDX-License-Identifier: Apache-2.0

// Package swap implements `kerb bench swap`. A module is replaced repeatedly under a stream of numbered packets between
// two services; each packet must arrive exactly once, with the mark of exactly one generation of the module. The
// references are the kernel's atomic replacement of a TCX link, which is the limit, and detaching and attaching, as
// tools without atomic replacement do.
package swap

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kerb-edge/kerb/bench"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/lab/traffic"
)

const labPrefix = "kbswap"

const streamPort = 7411 // also in stamp.bpf.c

// A round makes 200 replacements, five rounds 1,000, with a pause after each in which a few hundred packets pass. Fewer
// suffice for quick runs, and for the effect of detaching.
const (
	replacements      = 200
	replacementsQuick = 40
	replacementsNaive = 20
	pause             = 2 * time.Millisecond
)

// Replacer is a chain with the stamping module on the ingress of a service.
type Replacer interface {
	// Replace activates a new generation of the module.
	Replace(generation uint32) error
	Close() error
}

// ValueSetter is a Replacer that can also change a value of a running module without replacing its program.
type ValueSetter interface {
	// SetValue activates the value for n and returns how long that took. The first one, for 0, is not counted.
	SetValue(n int) (time.Duration, error)
}

func init() {
	bench.Register(bench.Experiment{
		Name:       "swap",
		Short:      "packets lost or missed while a module is replaced 1,000 times",
		Loads:      []string{"100kpps"},
		QuickLoads: []string{"100kpps"},
		Run:        run,
	})
}

func run(ctx context.Context, r *bench.Run) (err error) {
	lab, err := netlab.NewIn(labPrefix)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lab.Close()) }()
	client, err := lab.Host("client", netlab.HostOptions{})
	if err != nil {
		return err
	}
	service, err := lab.Host("service", netlab.HostOptions{})
	if err != nil {
		return err
	}
	for _, load := range r.Loads() {
		if err := r.Interleave(ctx, load, trials(r, lab, client, service)...); err != nil {
			return err
		}
	}
	return nil
}

// subject is one config with its hosts.
type subject struct {
	config          string
	open            func(lab *netlab.Lab, service *netlab.Host) (Replacer, error)
	replacements    int
	lab             *netlab.Lab
	client, service *netlab.Host
}

func trials(r *bench.Run, lab *netlab.Lab, client, service *netlab.Host) []bench.Trial {
	n := replacements
	if r.Quick {
		n = replacementsQuick
	}
	subjects := []subject{
		{config: "kerb", open: openKerb, replacements: n},
		{config: "link-update", open: openUpdating, replacements: n},
		{config: "reattach", open: openReattaching, replacements: replacementsNaive},
	}
	var all []bench.Trial
	for _, s := range subjects {
		if err := bench.HaveTCX(); err != nil && s.config != "kerb" {
			r.Note("%s is left out, as it needs TCX: %v", s.config, err)
			continue
		}
		s.lab, s.client, s.service = lab, client, service
		all = append(all, bench.Trial{Config: s.config, Measure: func(ctx context.Context) ([]bench.Sample, error) {
			return s.measure(ctx, r)
		}})
	}
	return all
}

func (s subject) measure(ctx context.Context, r *bench.Run) (_ []bench.Sample, err error) {
	rep, err := s.open(s.lab, s.service)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rep.Close()) }()
	var times, values []float64
	account, err := traffic.Stream(s.client, s.service, streamPort, func() (err error) {
		if times, err = replaceAll(ctx, rep, s.replacements); err != nil {
			return err
		}
		if setter, ok := rep.(ValueSetter); ok {
			values, err = setValues(ctx, setter, s.replacements)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	s.validate(r, account)
	out := samples(account, times)
	if len(values) > 0 {
		out = append(out, bench.MedianAnd99("value_time", "ms", values)...)
	}
	return out, nil
}

// setValues returns the time of each of n changes of a value in ms.
func setValues(ctx context.Context, setter ValueSetter, n int) (times []float64, err error) {
	for i := range n + 1 {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		took, err := setter.SetValue(i)
		if err != nil {
			return nil, fmt.Errorf("change %d of a value: %w", i, err)
		}
		if i > 0 {
			times = append(times, took.Seconds()*1e3)
		}
		time.Sleep(pause)
	}
	return times, nil
}

// replaceAll returns the time of each of n replacements in ms.
func replaceAll(ctx context.Context, rep Replacer, n int) ([]float64, error) {
	var times []float64
	time.Sleep(10 * pause)
	for i := range n {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		start := time.Now()
		if err := rep.Replace(uint32(i + 2)); err != nil {
			return nil, fmt.Errorf("replacement %d: %w", i+1, err)
		}
		times = append(times, time.Since(start).Seconds()*1e3)
		time.Sleep(pause)
	}
	return times, nil
}

// validate invalidates a run whose measurement failed: packets were lost in a buffer, or none arrived during
// replacements.
func (s subject) validate(r *bench.Run, a traffic.StreamStats) {
	if a.Explained.Socket > 0 {
		r.Invalidate("%s: the receiver's socket dropped %d packets", s.config, a.Explained.Socket)
	}
	if a.Explained.Backlog > 0 && a.Lost > 0 {
		r.Invalidate("%s: CPU backlogs dropped %d packets", s.config, a.Explained.Backlog)
	}
	if a.Rate < traffic.PacketRate {
		r.Invalidate("%s: the sender reached only %.0f packets/s", s.config, a.Rate)
	}
	if a.Generations < uint64(s.replacements*9/10) {
		r.Invalidate("%s: packets passed only %d of %d generations", s.config, a.Generations, s.replacements+1)
	}
}

func samples(a traffic.StreamStats, times []float64) []bench.Sample {
	return append([]bench.Sample{
		bench.Count("replacements", uint64(len(times))),
		bench.Count("sent", a.Sent),
		bench.Count("lost", a.Lost),
		bench.Count("unprocessed", a.Unprocessed),
		bench.Count("duplicated", a.Duplicated),
		bench.Count("double_processed", a.Doubled),
		bench.Count("generations_seen", a.Generations),
		bench.Count("generation_reversals", a.Backward),
		bench.P50("rate", "1/s", a.Rate),
	}, bench.MedianAnd99("replace_time", "ms", times)...)
}
