// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"errors"
	"fmt"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/bench"
	"github.com/kerb-edge/kerb/internal/lab/node"
)

const totalMemory = "agent_and_control_memory"

// Changes of config per round, and timeouts.
const (
	changes      = 10
	changesQuick = 2
	startLimit   = time.Minute
	pollEvery    = time.Millisecond
	settle       = 5 * time.Second // after a change, until its memory is returned (package memtrim)
)

// measure measures one round of one load, with a new agent, so that its control planes start cold.
func (g *topology) measure(ctx context.Context, r *bench.Run, name string) (_ []bench.Sample, err error) {
	n, err := node.StartBinary(g.lab.Node(), g.binary)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, n.Close()) }()
	l, err := newLoad(name, n.Dir)
	if err != nil {
		return nil, err
	}
	s := &subject{Node: n, load: l}
	if err := n.Apply(node.Service(g.service)); err != nil {
		return nil, err
	}
	steps := []func(context.Context, *bench.Run) error{s.start, s.configure, s.memory, s.eventRate}
	for _, step := range steps {
		if err := errors.Join(ctx.Err(), step(ctx, r)); err != nil {
			return nil, err
		}
	}
	return s.samples, nil
}

// subject is an agent with a load, and its results.
type subject struct {
	*node.Node
	load    load
	samples []bench.Sample
}

func (s *subject) add(metric, unit string, value float64) {
	s.samples = append(s.samples, bench.P50(metric, unit, value))
}

// start applies the modules and waits until each control plane reports that it has taken over.
func (s *subject) start(ctx context.Context, _ *bench.Run) error {
	var resources []any
	for _, m := range s.load.modules {
		resources = append(resources, m)
	}
	begin := time.Now()
	if err := s.Apply(resources...); err != nil {
		return err
	}
	for _, m := range s.load.modules {
		if err := s.awaitRunning(ctx, m.Metadata.Name); err != nil {
			return err
		}
	}
	s.add("start", "ms", time.Since(begin).Seconds()*1e3)
	return nil
}

func (s *subject) awaitRunning(ctx context.Context, module string) error {
	condition := "Ready"
	if s.load.control {
		condition = "ControlPlane"
	}
	for deadline := time.Now().Add(startLimit); ; time.Sleep(pollEvery) {
		m, err := s.module(module)
		if err != nil {
			return err
		}
		if isTrue(m, condition) {
			return nil
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("module %s: %s is not true after %v: %+v", module, condition, startLimit, m.Status.Conditions)
		}
	}
}

func (s *subject) module(name string) (m v1.Module, err error) {
	err = s.Get("/v1/modules/"+name, &m)
	if err == nil && m.Status == nil {
		err = fmt.Errorf("module %s has no status", name)
	}
	return m, err
}

func isTrue(m v1.Module, condition string) bool {
	for _, c := range m.Status.Conditions {
		if c.Type == condition {
			return c.Status == "True"
		}
	}
	return false
}

// configure changes the config repeatedly. The agent responds when the new config is in effect.
func (s *subject) configure(_ context.Context, r *bench.Run) error {
	if s.load.change == nil {
		return nil
	}
	count := changes
	if r.Quick {
		count = changesQuick
	}
	var times []float64
	for i := range count {
		m := s.load.change(i + 1)
		begin := time.Now()
		if err := s.Put("/v1/modules/"+m.Metadata.Name, m); err != nil {
			return fmt.Errorf("change %d: %w", i+1, err)
		}
		times = append(times, time.Since(begin).Seconds()*1e3)
	}
	s.add("configure", "ms", bench.Median(times))
	return nil
}

// memory is measured after the changes, which leave garbage as on a node.
func (s *subject) memory(context.Context, *bench.Run) error {
	time.Sleep(settle)
	agent, err := node.Proportional(s.PID())
	if err != nil {
		return err
	}
	planes, err := node.Descendants(s.PID())
	if err != nil {
		return err
	}
	var sum int64
	for _, pid := range planes {
		one, err := node.Proportional(pid)
		if err != nil {
			return err
		}
		sum += one
	}
	if !s.load.control {
		s.add(totalMemory, "MiB", mebibytes(agent+sum))
		return nil
	}
	if len(planes) != 1 {
		return fmt.Errorf("the agent has %d processes for control planes, not one", len(planes))
	}
	s.add("memory", "MiB", mebibytes(sum))
	s.add(totalMemory, "MiB", mebibytes(agent+sum))
	return nil
}

func mebibytes(n int64) float64 { return float64(n) / (1 << 20) }
