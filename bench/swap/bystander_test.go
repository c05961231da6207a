// SPDX-License-Identifier: Apache-2.0

package swap

import (
	"bytes"
	"os"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/bench"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
)

const expeditedFile = "/sys/kernel/rcu_expedited"

// BenchmarkBystander measures the effect of attaching on other programs: the wakeup latency of a real-time thread that
// repeatedly sleeps for 100 us, while a program is attached and detached continuously, with and without expedited grace
// periods, and without changes. docs/operating.md has figures.
func BenchmarkBystander(b *testing.B) {
	if os.Geteuid() != 0 {
		b.Skip("needs root")
	}
	if err := bench.HaveTCX(); err != nil {
		b.Skip(err)
	}
	lab, err := netlab.NewIn("kbbys")
	if err != nil {
		b.Fatal(err)
	}
	defer lab.Close()
	service, err := lab.Host("service", netlab.HostOptions{})
	if err != nil {
		b.Fatal(err)
	}
	before, err := os.ReadFile(expeditedFile)
	if err != nil {
		b.Skip(err)
	}
	defer os.WriteFile(expeditedFile, bytes.TrimSpace(before), 0)
	b.Run("idle", func(b *testing.B) { report(b, lateness(b.N, nil)) })
	for name, value := range map[string]string{"expedited": "1", "normal": "0"} {
		b.Run(name, func(b *testing.B) {
			if err := os.WriteFile(expeditedFile, []byte(value), 0); err != nil {
				b.Skip(err)
			}
			rep, err := openReference(lab, service, true)
			if err != nil {
				b.Skip(err)
			}
			defer rep.Close()
			changes := 0
			begin := time.Now()
			late := lateness(b.N, func() {
				changes++
				if err := rep.Replace(uint32(changes)); err != nil {
					b.Error(err)
				}
			})
			b.ReportMetric(float64(changes)/time.Since(begin).Seconds(), "changes/s")
			report(b, late)
		})
	}
}

func report(b *testing.B, late []float64) {
	b.ReportMetric(bench.Median(late), "p50-us")
	b.ReportMetric(bench.Percentile(late, 99), "p99-us")
	b.ReportMetric(bench.Percentile(late, 99.9), "p99.9-us")
}

// lateness returns the delay of each of n wakeups in us, while change is called repeatedly.
func lateness(n int, change func()) []float64 {
	late, done := make([]float64, n), make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // the thread exits with the goroutine, since it is never unlocked
		_ = unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 50}, 0)
		const step = 100 * time.Microsecond
		for i := range late {
			begin, wanted := time.Now(), unix.NsecToTimespec(step.Nanoseconds())
			_ = unix.ClockNanosleep(unix.CLOCK_MONOTONIC, 0, &wanted, nil)
			late[i] = float64((time.Since(begin) - step).Nanoseconds()) / 1e3
		}
	}()
	for {
		select {
		case <-done:
			return late
		default:
		}
		if change == nil {
			<-done
			return late
		}
		change()
	}
}
