// SPDX-License-Identifier: Apache-2.0

// Package control implements `kerb bench control`. It measures the memory of control planes, the time to start a module
// and to apply a changed config, and the highest rate of events without loss. It also measures a package without a
// control plane, whose config consists of constants.
package control

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/kerb-edge/kerb/bench"
	"github.com/kerb-edge/kerb/internal/binpath"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/lab/tempdir"
)

const labPrefix = "kbctl"

// Target is the memory limit of the agent with all built-in control planes: 60 MB, in MiB.
const Target = 60e6 / (1 << 20)

func init() {
	bench.Register(bench.Experiment{
		Name:       "control",
		Short:      "control planes: memory, start, config changes and events",
		Loads:      []string{"counter", "firewall", "all-builtin", "python"},
		QuickLoads: []string{"all-builtin", "python"},
		Run:        run,
	})
}

// topology is the lab of all loads.
type topology struct {
	bench.Closers
	lab     *netlab.Lab
	service *netlab.Host
	binary  string
}

func run(ctx context.Context, r *bench.Run) (err error) {
	g, err := newTopology(labPrefix)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.Close()) }()
	for _, load := range r.Loads() {
		if why := missing(load); why != nil {
			r.Note("%s is left out: %v", load, why)
			continue
		}
		if err := r.Interleave(ctx, load, g.trials(r, load)...); err != nil {
			return err
		}
		if load == "all-builtin" {
			r.Record("target", load, bench.P50(totalMemory, "MiB", Target))
		}
	}
	r.Note("constants is the benchmarks' package stamp: no control plane, and a small data plane")
	r.Note("counter has no config; of these modules, only python sends events")
	r.Note("start and configure include the verification of the data plane, whose time depends on the package")
	return nil
}

func (g *topology) trials(r *bench.Run, load string) []bench.Trial {
	var all []bench.Trial
	for _, c := range []struct{ config, load string }{{"kerb", load}, {"constants", "constants"}} {
		all = append(all, bench.Trial{Config: c.config, Measure: func(ctx context.Context) ([]bench.Sample, error) {
			return g.measure(ctx, r, c.load)
		}})
	}
	return all
}

func newTopology(prefix string) (*topology, error) {
	binary, err := copyKerb()
	if err != nil {
		return nil, err
	}
	g := &topology{binary: binary}
	g.Later(func() error { return tempdir.Remove(filepath.Dir(binary)) })
	return g, g.CloseOn(g.build(prefix))
}

func (g *topology) build(prefix string) (err error) {
	if g.lab, err = netlab.NewIn(prefix); err != nil {
		return err
	}
	g.Later(g.lab.Close)
	if g.service, err = g.lab.Host("service", netlab.HostOptions{}); err != nil {
		return err
	}
	return g.lab.AddUnderlay()
}

// copyKerb copies the installed kerb. Pages of a file that other processes map, too, would be charged to the agent only
// in part (PSS).
func copyKerb() (string, error) {
	kerb, err := binpath.FindKerb()
	if err != nil {
		return "", err
	}
	dir, err := tempdir.New()
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "kerb")
	program, err := os.ReadFile(kerb)
	if err := errors.Join(err, os.Chmod(dir, 0o755), os.WriteFile(path, program, 0o755)); err != nil {
		return "", errors.Join(fmt.Errorf("copy %s: %w", kerb, err), tempdir.Remove(dir))
	}
	return path, nil
}
