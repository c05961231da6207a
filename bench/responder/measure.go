// SPDX-License-Identifier: Apache-2.0

package responder

import (
	"fmt"
	"math"
	"os"
	"slices"
	"time"

	"github.com/kerb-edge/kerb/bench"
)

// lengths are the durations of one round.
type lengths struct {
	ask, offer, cost time.Duration
	alongside        time.Duration // of requests alongside others
	follow           time.Duration // of set-points
	cars             time.Duration
	bisections       int
	tries            int // attempts of a rate with little loss
}

func lengthsOf(quick bool) lengths {
	if quick {
		return lengths{ask: 60 * time.Millisecond, offer: 30 * time.Millisecond, cost: 50 * time.Millisecond,
			alongside: 100 * time.Millisecond, follow: 400 * time.Millisecond, cars: 100 * time.Millisecond, bisections: 3,
			tries: 1}
	}
	return lengths{ask: 300 * time.Millisecond, offer: 100 * time.Millisecond, cost: 200 * time.Millisecond,
		alongside: time.Second, follow: time.Second, cars: 2 * time.Second, bisections: 5, tries: 2}
}

// The cost of a request is measured at a rate below the capacity of the slowest config.
const (
	costRate  = 40_000.0
	costBatch = 8 // COST_BATCH of the client
)

func flowsAtCostRate(flows int) (int, float64) { return flows, costRate }

// Bounds of the search for the loss-free rate.
const (
	lowestRate  = 20_000.0
	highestRate = 2_000_000.0
)

// Requests per thread of the published experiment, and of the one until the first loss.
const (
	publishedRequests = 10_000
	publishedLongest  = 15 * time.Second // of one round; a busy machine would take minutes
	lossRequests      = 100
	lossStep          = 20 // threads
	lossPause         = time.Second
)

// published returns the requests per thread, and the maximum duration of a round. In repetitions of the published
// experiments, only missing answers end a round early.
func (e *experiment) published(otherwise int) (requests int, longest time.Duration) {
	if e.run.Scale == 0 {
		return otherwise, publishedLongest
	}
	return max(1, int(publishedRequests*e.run.Scale)), 10 * time.Minute
}

