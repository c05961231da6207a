// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"io/fs"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Metrics of the whole machine during a round: softirqs and context switches of all programs and the kernel; in one
// additional round, the slowdown of a fixed compute job; and the fraction of CPU time that the hypervisor steals.
const (
	MemoryMetric    = "memory" // recorded by experiments, which know the programs
	softirqMetric   = "softirq"
	switchesMetric  = "switches"
	bystanderMetric = "bystander"
	stealMetric     = "steal"
)

// Costs are the metrics that most experiments record for each round, with labels.
var Costs = []struct{ Metric, Label, Unit string }{
	{MemoryMetric, "memory", "MiB"},
	{softirqMetric, "softirqs", "CPUs"},
	{switchesMetric, "context switches", "1/s"},
	{"waits", "voluntary switches", "1/s"},
	{"preempted", "involuntary switches", "1/s"},
	{bystanderMetric, "compute job", "of alone"},
	{powerMetric, "power of the processors", "W"},
}

// ticksPerSecond is USER_HZ, which is the same on all architectures that Go supports.
const ticksPerSecond = 100

// kernelCounts are counters of all CPUs since boot.
type kernelCounts struct {
	softirq  float64 // seconds, sampled at timer ticks
	switches float64
	times    cpuTimes
	energy   Energy
	at       time.Time
}

func readKernelCounts(root fs.FS) kernelCounts {
	c := kernelCounts{at: time.Now(), times: readCPUTimes(root)}
	c.energy, _ = ReadEnergy(root)
	for text := range strings.Lines(line(root, "proc/stat")) {
		switch f := strings.Fields(text); {
		case len(f) > 7 && f[0] == "cpu":
			ticks, _ := strconv.ParseFloat(f[7], 64)
			c.softirq = ticks / ticksPerSecond
		case len(f) == 2 && f[0] == "ctxt":
			c.switches, _ = strconv.ParseFloat(f[1], 64)
		}
	}
	return c
}

// since returns the figures of the interval from before to c.
func (c kernelCounts) since(before kernelCounts) []Sample {
	seconds := c.at.Sub(before.at).Seconds()
	samples := []Sample{P50(softirqMetric, "CPUs", (c.softirq-before.softirq)/seconds),
		P50(switchesMetric, "1/s", (c.switches-before.switches)/seconds),
		{stealMetric, "max", "%", c.times.stolen(before.times)}}
	if len(c.energy) > 0 {
		samples = append(samples, P50(powerMetric, "W", c.energy.Since(before.energy)/seconds))
	}
	return samples
}

// measureWithCosts measures a round with its costs on the whole machine. A trial without samples gets these costs only
// if it names a load for them.
func (t Trial) measureWithCosts(ctx context.Context) ([]Sample, error) {
	root := os.DirFS("/")
	before := readKernelCounts(root)
	samples, err := t.Measure(ctx)
	if err != nil || len(samples) == 0 && t.Load == "" {
		return nil, err
	}
	return append(samples, readKernelCounts(root).since(before)...), nil
}

// computeJob is a fixed computation on all CPUs at default priority, which runs until stop.
type computeJob struct {
	done    atomic.Uint64 // completed blocks
	began   time.Time
	stopped atomic.Bool
	threads sync.WaitGroup
}

func startComputeJob() (*computeJob, error) {
	cpus, err := CPUs()
	if err != nil {
		return nil, err
	}
	j := &computeJob{began: time.Now()}
	for _, cpu := range cpus {
		j.threads.Go(func() { j.compute(cpu) })
	}
	return j, nil
}

func (j *computeJob) compute(cpu int) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// The thread must not exit, since processes that it started would receive their Pdeathsig.
	var set, all unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err == nil {
		set.Set(cpu)
		_ = unix.SchedSetaffinity(0, &set) // otherwise the scheduler places it
		defer func() { _ = unix.SchedSetaffinity(0, &all) }()
	}
	block := make([]byte, 4096)
	for !j.stopped.Load() {
		sum := sha256.Sum256(block)
		copy(block, sum[:])
		j.done.Add(1)
	}
}

// stop ends the job and returns its speed.
func (j *computeJob) stop() (perSecond float64) {
	seconds := time.Since(j.began).Seconds()
	done := j.done.Load()
	j.stopped.Store(true)
	j.threads.Wait()
	return float64(done) / seconds
}

const baselineTime = time.Second

// measureBystanders measures one additional round of each trial next to the job. It records only the job's speed, since
// the computeJob affects the other results.
func (r *Run) measureBystanders(ctx context.Context, load string, trials []Trial) error {
	j, err := startComputeJob()
	if err != nil {
		return err
	}
	time.Sleep(baselineTime)
	alone := j.stop()
	for _, t := range trials {
		r.Progress("%s next to a compute job, %s", load, t.Config)
		j, err := startComputeJob()
		if err != nil {
			return err
		}
		own := r.report
		r.report = &Report{}
		_, err = t.Measure(ctx)
		r.report = own
		speed := j.stop()
		if err != nil && ctx.Err() == nil {
			r.Note("%s, %s: not measured next to a compute job: %v", load, t.Config, err)
			continue
		}
		if err != nil {
			return errors.Join(err, ctx.Err())
		}
		r.Record(t.Config, cmp.Or(t.Load, load), P50(bystanderMetric, "of alone", speed/alone))
	}
	r.Note("%s is the speed of a fixed job (SHA-256 on all CPUs, default priority) during a round, as a fraction of its "+
		"speed on an idle machine", bystanderMetric)
	return nil
}
