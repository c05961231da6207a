// SPDX-License-Identifier: Apache-2.0

package accelerator

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/bench"
	"github.com/kerb-edge/kerb/internal/lab/ambient"
	"github.com/kerb-edge/kerb/internal/lab/node"
)

// kerb is the agent of a contender, with the accelerator on the contender's cgroup.
type kerb struct{ *node.Node }

// modes of the module, by config. kerb-allow also accelerates programs that the operator allows although the module
// does not know that they are safe.
var modes = map[string]string{"kerb": "adaptive", "kerb-allow": "adaptive", "redirect-all": "redirect-all"}

func (c *contender) startKerb() error {
	n, err := node.Start(c.place.lab.Node())
	if err != nil {
		return err
	}
	c.Later(n.Close)
	c.kerb = &kerb{n}
	return c.accelerate(map[string]any{})
}

// accelerate applies the module with these thresholds, if there is an agent.
func (c *contender) accelerate(thresholds map[string]any) error {
	if c.kerb == nil {
		return nil
	}
	m := node.Module("accelerator", "accelerator", "", map[string]any{
		"mode": modes[c.config], "programs": map[string]any{"allow": c.allowed()}, "thresholds": thresholds})
	m.Spec.Attach = v1.Attach{Cgroups: []string{c.group.Dir()}}
	return c.kerb.Apply(m)
}

// allowed returns this benchmark's own clients and server. In kerb-allow and redirect-all it also returns programs that
// are safe here, although the module cannot know it: redis-benchmark blocks in recv(2) briefly, but receives no
// signals; HAProxy can call splice(2), but does not without `option splice-auto`; ztunnel misses TCP bytes that follow
// redirected ones, which do not occur with redirect-all.
func (c *contender) allowed() []string {
	var own []string
	for _, name := range []string{"client", "server", "memtier", "mqtt"} {
		own = append(own, c.tools.Path(name))
	}
	if c.config != "kerb" {
		own = append(own, "redis-benchmark", "haproxy", ambient.Program)
	}
	return append(own, c.allow()...)
}

// counts are counters of connections by result.
type counts struct {
	offered, accelerated uint64
	refused              map[string]uint64 // by reason
}

func (k *kerb) counts() (counts, error) {
	sum := counts{refused: map[string]uint64{}}
	var pairs []struct {
		Offered, Accelerated uint64
		Refused              map[string]uint64
	}
	err := k.Get("/v1/modules/accelerator/pairs", &pairs)
	for _, p := range pairs {
		sum.offered += p.Offered
		sum.accelerated += p.Accelerated
		for reason, n := range p.Refused {
			sum.refused[reason] += n
		}
	}
	return sum, err
}

func (c counts) since(before counts) counts {
	d := counts{c.offered - before.offered, c.accelerated - before.accelerated, map[string]uint64{}}
	for reason, n := range c.refused {
		if n > before.refused[reason] {
			d.refused[reason] = n - before.refused[reason]
		}
	}
	return d
}

// awaitClassified waits until the module has classified the programs: connections opened earlier stay on TCP.
func (s *serving) awaitClassified(ctx context.Context) error {
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		before, err := s.kerb.counts()
		if err != nil {
			return err
		}
		if _, err := s.w.measure(ctx, s); err != nil {
			return err
		}
		after, err := s.kerb.counts()
		if err != nil || after.since(before).refused["unexamined"] == 0 {
			return err
		}
	}
	return nil
}

// countConnections adds the number of accelerated connections to the samples of a round, and reports why others were
// not accelerated.
func (s *serving) countConnections(round func() ([]bench.Sample, error)) ([]bench.Sample, error) {
	before, err := s.kerb.counts()
	if err != nil {
		return nil, err
	}
	samples, err := round()
	if err != nil {
		return nil, err
	}
	after, err := s.kerb.counts()
	d := after.since(before)
	for _, reason := range slices.Sorted(maps.Keys(d.refused)) {
		s.run.Progress("%s: %d connections with TCP: %s", s.config, d.refused[reason], reason)
	}
	return append(samples,
		bench.Sample{Metric: "offered", Stat: "sum", Unit: "connections", Value: float64(d.offered)},
		bench.Sample{Metric: "accelerated", Stat: "sum", Unit: "connections", Value: float64(d.accelerated)}), err
}

// noteExcluded notes which programs the module excludes.
func (c *contender) noteExcluded() error {
	var programs []struct{ Command, Verdict, Why string }
	if err := c.kerb.Get("/v1/modules/accelerator/executables", &programs); err != nil {
		return err
	}
	for _, p := range programs {
		if !strings.HasPrefix(p.Verdict, "safe") {
			c.run.Note("%s, %s: %s is %s: %s", c.config, c.where, p.Command, p.Verdict, p.Why)
		}
	}
	return nil
}
