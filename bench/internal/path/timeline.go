// SPDX-License-Identifier: Apache-2.0

package path

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"syscall"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/bench"
	"github.com/kerb-edge/kerb/internal/lab/node"
)

// The timeline of Riegel 2024: three phases of equal length, before, during and after a stream of 100 Mbit/s, with a
// sample of CPU and memory every half second.
const (
	publishedPhase  = 15 * time.Second
	samplesPerPhase = 30
	minPhase        = 2 * time.Second // iperf3 accepts whole seconds, and takes a fraction of one to start and end
)

var phaseNames = []string{"idle", "load", "after"}

// timelines measures one config after the other, since the agents of other configs would wake up CPUs.
func timelines(ctx context.Context, r *bench.Run, load string, ways []openConfig) error {
	phase := minPhase
	if r.Scale > 0 {
		phase = max(phase, time.Duration(r.Scale*float64(publishedPhase)).Round(time.Second))
	}
	for _, w := range ways {
		r.Progress("%s: %v, %s", load, 3*phase, w.config)
		t, err := w.path.timeline(ctx, phase)
		if err != nil {
			return fmt.Errorf("%s: %w", w.config, err)
		}
		r.Keep(w.config, load, "cpu_time", "% of a CPU", t.cpu)
		r.Keep(w.config, load, "memory_time", "MiB", t.memory)
		r.Record(w.config, load, t.samples()...)
	}
	return nil
}

// timeline has a value per sample.
type timeline struct{ cpu, memory []float64 }

// samples returns the medians of the phases, without the first third of each, in which processes start and end.
func (t timeline) samples() (all []bench.Sample) {
	for i, name := range phaseNames {
		from, to := i*samplesPerPhase+samplesPerPhase/3, (i+1)*samplesPerPhase
		all = append(all, bench.P50("cpu_"+name, "%", bench.Median(t.cpu[from:to])),
			bench.P50("memory_"+name, "MiB", bench.Median(t.memory[from:to])))
	}
	return all
}

func (p *Path) timeline(ctx context.Context, phase time.Duration) (t timeline, err error) {
	ticker := time.NewTicker(phase / samplesPerPhase)
	defer ticker.Stop()
	begin, before := time.Now(), time.Duration(0)
	if before, err = p.usage().CPU(); err != nil {
		return t, err
	}
	wait := func() error { return nil }
	var tables int64
	for i := range len(phaseNames) * samplesPerPhase {
		if i%samplesPerPhase == 0 { // rarely: a request makes the agent measure all maps
			if tables, err = p.usage().Tables(); err != nil {
				return t, errors.Join(err, wait())
			}
		}
		if i == samplesPerPhase {
			if wait, err = p.steady(ctx, phase); err != nil {
				return t, err
			}
		}
		select {
		case <-ctx.Done():
			return t, errors.Join(ctx.Err(), wait())
		case <-ticker.C:
		}
		now, err1 := p.usage().CPU()
		bytes, err2 := p.usage().Memory()
		if err := errors.Join(err1, err2); err != nil {
			return t, errors.Join(err, wait())
		}
		end := time.Now()
		t.cpu = append(t.cpu, 100*(now-before).Seconds()/end.Sub(begin).Seconds())
		t.memory = append(t.memory, float64(bytes+tables)/(1<<20))
		begin, before = end, now
	}
	return t, wait()
}

// steady starts a stream of 100 Mbit/s and returns a function that waits for its end.
func (p *Path) steady(ctx context.Context, length time.Duration) (wait func() error, err error) {
	var out bytes.Buffer
	cmd := p.command(ctx, "-b", "100M", "-t", strconv.Itoa(int(length.Seconds())))
	cmd.Stdout = &out
	return func() error {
		err := cmd.Wait()
		_, err = parse(out.Bytes(), err)
		return err
	}, cmd.Start()
}

// Usage is the resource use of the measured programs and Kerb's agents. Without a group, CPU covers the agents only.
type Usage struct {
	Group  *Group
	Agents []*node.Node
	PIDs   []int // of programs outside the group
}

// CPU returns the CPU time used so far.
func (u Usage) CPU() (time.Duration, error) {
	var sum time.Duration
	var err error
	if u.Group != nil {
		sum, err = u.Group.CPU()
	}
	for _, a := range u.Agents {
		used, wrong := a.CPU()
		sum, err = sum+used, errors.Join(err, wrong)
	}
	return sum, err
}

// Tables returns the kernel memory of the maps of Kerb's modules in bytes: that of empty maps, and of entries.
func (u Usage) Tables() (sum int64, err error) {
	for _, a := range u.Agents {
		var modules []v1.Module
		if err := a.Get("/v1/modules", &modules); err != nil {
			return 0, err
		}
		for _, m := range modules {
			sum += m.Status.Memory
		}
	}
	return sum, nil
}

// MemorySample returns the memory of all programs and of the maps of Kerb's modules.
func (u Usage) MemorySample() (bench.Sample, error) {
	bytes, err := u.Memory()
	tables, err2 := u.Tables()
	return bench.P50(bench.MemoryMetric, "MiB", float64(bytes+tables)/(1<<20)), errors.Join(err, err2)
}

// Memory returns the proportional set size of all of them, in bytes.
func (u Usage) Memory() (sum int64, err error) {
	pids := slices.Clone(u.PIDs)
	if u.Group != nil {
		own, err := u.Group.Processes()
		if err != nil {
			return 0, err
		}
		pids = append(pids, own...)
	}
	for _, a := range u.Agents {
		planes, err := node.Descendants(a.PID())
		if err != nil {
			return 0, err
		}
		pids = append(append(pids, a.PID()), planes...)
	}
	for _, pid := range pids {
		bytes, err := node.Proportional(pid)
		if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, syscall.ESRCH) { // it has exited
			return 0, err
		}
		sum += bytes
	}
	return sum, nil
}
