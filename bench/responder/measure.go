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

// lengths are how long one round measures.
type lengths struct {
	ask, offer, cost time.Duration
	alongside        time.Duration // of requests next to others
	follow           time.Duration // of set-points
	cars             time.Duration
	bisections       int
	tries            int // of a rate at which a little was lost
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

// What a request costs is measured at a rate that the slowest config answers with ease.
const (
	costRate  = 40_000.0
	costBatch = 8 // COST_BATCH of the client
)

func flowsAtCostRate(flows int) (int, float64) { return flows, costRate }

// The rates between which the largest without loss is looked for.
const (
	lowestRate  = 20_000.0
	highestRate = 2_000_000.0
)

// Requests on each thread of the published experiment, and of the one until the first loss.
const (
	publishedRequests = 10_000
	publishedLongest  = 15 * time.Second // of one round: a machine that is busy takes minutes
	lossRequests      = 100
	lossStep          = 20 // threads
	lossPause         = time.Second
)

// published is how many requests there are on each thread, and how long a round takes at most. Where the published
// experiments are repeated nothing but an answer that never comes ends one early.
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

// measureThreads is the third published experiment: response times by threads.
func (e *experiment) measureThreads(c *contender, threads int) ([]bench.Sample, error) {
	requests, _ := e.published(0)
	return e.measureRequests(c, threads, requests)
}

// measureTimes has threads ask for a time.
func (e *experiment) measureTimes(c *contender, threads int) ([]bench.Sample, error) {
	return e.measureRequests(c, threads, 0)
}

// measureRequests has each thread make so many requests, 0: as many as it can in a time.
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

// measureCurve makes cars leave after they arrive, so that the number in range is one for which the limit has to be
// computed. In the other loads cars stay, and their number soon exceeds the range of the curve.
func (e *experiment) measureCurve(c *contender, threads int) (samples []bench.Sample, err error) {
	var a clientReport
	err = c.serving(c.variant, func() (err error) { a, err = e.ask(c, "ask", threads, 0); return err })
	if c.config != "mixed" && a.Curved != a.Answered { // whose limit may be a moment old
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

// threadMeans is the metric of Weinhold 2023 (tables 5.4 and 5.5): a request's time is its thread's, divided by the
// thread's requests, and statistics are over threads. It contains what the client does between an answer and the next
// request, and its threads' waits for a CPU.
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

// measurePublished is the first published experiment, with the quartiles of its box plots.
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

// ask voids the run if an answer is wrong or missing: no more requests are under way than there are threads.
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

// measureUntilLoss is the second: the largest number of threads at which each gets all its answers.
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

// measureOffered sends at a rate, and reports how much of it is lost.
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

// lossfreeRate finds the loss-free rate by bisection on a logarithmic scale. It uses the rate that the client actually
// reached.
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
		if lost || reached < 0.9*rate { // the client could not do more, for now or at all
			high = rate
		} else {
			low = rate
		}
	}
	return best, nil
}

// offer gives a rate another chance if less than a tenth was lost: neighbours on the machine may have stopped the
// server.
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

// measureTCP asks twice: for the times, and for the cost, since what looks for idle time keeps the CPUs awake. The cost
// is all that was taken of the CPUs, by others of the machine too: kernel threads do a part of the work.
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

// halfCloses are connections whose only request is followed by shutdown: what a client may do, and a server has to
// answer.
const halfCloses = 20
