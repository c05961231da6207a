// SPDX-License-Identifier: Apache-2.0

// Package classifier implements `kerb bench classifier`, which compares inference in the kernel with user space:
//
//   - mlp-* and forest-*: one inference, compared with the same arithmetic in C, scalar (user) and with vector
//     instructions (user-best).
//   - rpl/*: the published windows. Accuracy, agreement with floating point, and the evaluation of the 12 sources of a
//     window, triggered by the packets that count in it (kernel) or with a lookup per source (kernel-lookup), compared
//     with three system calls per source (user, as published) and one for all (user-best). Also the rate and the CPU
//     time of frames through a chain with the model in the kernel, with the model in the control plane (user), with the
//     classifier but no model (none), and without the classifier (bare).
//   - per-packet/*: the model is evaluated for each frame.
//   - change/*: the model is replaced under traffic.
//   - size/*: frames of one size, without a model.
//   - softirq/*: CPU time in softirqs over time, at one rate.
package classifier

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"strconv"
	"strings"

	"github.com/kerb-edge/kerb/bench"
	"github.com/kerb-edge/kerb/internal/lab/traffic"
	"github.com/kerb-edge/kerb/modules/classifier/inference"
	"github.com/kerb-edge/kerb/sdk/model"
)

//go:embed src/*.c data/*.csv
var files embed.FS

func init() {
	bench.Register(bench.Experiment{
		Name:     "classifier",
		Short:    "models evaluated in the kernel, compared with user space, and their cost in a chain",
		Baseline: "user",
		Loads: []string{
			"mlp-4-3-2-1/int8", "mlp-16-32-16-2/int8", "mlp-64-64-32-4/int8", "mlp-4-3-2-1/q15", "mlp-16-32-16-2/q15",
			"mlp-64-64-32-4/q15",
			"forest-10x10", "rpl/1s", "rpl/5s", "rpl/10s",
			"per-packet/rpl-hello-1s", "per-packet/mlp-16-32-16-2", "per-packet/rpl-floods-1s", "change/rpl-floods-1s",
			"size/64", "size/128", "size/256", "size/512", "size/1024", "size/1500", "softirq/1s",
		},
		QuickLoads: []string{"mlp-4-3-2-1/int8", "forest-10x10", "rpl/1s"},
		Run:        run,
	})
}

// experiment is one run: the engine in the kernel and the program in user space.
type experiment struct {
	run     *bench.Run
	kernel  *inference.Kernel
	user    bench.Programs
	wasLive bool // frames were sent
}

func run(ctx context.Context, r *bench.Run) (err error) {
	e := &experiment{run: r}
	if e.user, err = bench.Compile(ctx, nil, files, "src/user.c"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.user.Close()) }()
	if e.kernel, err = inference.Open(); err != nil {
		return err
	}
	defer e.kernel.Close()
	for _, load := range r.Loads() {
		if err := e.load(ctx, load); err != nil {
			return fmt.Errorf("%s: %w", load, err)
		}
	}
	r.Note("user is scalar C that does the same work, user-best the same with vector instructions, both compiled with " +
		"clang -O3 -march=native; the fastest of several runs counts, also in the kernel, less the call of an empty " +
		"program; for a window that packets trigger, less the time that counting them takes")
	if e.wasLive {
		r.Note("frames: kernel and user are chains with the classifier, whose model runs in the data plane or in the "+
			"control plane; none has the classifier without a model, bare has no classifier, plain is an interface without a "+
			"program. Sender, chain and receiver share a CPU, and each batch of %d waits for the previous one. lossfree_rate "+
			"is the upper quartile of the turns of a round; a window ends in few turns, whereas cpu is the mean of all turns, "+
			"and control_cpu is the CPU time of the agent and the control planes", batchLen)
	}
	return nil
}

