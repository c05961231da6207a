// SPDX-License-Identifier: Apache-2.0

// Package scale implements `kerb bench scale`: the time to attach a chain of four modules to 100 or 500 services, the
// time to change it, and the memory of the kernel and the agent per additional service. The references are one program
// shared by all services, the lower limit, and a copy of the modules for each service.
//
// Attaching and detaching a TCX link wait for an RCU grace period with the rtnl lock held (tcx_entry_sync), about 10 ms
// on an idle machine with two CPUs. For two hooks of 500 services, this takes longer than loading programs.
package scale

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/kerb-edge/kerb/bench"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
)

//go:embed *.bpf.*
var files embed.FS

const labPrefix = "kbscale"

// parallel is the prefix of loads with a client per service, which attach concurrently.
const parallel = "parallel/"

// Modules is the length of the chain.
const Modules = 4

// Node is an agent, or a reference in its place, on the node of a lab.
type Node interface {
	// Attach returns when the chain of four modules is in effect on these additional services. It is safe for concurrent
	// use.
	Attach(services []*netlab.Host) error
	// Rechain changes the chain, and returns when the new one is in effect on every service.
	Rechain() error
	// PID returns the process whose memory counts as the agent's.
	PID() int
	Close() error
}

func init() {
	bench.Register(bench.Experiment{
		Name:       "scale",
		Short:      "time and memory of a chain of four modules on hundreds of services",
		Baseline:   "copies",
		Loads:      []string{"100", "500", parallel + "100"},
		QuickLoads: []string{"100"},
		Run:        run,
	})
}

func run(ctx context.Context, r *bench.Run) error {
	for _, load := range r.Loads() {
		n, err := strconv.Atoi(strings.TrimPrefix(load, parallel))
		if err != nil {
			return err
		}
		if err := runLoad(ctx, r, load, n); err != nil {
			return err
		}
	}
	return nil
}

func runLoad(ctx context.Context, r *bench.Run, load string, n int) (err error) {
	lab, err := netlab.NewIn(labPrefix)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lab.Close()) }()
	r.Progress("%s services: building", load)
	services, err := lab.Hosts(n, netlab.HostOptions{})
	if err != nil {
		return err
	}
	measure := measure
	if strings.HasPrefix(load, parallel) {
		measure = measureParallel
	}
	return r.Interleave(ctx, load, trials(r, lab, services, measure)...)
}

// measurer measures a node on services.
type measurer func(open func(*netlab.Lab) (Node, error), lab *netlab.Lab,
	services []*netlab.Host) ([]bench.Sample, error)

func trials(r *bench.Run, lab *netlab.Lab, services []*netlab.Host, measure measurer) []bench.Trial {
	var all []bench.Trial
	for _, c := range []struct {
		name string
		open func(*netlab.Lab) (Node, error)
	}{{"kerb", openKerb}, {"shared", openShared}, {"copies", openCopies}} {
		if c.name == "shared" && r.Quick {
			r.Note("shared is left out of quick runs: it takes as long as kerb")
			continue
		}
		if err := bench.HaveTCX(); err != nil && c.name == "shared" {
			r.Note("shared is left out, as it needs TCX: %v", err)
			continue
		}
		all = append(all, bench.Trial{Config: c.name, Measure: func(context.Context) ([]bench.Sample, error) {
			return measure(c.open, lab, services)
		}})
	}
	return all
}

func measure(open func(*netlab.Lab) (Node, error), lab *netlab.Lab,
	services []*netlab.Host) (_ []bench.Sample, err error) {
	node, err := open(lab)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, node.Close()) }()
	grown, err := grow(node, services)
	if err != nil {
		return nil, err
	}
	if err := check(node, false); err != nil {
		return nil, err
	}
	start := time.Now()
	if err := node.Rechain(); err != nil {
		return nil, fmt.Errorf("rechain: %w", err)
	}
	rechain := time.Since(start)
	if err := check(node, true); err != nil {
		return nil, err
	}
	resident, err := Resident(node.PID())
	if err != nil {
		return nil, err
	}
	return []bench.Sample{
		bench.P50("attach", "s", grown.took.Seconds()),
		bench.P50("rechain", "s", rechain.Seconds()),
		{Metric: "kernel_memory_per_service", Stat: "max", Unit: "KiB", Value: grown.perService / 1024},
		bench.P50("kernel_memory_per_service", "KiB", grown.perService/1024),
		{Metric: "charged_per_service", Stat: "max", Unit: "KiB", Value: grown.charged / 1024},
		{Metric: "agent_memory", Stat: "max", Unit: "MiB", Value: float64(resident) / (1 << 20)},
	}, nil
}

// measureParallel is measure with a client per service. The references handle clients sequentially.
func measureParallel(open func(*netlab.Lab) (Node, error), lab *netlab.Lab,
	services []*netlab.Host) (_ []bench.Sample, err error) {
	node, err := open(lab)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, node.Close()) }()
	took, failed := make([]float64, len(services)), make([]error, len(services))
	var clients sync.WaitGroup
	start := time.Now()
	for i, s := range services {
		clients.Go(func() {
			failed[i] = node.Attach([]*netlab.Host{s})
			took[i] = time.Since(start).Seconds()
		})
	}
	clients.Wait()
	if err := errors.Join(failed...); err != nil {
		return nil, fmt.Errorf("attach: %w", err)
	}
	return bench.MedianAnd99("attach", "s", took), check(node, false)
}

// check checks that the changes are in effect, if the node supports it.
func check(node Node, rechained bool) error {
	if c, ok := node.(interface{ Check(rechained bool) error }); ok {
		return c.Check(rechained)
	}
	return nil
}

// growth is the time and memory of attaching to all services.
type growth struct {
	took                time.Duration
	perService, charged float64 // bytes
}

// grow attaches to a fifth of the services and then to the rest, so that the cost of an additional service excludes
// shared state.
func grow(node Node, services []*netlab.Host) (growth, error) {
	first := len(services) / 5
	start := time.Now()
	if err := node.Attach(services[:first]); err != nil {
		return growth{}, fmt.Errorf("attach: %w", err)
	}
	took := time.Since(start)
	memory, objects, err := holdings()
	if err != nil {
		return growth{}, err
	}
	start = time.Now()
	if err := node.Attach(services[first:]); err != nil {
		return growth{}, fmt.Errorf("attach: %w", err)
	}
	took += time.Since(start)
	memoryAll, objectsAll, err := holdings()
	rest := float64(len(services) - first)
	return growth{
		took:       took,
		perService: float64(memoryAll-memory) / rest,
		charged:    float64(objectsAll.Charged-objects.Charged) / rest,
	}, err
}

func holdings() (int64, Objects, error) {
	memory, err := settledMemory()
	if err != nil {
		return 0, Objects{}, err
	}
	objects, err := ReadObjects()
	return memory, objects, err
}
