// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sync/errgroup"

	"github.com/kerb-edge/kerb/internal/chain"
)

// MeasureTime is the approximate duration of a measurement, without loading. A slow module takes longer, but at most a
// few times as long.
const MeasureTime = 30 * time.Millisecond

// meter measures modules. It caches the chains that it compares them with, as loading one takes about as long as the
// measurement. The zero value is ready to use, and safe for concurrent use.
type meter struct {
	mu         sync.Mutex
	references map[reference]*linkedChain
}

// reference identifies a chain without modules, whose parser is that of a chain with the module.
type reference struct {
	hook  chain.Hook
	frags bool
}

// Close frees the chains. Nothing may be measured afterwards.
func (m *meter) Close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.references {
		c.Close()
	}
	m.references = nil
}

// measure runs representative packets through a map set alone, on the given hooks, in every direction that the module
// supports and its settings do not declare idle. The module treats them as real packets, but they reach no receiver. A
// packet that a module rewrites stays rewritten for the next run. They change the maps of g.
func (m *meter) measure(g *mapSet, hooks []chain.Hook, background bool) (chain.Cost, error) {
	targets, err := targetsOf(g.Module, hooks)
	if err != nil {
		return chain.Cost{}, fmt.Errorf("%w: %w", chain.ErrNotMeasured, err)
	}
	cost := chain.Cost{Memory: Memory(g.sdkMaps())}
	if g.Sockets {
		return cost, chain.ErrNotPackets
	}
	chains, err := loadAlone(g, targets, background)
	defer closeChains(chains)
	if err != nil {
		return cost, fmt.Errorf("module %s: %w: %w", g.Name, chain.ErrNotMeasured, err)
	}
	for i, c := range chains {
		l := chain.Latency{Hook: targets[i].side.Hook(), Direction: targets[i].dir}
		if l.Packets, err = m.compare(c, g.Frags, MeasureTime/time.Duration(len(targets))); err != nil {
			return cost, fmt.Errorf("module %s on %s %s: %w: %w", g.Name, l.Hook, l.Direction, chain.ErrNotMeasured, err)
		}
		cost.Latency = append(cost.Latency, l)
	}
	return cost, nil
}

// compare compares a chain of one module with one that only parses.
func (m *meter) compare(c *linkedChain, frags bool, duration time.Duration) ([]chain.PacketCost, error) {
	hook := c.spec.Side.Hook()
	only, err := m.reference(reference{hook, hook == chain.XDP && frags && haveXDPFrags()})
	if err != nil {
		return nil, err
	}
	return compare(c.entry(), only.entry(), sampler(hook), duration)
}

// reference returns an empty chain, whose time is subtracted from that of a module's chain. It is linked once per hook
// and cached.
func (m *meter) reference(r reference) (*linkedChain, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if c := m.references[r]; c != nil {
		return c, nil
	}
	side := chain.OnTCIngress
	if r.hook == chain.XDP {
		side = chain.OnXDP
	}
	l, err := newLinkerFor(chain.Spec{Side: side, Direction: chain.Egress}, nil, r.frags)
	if err != nil {
		return nil, err
	}
	c, err := l.chain()
	if err != nil {
		return nil, err
	}
	if m.references == nil {
		m.references = map[reference]*linkedChain{}
	}
	m.references[r] = c
	return c, nil
}

// loadAlone loads a chain of one module for each target, on all CPUs, or on one if no change waits for it. The caller
// closes the returned chains, also after an error.
func loadAlone(g *mapSet, targets []target, background bool) ([]*linkedChain, error) {
	chains := make([]*linkedChain, len(targets))
	var work errgroup.Group
	work.SetLimit(runtime.NumCPU())
	if background {
		work.SetLimit(1)
	}
	for i, t := range targets {
		work.Go(func() error {
			spec := chain.Spec{Side: t.side, Direction: t.dir,
				Members: []chain.Member{{Name: g.Name, ID: g.ID, FailClosed: g.FailClosed}}}
			l, err := newLinker(spec, []*mapSet{g})
			if err != nil {
				return err
			}
			l.background = background
			chains[i], err = l.chain()
			return err
		})
	}
	return chains, work.Wait()
}

func closeChains(chains []*linkedChain) {
	for _, c := range chains {
		if c != nil {
			c.Close()
		}
	}
}

// target is a function of a module, with a side on which it may run.
type target struct {
	side chain.Side
	dir  chain.Direction
}

