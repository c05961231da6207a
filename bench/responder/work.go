// SPDX-License-Identifier: Apache-2.0

package responder

import (
	"os"
	"slices"
	"strconv"

	"github.com/kerb-edge/kerb/bench"
)

// Requests for computation: work/N requests N steps, each of about stepTime.
const (
	workThreads = 120 // as published
	workFlows   = 16
	stepTime    = 2.5e-9 // s
	requestTime = 10e-6  // s, of the slowest server without computation
	workShare   = 0.3    // of a CPU, for measurements of cost and bystanders
)

// workRate returns a rate below the capacity of every config.
func workRate(steps int) float64 { return workShare / (requestTime + stepTime*float64(steps)) }

// measureWork measures the time of a single request, the published metric with many threads and its bottleneck, the CPU
// time of a request, and the effect on requests to another server on the same CPU.
func (e *experiment) measureWork(c *contender, steps int) ([]bench.Sample, error) {
	c.steps = steps
	var one, many, offered clientReport
	var cpu float64
	rate := workRate(steps)
	err := c.serving(c.variant, func() (err error) {
		if one, err = e.ask(c, "ask", 1, 0); err == nil {
			many, err = e.ask(c, "ask", workThreads, 0)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	err = c.serving(c.sleeping(), func() (err error) {
		if cpu, err = e.cost(c, workFlows, rate); err != nil {
			return err
		}
		return c.alongside("plain", func() (err error) { offered, err = e.offerAlongside(c, rate, c.port()+1); return err })
	})
	if err != nil {
		return nil, err
	}
	if offered.lost() > 0 {
		e.run.Note("work/%d, %s: %d of %d requests were lost at %d/s", steps, c.config, offered.lost(), offered.Sent,
			int(rate))
	}
	return slices.Concat(one.Samples("rtt", "p50", "p99"), []bench.Sample{bench.P50("rate", "1/s", many.rate())},
		threadMeans(many), many.busy.samples(), []bench.Sample{bench.P50("cpu", "us per request", cpu-e.alone)},
		offered.bystanderSamples("bystander_rtt", "bystander_lost")), nil
}

// offerAlongside sends requests at a rate, and 1,000 requests/s for the speed limit to a port.
func (e *experiment) offerAlongside(c *contender, rate float64, port int) (clientReport, error) {
	a, err := c.client("alongside", workFlows, e.lengths.alongside, rate, strconv.Itoa(port))
	e.check(c, a)
	return a, err
}

func (a clientReport) bystanderSamples(times, lost string) []bench.Sample {
	missing := a.BystanderSent - min(a.BystanderSent, a.BystanderAnswered)
	return append(a.Samples(times, "p50", "p99"),
		bench.P50(lost, "%", 100*float64(missing)/float64(max(1, a.BystanderSent))))
}

// Requests of low priority have any rate, those of high priority 1,000 per second.
var priorityConfigs = []string{"user", "user-priority", "kernel", "kernel-limited"}

// lowRate is the limit of kernel-limited for requests of low priority per second.
const lowRate = 20_000

// measurePriority measures requests of high priority at a rate of low-priority requests. In configs with priorities,
// the former use the next port: a server with real-time priority, or a listener without the rate limit.
func (e *experiment) measurePriority(c *contender, low int) ([]bench.Sample, error) {
	var a clientReport
	port := c.port()
	measure := func() (err error) { a, err = e.offerAlongside(c, float64(low), port); return err }
	if c.config == "user-priority" || c.config == "kernel-limited" {
		port++
	}
	err := c.serving(c.sleeping(), func() error {
		if c.config == "user-priority" {
			return c.alongside("fifo", measure)
		}
		return measure()
	})
	if err != nil {
		return nil, err
	}
	return append(a.bystanderSamples("high_rtt", "high_lost"), bench.P50("low_sent", "1/s", float64(a.Sent)/a.Seconds),
		bench.P50("low_answered", "1/s", a.rate())), nil
}

// measureEnergy measures the energy of the processors at a rate of requests, without a spinning program.
func (e *experiment) measureEnergy(c *contender, rate int) ([]bench.Sample, error) {
	var a clientReport
	var joules float64
	err := c.serving(c.sleeping(), func() (err error) {
		before, _ := bench.ReadEnergy(os.DirFS("/"))
		a, err = e.offerAlongside(c, float64(rate), 0)
		after, _ := bench.ReadEnergy(os.DirFS("/"))
		joules = after.Since(before)
		return err
	})
	return []bench.Sample{bench.P50("energy", "J per million requests", joules*1e6/float64(max(1, a.Answered)))}, err
}
