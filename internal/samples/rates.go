// SPDX-License-Identifier: Apache-2.0

package samples

import (
	"math"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/sdk"
)

// Reading is a figure as it is read.
type Reading struct {
	v1.Series
	Value   float64
	Counter bool // the sample is its rate
	// A counter that is not read is zero: its first value counts, too, unless it is in the first reading of all, or may
	// have been forgotten.
	FromZero  bool
	Sample    float32 // see Rates; NaN if there is none
	*Quantile         // nil: none. The sample is one of what came since the sample before, in s

	key uint64 // of the series: the agent keeps this instead
}

// Quantile is that of a histogram of times.
type Quantile struct {
	of    packed  // of all so far, in ns
	share float64 // from 0 to 1
}

// counts reports whether a series gets room for its sample.
func (r *Reading) counts() bool { return r.Sample != 0 && !math.IsNaN(float64(r.Sample)) }

// Rates makes readings samples. Its zero value is ready.
type Rates struct {
	last      map[uint64]counted
	begun, at time.Time     // of the first reading and of the last one
	unsure    time.Duration // since begun: until then, a counter that is unknown may have been read before
}

// counted is a counter, or a quantile, when it was read last.
type counted struct {
	value    float64
	quantile *Quantile
	at       time.Duration // since begun: a Time is larger
}

// kept is how long a counter is remembered that is not read: during a change a module may have none. Times, which are
// larger, are not.
const kept = time.Minute

// Add sets the samples of readings. Counters that are lower than before have none: they began again. Quantiles have
// none where nothing was counted.
func (r *Rates) Add(at time.Time, readings *Readings) {
	if r.last == nil {
		r.last, r.begun = map[uint64]counted{}, at
	}
	now, all := at.Sub(r.begun), readings.All()
	for i := range all {
		n := &all[i]
		if !n.Counter && n.Quantile == nil {
			n.Sample = float32(n.Value)
			continue
		}
		before, known := r.last[n.key]
		r.last[n.key] = counted{n.Value, n.Quantile, now}
		if !known && n.FromZero && !r.at.IsZero() && now > r.unsure {
			before, known = counted{at: r.at.Sub(r.begun)}, true
		}
		n.Sample = nan
		if !known {
			continue
		}
		if n.Quantile != nil {
			n.Sample = n.Quantile.since(before.quantile)
		} else if elapsed := (now - before.at).Seconds(); elapsed > 0 && n.Value >= before.value {
			n.Sample = float32((n.Value - before.value) / elapsed)
		}
	}
	r.forget(now, readings.Omitted() > 0)
	r.at = at
}

// forget forgets counters that are not read any more: some at once, if there are too many. Those, and such as there was
// no room for in readings, would come back with all that they have counted.
func (r *Rates) forget(now time.Duration, omitted bool) {
	for key, c := range r.last {
		old, crowded := now-c.at > kept, c.quantile == nil && len(r.last) > maxReadings
		if old || c.at < now && (c.quantile != nil || crowded) {
			delete(r.last, key)
			omitted = omitted || crowded && !old
		}
	}
	if omitted {
		r.unsure = now + kept
	}
}

// since returns that of what was counted since it was as before, which may be nil, or NaN.
func (q *Quantile) since(before *Quantile) float32 {
	var counted sdk.Histogram
	if before != nil {
		counted = before.of.addTo(nil)
	}
	since, ok := q.of.addTo(nil).Since(counted)
	if !ok || since.Count() == 0 {
		return nan
	}
	return float32(float64(since.Quantile(q.share)) / 1e9)
}
