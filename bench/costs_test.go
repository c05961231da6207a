// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/fstest"
	"time"
)

func TestKernelCounts(t *testing.T) {
	at := func(softirq, steal, switches string) kernelCounts {
		return readKernelCounts(fstest.MapFS{"proc/stat": {Data: []byte("cpu  1 2 3 4 5 6 " + softirq + " " + steal +
			" 9 10\ncpu0 1 2 3 4 5 6 999999 8 9 10\nintr 5 6\nctxt " + switches + "\nbtime 7\n")}})
	}
	before, after := at("100", "8", "1000"), at("150", "58", "4000")
	after.at = before.at.Add(2 * time.Second)
	got := after.since(before)
	if len(got) != 3 || got[0] != P50("softirq", "CPUs", 0.25) || got[1] != P50("switches", "1/s", 1500) ||
		got[2] != (Sample{"steal", "max", "%", 50}) {
		t.Errorf("%+v", got)
	}
}

// The steal time is recorded per round, in the order of the other metrics. A note gives the number of rounds with more
// than 1%.
func TestStealOfRounds(t *testing.T) {
	withExperiment(t, Experiment{Name: "toy", Loads: []string{"x"}, Run: func(ctx context.Context, run *Run) error {
		for _, steal := range []float64{0, 1, 1.5, 0, 30} {
			run.Record("a", "x", P50("time", "ns", 42), Sample{"steal", "max", "%", steal})
		}
		run.Record("b", "x", Sample{"steal", "max", "%", 0})
		return nil
	}})
	out, err := runCommand("toy")
	if err != nil || !strings.Contains(out, "in 2 of 6 rounds the hypervisor stole more than 1%") {
		t.Errorf("%v\n%s", err, out)
	}
	r := testRun(Experiment{Name: "x"}, 5)
	if err := r.Interleave(t.Context(), "l", Trial{Config: "c", Measure: func(context.Context) ([]Sample, error) {
		return []Sample{P50("time", "ns", 1)}, nil
	}}); err != nil {
		t.Fatal(err)
	}
	if c, ok := r.Report().Find("c", "l", "steal", "max"); !ok || len(c.Rounds) != 5 {
		t.Errorf("%+v", c)
	}
}

// A trial that records its samples itself has its costs, including the speed of the compute job, under its own load.
func TestCostsOfOwnLoads(t *testing.T) {
	r := testRun(Experiment{Name: "x", Loads: []string{"l"}}, 5)
	r.Bystander = true
	silent := func(context.Context) ([]Sample, error) {
		time.Sleep(10 * time.Millisecond) // in which the job runs
		return nil, nil
	}
	if err := r.Interleave(t.Context(), "l", Trial{Config: "c", Load: "all/l", Measure: silent},
		Trial{Config: "none", Measure: silent}); err != nil {
		t.Fatal(err)
	}
	for metric, rounds := range map[string]int{"softirq": 5, "switches": 5, "bystander": 1} {
		if c, ok := r.Report().Find("c", "all/l", metric, "p50"); !ok || len(c.Rounds) != rounds {
			t.Errorf("%s: %+v", metric, c)
		}
	}
	for _, c := range r.Report().Cells {
		if c.Load == "l" && (c.Config != "none" || c.Metric != "bystander") {
			t.Errorf("recorded as of the whole load: %+v", c)
		}
	}
}

// An additional round reports the slowdown of a compute job; its own results, notes and invalidations are discarded.
func TestBystander(t *testing.T) {
	r := testRun(Experiment{Name: "x", Loads: []string{"l"}}, 5)
	r.Bystander = true
	rounds := 0
	err := r.Interleave(t.Context(), "l", Trial{Config: "c", Measure: func(context.Context) ([]Sample, error) {
		if rounds++; rounds > 5 {
			r.Invalidate("disturbed")
		}
		time.Sleep(10 * time.Millisecond) // in which the job runs
		return []Sample{P50("time", "ns", 1)}, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	own, _ := r.Report().Find("c", "l", "time", "p50")
	beside, _ := r.Report().Find("c", "l", "bystander", "p50")
	if rounds != 6 || len(own.Rounds) != 5 || len(beside.Rounds) != 1 || !(beside.Value > 0) || r.Report().Err() != nil {
		t.Errorf("%d rounds: %+v, %+v, %v", rounds, own, beside, r.Report().Err())
	}
	for _, metric := range []string{"softirq", "switches"} {
		if c, ok := r.Report().Find("c", "l", metric, "p50"); !ok || len(c.Rounds) != 5 {
			t.Errorf("%s: %+v", metric, c)
		}
	}
}

// A process receives its Pdeathsig when the thread that started it exits. A job whose threads exited killed the servers
// of other configs, and a client without a server did not exit.
func TestJobSparesChildren(t *testing.T) {
	children := make([]*exec.Cmd, 16)
	var started sync.WaitGroup
	for i := range children {
		children[i] = exec.CommandContext(t.Context(), "sleep", "60")
		children[i].SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		started.Go(func() {
			if err := children[i].Start(); err != nil {
				t.Error(err)
			}
		})
	}
	started.Wait()
	for range 20 {
		j, err := startComputeJob()
		if err != nil {
			t.Fatal(err)
		}
		j.stop()
	}
	for _, child := range children {
		if pid, err := syscall.Wait4(child.Process.Pid, nil, syscall.WNOHANG, nil); err != nil || pid != 0 {
			t.Errorf("a child has ended: %d, %v", pid, err)
		}
	}
}