// targetsOf returns the sides and directions in which a module can run: on the hooks of the node for which its object
// has entries, except those that its settings declare idle.
func targetsOf(mod Module, hooks []chain.Hook) ([]target, error) {
	var out []target
	err := hooksOf(mod, func(hook chain.Hook, spec *ebpf.CollectionSpec) error {
		for _, t := range []target{{chain.OnTCIngress, chain.Egress}, {chain.OnTCEgress, chain.Ingress},
			{chain.OnXDP, chain.Egress}, {chain.OnXDP, chain.Ingress}} {
			idle := slices.Contains(mod.Settings.Idle, string(t.dir))
			if t.side.Hook() == hook && slices.Contains(hooks, hook) && spec.Programs["kerb_"+string(t.dir)] != nil && !idle {
				out = append(out, t)
			}
		}
		return nil
	})
	return out, err
}

// series are the times of one kind of packet.
type series struct {
	testPacket
	repeat         int
	own, reference []float64
}

// compare runs both programs alternately, so that disturbances affect both, in rounds over all packets: at least
// leastRounds, more while there is time, and no further one when the time has been exceeded by far.
func compare(own, reference *ebpf.Program, sample sampleFunc, duration time.Duration) ([]chain.PacketCost, error) {
	const leastRounds, patience = 5, 4
	begin := time.Now()
	all, err := calibrate(own, begin.Add(patience*duration))
	if err != nil {
		return nil, err
	}
	for round := 0; round < leastRounds || time.Since(begin) < duration; round++ {
		for _, s := range all {
			if round > 0 && time.Since(begin) > patience*duration {
				return costs(all), nil
			}
			if err := s.add(own, reference, sample); err != nil {
				return nil, err
			}
		}
	}
	return costs(all), nil
}

// calibrate determines how often each packet can be repeated in one run, which also warms up. If one kind of packet
// takes so long that there is no time for the others, it leaves these out.
func calibrate(own *ebpf.Program, until time.Time) ([]*series, error) {
	const run, most = 20 * time.Microsecond, 500
	var all []*series
	for _, p := range representative() {
		if len(all) > 0 && time.Now().After(until) {
			break
		}
		var took time.Duration
		for range 3 { // the first is cold
			_, d, err := own.Benchmark(p.frame, 1, func() {})
			if err != nil {
				return nil, err
			}
			took = max(d, 1)
		}
		all = append(all, &series{testPacket: p, repeat: int(min(max(run/took, 1), most))})
	}
	return all, nil
}

// add measures the reference and then the module, so that a change of the CPU's clock affects both.
func (s *series) add(own, reference *ebpf.Program, sample sampleFunc) error {
	b, err := sample(reference, s)
	if err != nil {
		return err
	}
	a, err := sample(own, s)
	s.own, s.reference = append(s.own, a), append(s.reference, b)
	return err
}

// costs returns what a module adds to an empty chain, in ns per packet: the median of pairwise differences, and as a
// lower bound the difference of the fastest runs. Noise can make either negative, which counts as 0.
func costs(all []*series) []chain.PacketCost {
	var out []chain.PacketCost
	for _, s := range all {
		var differences []float64
		for i := range s.own {
			differences = append(differences, s.own[i]-s.reference[i])
		}
		middle := max(0, chain.Median(differences))
		out = append(out, chain.PacketCost{Kind: s.kind, Median: middle,
			Least: min(middle, max(0, slices.Min(s.own)-slices.Min(s.reference)))})
	}
	return out
}

// sampleFunc gives the nanoseconds per packet of one round.
type sampleFunc func(*ebpf.Program, *series) (float64, error)

func sampler(hook chain.Hook) sampleFunc {
	if hook == chain.XDP {
		return sampleSingly
	}
	return sampleRepeated
}

func sampleRepeated(p *ebpf.Program, s *series) (float64, error) {
	_, d, err := p.Benchmark(s.frame, s.repeat, func() {})
	return float64(d.Nanoseconds()), err
}

// sampleSingly is for XDP, where the kernel rewrites its dispatcher and waits for all CPUs, some 20 ms, before and
// after a repeated run (bpf_prog_change_xdp). A single run includes reading the clock, as that of the reference does,
// and finds the CPU's predictors colder. The clock has a coarse resolution: the mean of the faster half is finer than a
// tick.
func sampleSingly(p *ebpf.Program, s *series) (float64, error) {
	const most = 16
	times := make([]float64, min(most, s.repeat))
	for i := range times {
		_, d, err := p.Benchmark(s.frame, 1, func() {})
		if err != nil {
			return 0, err
		}
		times[i] = float64(d.Nanoseconds())
	}
	slices.Sort(times)
	better := times[:(len(times)+1)/2]
	sum := 0.0
	for _, t := range better {
		sum += t
	}
	return sum / float64(len(better)), nil
}
