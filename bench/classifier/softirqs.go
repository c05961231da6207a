// SPDX-License-Identifier: Apache-2.0

package classifier

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/kerb-edge/kerb/bench"
	"github.com/kerb-edge/kerb/internal/lab/traffic"
)

// sampleEvery is the time between two samples of the CPU time in softirqs, which the kernel counts in ticks.
const sampleEvery = 500 * time.Millisecond

// steady is the rate of all configs, as a fraction of the lowest loss-free rate.
const steady = 0.9

// softirqs samples, during a round, the fraction of CPU time in softirqs (the receive path with the chain) on the CPU
// that sends, evaluates and receives. All configs get frames at the same rate, one after the other, with a window's
// model.
func (e *experiment) softirqs(ctx context.Context, load, window string) error {
	d, err := liveModel("rpl-hello-" + window)
	if err != nil {
		return err
	}
	configs := e.configs()
	if len(configs) == 0 {
		return nil
	}
	e.wasLive = true
	return e.withBorders(configs, func(config string) (*border, error) {
		return openBorder(config, window, "window", d)
	}, func(borders []*border) error {
		for round := range e.run.Rounds {
			e.run.Progress("%s round %d/%d %s one after the other", load, round+1, e.run.Rounds, strings.Join(configs, ", "))
			if err := e.softirqRound(ctx, load, borders, round); err != nil {
				return err
			}
		}
		return nil
	})
}

func (e *experiment) softirqRound(ctx context.Context, load string, borders []*border, round int) error {
	flows := make([]flow, len(borders))
	err := traffic.RunOnCPU(0, func() error {
		return interleave(ctx, borders, flows, lengths{20 * time.Millisecond, 500 * time.Millisecond})
	})
	if err != nil {
		return err
	}
	rate := flows[0].rate()
	for i := range flows {
		rate = min(rate, flows[i].rate())
	}
	if rate *= steady; rate == 0 {
		return errors.New("there was loss at every rate")
	}
	for i := range borders {
		b := borders[(i+round)%len(borders)] // the first config alternates
		var f flow
		var shares []float64
		err := traffic.RunOnCPU(0, func() (err error) {
			shares, err = b.sendSteadily(ctx, rate, e.softirqLength(), &f)
			return err
		})
		if err != nil {
			return fmt.Errorf("%s: %w", b.config, err)
		}
		if f.lost > 0 {
			e.run.Invalidate("%s, %s: %d of %d frames were lost", load, b.config, f.lost, f.sent)
		}
		e.run.Keep(b.config, load, "softirq_share", "% of the CPU", shares)
		e.run.Record(b.config, load, bench.P50("softirq_share", "% of the CPU", bench.Mean(shares)),
			bench.P50("rate", "1/s", f.rates[0]), bench.Count("lost", f.lost))
	}
	return nil
}

func (e *experiment) softirqLength() time.Duration {
	if e.run.Quick {
		return 2 * sampleEvery
	}
	return max(4*sampleEvery, time.Duration(float64(publishedRound)*e.run.Scale))
}

// sendSteadily sends batches at a rate of frames, and samples the CPU. It busy-waits, which is no softirq time.
func (b *border) sendSteadily(ctx context.Context, rate float64, length time.Duration,
	f *flow) (shares []float64, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before, err := softirqTime(0)
	if err != nil {
		return nil, err
	}
	begin := time.Now()
	at := begin
	for at.Sub(begin) < length {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		for next := at.Add(sampleEvery); time.Now().Before(next); {
			if due := begin.Add(time.Duration(float64(f.sent) / rate * 1e9)); time.Now().Before(due) {
				continue
			}
			n, received, err := b.batch()
			if err != nil {
				return nil, err
			}
			f.sent += n
			f.lost += n - min(n, received)
		}
		now, err := softirqTime(0)
		if err != nil {
			return nil, err
		}
		took := time.Since(at)
		shares = append(shares, 100*(now-before).Seconds()/took.Seconds())
		at, before = at.Add(took), now
	}
	f.rates = []float64{float64(f.sent) / at.Sub(begin).Seconds()}
	return shares, nil
}

// softirqTime returns the time that a CPU has spent in softirqs since boot.
func softirqTime(cpu int) (time.Duration, error) {
	const userHz, column = 100, 7 // proc(5)
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > column && f[0] == "cpu"+strconv.Itoa(cpu) {
			ticks, err := strconv.ParseInt(f[column], 10, 64)
			return time.Duration(ticks) * time.Second / userHz, err
		}
	}
	return 0, fmt.Errorf("/proc/stat has no CPU %d", cpu)
}
