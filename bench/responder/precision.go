// SPDX-License-Identifier: Apache-2.0

package responder

import (
	"github.com/kerb-edge/kerb/bench"
)

// precisionConfigs compute the limit for each request, after an interval, or after each change.
var precisionConfigs = []string{"user", "kernel", "mixed", "mixed-100ms", "mixed-10ms", "mixed-change"}

// measurePrecision generates arrivals and departures at a rate, with 65 cars in range on average, and compares each
// answer with the current limit. The age of an answer is the time since it was the current limit.
func (e *experiment) measurePrecision(c *contender, arrivals int) ([]bench.Sample, error) {
	var a clientReport
	c.rounds++
	err := c.serving(c.variant, func() (err error) {
		a, err = c.client("cars", c.rounds, e.lengths.cars, float64(arrivals))
		return err
	})
	e.check(c, a)
	if a.lost() > 0 || a.Answered == 0 {
		e.run.Invalidate("precision/%d, %s: %d of %d cars got no reply", arrivals, c.config, a.lost(), a.Sent)
	}
	if (c.config == "user" || c.config == "kernel") && a.Off > 0 {
		e.run.Invalidate("precision/%d, %s: %d of %d limits do not match the number of cars in range", arrivals, c.config,
			a.Off, a.Answered)
	}
	return []bench.Sample{
		bench.P50("off", "%", 100*float64(a.Off)/float64(max(1, a.Answered))),
		{Metric: "error", Stat: "mean", Unit: "km/h", Value: a.ErrorMean},
		{Metric: "error", Stat: "p99", Unit: "km/h", Value: a.ErrorP99},
		{Metric: "error", Stat: "max", Unit: "km/h", Value: a.ErrorMax},
		{Metric: "age", Stat: "mean", Unit: "ms", Value: a.Mean / 1e3},
		{Metric: "age", Stat: "p99", Unit: "ms", Value: a.P99 / 1e3},
		{Metric: "age", Stat: "max", Unit: "ms", Value: a.Max / 1e3},
	}, err
}