// measureAll measures one load: response times with n threads that wait for their replies, the request rate of n flows,
// and the cost of a request, which is measured with a server that sleeps, since spinning would be included.
func (e *experiment) measureAll(c *contender, n int) (samples []bench.Sample, err error) {
	var lossfree, cpu float64
	err = c.serving(c.variant, func() (err error) {
		if samples, err = e.times(c, n); err == nil {
			lossfree, err = e.lossfreeRate(c, n)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	err = c.serving(c.sleeping(), func() (err error) { cpu, err = e.cost(c, n, costRate); return err })
	return append(samples,
		bench.P50("lossfree_rate", "1/s", lossfree),
		bench.P50("cpu", "us per request", cpu-e.alone)), err
}

// measureThreads repeats the third published experiment: response times by threads.
func (e *experiment) measureThreads(c *contender, threads int) ([]bench.Sample, error) {
	requests, _ := e.published(0)
	return e.measureRequests(c, threads, requests)
}

// measureTimes measures response times for a duration.
func (e *experiment) measureTimes(c *contender, threads int) ([]bench.Sample, error) {
	return e.measureRequests(c, threads, 0)
}

// measureRequests measures a number of requests per thread, or if it is 0, as many as fit into the duration.
func (e *experiment) measureRequests(c *contender, threads, requests int) (samples []bench.Sample, err error) {
	err = c.serving(c.variant, func() error {
		a, err := e.ask(c, "ask", threads, requests)
		if err != nil {
			return err
		}
		memory, err := c.memory()
		samples = slices.Concat(rtt(a), threadMeans(a), a.busy.samples(), []bench.Sample{memory})
		return err
	})
	return samples, err
}

// measureCurve makes cars leave after they arrive, so that the limit for the number in range must be computed. In other
// loads cars stay, and their number soon exceeds the range of the curve.
func (e *experiment) measureCurve(c *contender, threads int) (samples []bench.Sample, err error) {
	var a clientReport
	err = c.serving(c.variant, func() (err error) { a, err = e.ask(c, "ask", threads, 0); return err })
	if c.config != "mixed" && a.Curved != a.Answered { // its limit may be outdated
		e.run.Invalidate("%s: %d of %d limits are not on the curve", c.config, a.Answered-a.Curved, a.Answered)
	}
	return rtt(a), err
}

// times makes each thread send the next request as soon as it has a reply.
func (e *experiment) times(c *contender, threads int) ([]bench.Sample, error) {
	a, err := e.ask(c, "ask", threads, 0)
	return rtt(a), err
}

func rtt(a clientReport) []bench.Sample {
	return append(a.Samples("rtt", "p50", "p99", "p99.9", "stddev"), bench.P50("rate", "1/s", a.rate()))
}

// threadMeans returns the metric of Weinhold 2023 (tables 5.4 and 5.5): the time of a request is that of its thread
// divided by the thread's requests, with statistics over threads. It includes the client's work between an answer and
// the next request, and the time that threads wait for a CPU.
func threadMeans(a clientReport) []bench.Sample {
	if len(a.ThreadMeans) == 0 {
		return nil
	}
	var all []bench.Sample
	for _, s := range []struct {
		stat string
		of   func([]float64) float64
	}{{"p50", bench.Median}, {"mean", bench.Mean}, {"stddev", bench.Stddev}, {"min", slices.Min[[]float64]},
		{"max", slices.Max[[]float64]}} {
		all = append(all, bench.Sample{Metric: "thread_mean", Stat: s.stat, Unit: "us", Value: s.of(a.ThreadMeans)})
	}
	return all
}

// measurePublished repeats the first published experiment, with the quartiles of its box plots.
func (e *experiment) measurePublished(c *contender, threads int) ([]bench.Sample, error) {
	var a clientReport
	var memory bench.Sample
	requests, longest := e.published(publishedRequests)
	err := c.serving(c.variant, func() (err error) {
		if a, err = e.ask(c, "ask", threads, requests); err == nil {
			memory, err = c.memory()
		}
		return err
	})
	if want := uint64(threads * requests); err == nil && a.Sent < want {
		e.run.Note("published/%d, %s: fewer than %d requests, as the round was stopped after %v", threads, c.config, want,
			longest)
	}
	if e.run.Scale > 0 {
		e.run.Keep(c.config, fmt.Sprintf("published/%d", threads), "thread_mean", "us", a.ThreadMeans)
	}
	return slices.Concat(rtt(a), threadMeans(a), a.busy.samples(), a.Samples("rtt", "p1", "p25", "p75"),
		[]bench.Sample{memory}), err
}

// ask runs the client in a closed loop, and invalidates the run if an answer is wrong or missing: each thread has one
// outstanding request.
func (e *experiment) ask(c *contender, mode string, threads, requests int) (clientReport, error) {
	length := e.lengths.ask
	if requests > 0 {
		_, length = e.published(0)
	}
	before := readCPUs(os.DirFS("/"))
	a, err := c.client(mode, threads, length, float64(requests))
	if e.remote == nil {
		a.busy = e.tools.busySince(before, readCPUs(os.DirFS("/")))
	}
	e.check(c, a)
	if a.lost() > 0 {
		e.run.Invalidate("%s: %d of %d requests were lost, with %d threads that each wait for a reply before the next "+
			"request", c.config, a.lost(), a.Sent, threads)
	}
	return a, err
}

func (e *experiment) check(c *contender, a clientReport) {
	if a.Wrong > 0 {
		e.run.Invalidate("%s: %d of %d replies were wrong", c.config, a.Wrong, a.Answered)
	}
	if a.Answered > a.Sent {
		e.run.Invalidate("%s: %d requests, but %d replies", c.config, a.Sent, a.Answered)
	}
}

// measureUntilLoss repeats the second published experiment: the largest number of threads that all get all answers.
func (e *experiment) measureUntilLoss(c *contender, most int) ([]bench.Sample, error) {
	good := 0
	err := c.serving(c.variant, func() error {
		requests, longest := e.published(lossRequests)
		step := lossStep
		if e.run.Scale == 1 {
			step = 1
		}
		for threads := step; threads <= most; threads += step {
			time.Sleep(time.Duration(e.run.Scale * float64(lossPause)))
			a, err := c.client("ask", threads, longest, float64(requests))
			e.check(c, a)
			if err != nil || a.lost() > 0 {
				return err
			}
			good = threads
		}
		return nil
	})
	return []bench.Sample{bench.P50("lossfree_threads", "count", float64(good))}, err
}

// measureOffered sends at a rate, and reports the loss.
func (e *experiment) measureOffered(c *contender, rate int) ([]bench.Sample, error) {
	var a clientReport
	err := c.serving(c.variant, func() (err error) {
		a, err = c.client("offer", offeredFlows, e.lengths.offer, float64(rate))
		return err
	})
	e.check(c, a)
	if reached := float64(a.Sent) / a.Seconds; reached < 0.95*float64(rate) {
		e.run.Note("offered/%d: the client could not send at this rate", rate)
	}
	return []bench.Sample{
		bench.P50("lost", "%", 100*float64(a.lost())/float64(a.Sent)),
		bench.P50("answered", "1/s", a.rate()),
	}, err
}

const offeredFlows = 16

// lossfreeRate finds the loss-free rate by bisection on a logarithmic scale, with the rates that the client reached.
func (e *experiment) lossfreeRate(c *contender, flows int) (best float64, err error) {
	low, high := lowestRate, highestRate
	defer func() {
		if best == 0 && err == nil {
			e.run.Note("%s: a loss-free rate of 0 means loss at %d requests/s, the lowest rate tried",
				c.config, int(high))
		}
	}()
	for range e.lengths.bisections {
		rate := math.Sqrt(low * high)
		reached, lost, err := e.offer(c, flows, rate)
		if err != nil {
			return 0, err
		}
		best = max(best, reached)
		if lost || reached < 0.9*rate { // the client's limit, temporary or permanent
			high = rate
		} else {
			low = rate
		}
	}
	return best, nil
}

// offer retries a rate if less than a tenth was lost, since other virtual machines may have stopped the server.
func (e *experiment) offer(c *contender, flows int, rate float64) (reached float64, lost bool, err error) {
	for range e.lengths.tries {
		a, err := c.client("offer", flows, e.lengths.offer, rate)
		if err != nil {
			return 0, false, err
		}
		e.check(c, a)
		if a.lost() == 0 {
			return float64(a.Sent) / a.Seconds, false, nil
		}
		if a.lost() > a.Sent/10 {
			break
		}
	}
	return 0, true, nil
}

// cost returns the CPU time of a request on all CPUs, in us.
func (e *experiment) cost(c *contender, flows int, rate float64) (us float64, err error) {
	a, err := c.client("cost", flows, e.lengths.cost, rate)
	e.check(c, a)
	return a.Spent * 1e6 / float64(a.Sent), err
}

// measureTCP measures times and cost separately, since the probes of idle time keep the CPUs awake. The cost is all
// used CPU time, including that of other tasks, since kernel threads do part of the work.
func (e *experiment) measureTCP(c *contender, connections int) ([]bench.Sample, error) {
	samples, err := e.measureTimes(c, connections)
	if err != nil {
		return nil, err
	}
	var strained, parted clientReport
	err = c.serving(c.sleeping(), func() (err error) {
		if strained, err = e.ask(c, "strain", connections, 0); err == nil {
			parted, err = c.client("part", halfCloses, 0, 0)
		}
		return err
	})
	return append(samples,
		bench.P50("cpu", "us per request", strained.Taken*1e6/float64(strained.Answered)),
		bench.P50("answered_at_parting", "%", 100*float64(parted.Answered)/halfCloses)), err
}

// halfCloses is the number of connections whose only request is followed by shutdown(SHUT_WR), which a server must
// still answer.
const halfCloses = 20