func (e *experiment) load(ctx context.Context, load string) error {
	kind, rest, _ := strings.Cut(load, "/")
	switch kind {
	case "rpl":
		return e.rpl(ctx, rest)
	case "per-packet":
		return e.perPacket(ctx, load, rest)
	case "change":
		return e.change(ctx, load, rest)
	case "size":
		return e.sizes(ctx, load, rest)
	case "softirq":
		return e.softirqs(ctx, load, rest)
	}
	shape, arguments, err := e.prepare(kind, rest)
	if err != nil {
		return err
	}
	if err := e.put(shape); err != nil {
		return err
	}
	return e.run.Interleave(ctx, load, e.trials("inference", arguments, e.kernel.Nanoseconds)...)
}

// prepare returns the model of a load, and the arguments for the same model in user space. trials replaces the argument
// "scalar" for vectors.
func (e *experiment) prepare(kind, arithmetic string) (*model.Document, []string, error) {
	name, shape, _ := strings.Cut(kind, "-")
	if name == "forest" {
		trees, depth, _ := strings.Cut(shape, "x")
		t, err1 := strconv.Atoi(trees)
		d, err2 := strconv.Atoi(depth)
		return forest(t, d), []string{"forest", "scalar", trees, depth}, errors.Join(err1, err2)
	}
	widths, err := parseWidths(shape)
	if err != nil {
		return nil, nil, err
	}
	d, err := network(arithmetic, widths)
	return d, append([]string{"mlp", arithmetic, "scalar"}, strings.Split(shape, "-")...), err
}

// parseWidths parses "4-3-2-1".
func parseWidths(shape string) (widths []int, err error) {
	for _, w := range strings.Split(shape, "-") {
		n, err := strconv.Atoi(w)
		if err != nil {
			return nil, err
		}
		widths = append(widths, n)
	}
	return widths, nil
}

// put loads a model and its input features.
func (e *experiment) put(d *model.Document) error {
	p, err := d.Pack(d.Features)
	if err != nil {
		return err
	}
	if err := e.kernel.Load(p); err != nil {
		return err
	}
	_, err = e.kernel.Decide(features(rand.New(rand.NewPCG(3, 4)), len(d.Features)))
	return err
}

// trials measures a metric in the kernel and in user space.
func (e *experiment) trials(metric string, arguments []string, kernel func() (float64, error)) []bench.Trial {
	user := func(ctx context.Context, how string) ([]bench.Sample, error) {
		own := strings.Split(strings.Replace(strings.Join(arguments, " "), "scalar", how, 1), " ")
		return sample(metric)(e.runUser(ctx, own))
	}
	return []bench.Trial{
		inKernel("kernel", metric, kernel),
		{Config: "user", Measure: func(ctx context.Context) ([]bench.Sample, error) { return user(ctx, "scalar") }},
		{Config: "user-best", Measure: func(ctx context.Context) ([]bench.Sample, error) { return user(ctx, "vector") }},
	}
}

func inKernel(config, metric string, measure func() (float64, error)) bench.Trial {
	return bench.Trial{Config: config, Measure: func(context.Context) ([]bench.Sample, error) {
		return sample(metric)(pinned(measure))
	}}
}

func sample(metric string) func(float64, error) ([]bench.Sample, error) {
	return func(ns float64, err error) ([]bench.Sample, error) {
		return []bench.Sample{bench.P50(metric, "ns", ns)}, err
	}
}

func pinned(measure func() (float64, error)) (ns float64, err error) {
	err = traffic.RunOnCPU(1, func() error { ns, err = measure(); return err })
	return ns, err
}

func (e *experiment) runUser(ctx context.Context, arguments []string) (float64, error) {
	out, err := exec.CommandContext(ctx, e.user.Path("user"), arguments...).Output()
	if err != nil {
		return 0, fmt.Errorf("user %s: %w", strings.Join(arguments, " "), err)
	}
	return strconv.ParseFloat(strings.TrimSpace(string(out)), 64)
}
