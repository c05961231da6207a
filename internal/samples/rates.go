// SPDX-License-Identifier: Apache-2.0

package samples

import (
	"math"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
)

// Reading is a figure as it is read.
type Reading struct {
	v1.Series
	Value   float64
	Counter bool // the sample is its rate
	// A counter that is not read is zero: its first value counts, too, unless it is in the first reading of all.
	FromZero bool

	key    uint64  // of the series: the agent keeps this instead
	Sample float32 // see Rates; NaN if there is none
}

// counts reports whether a series gets room for its sample.
func (r *Reading) counts() bool { return r.Sample != 0 && !math.IsNaN(float64(r.Sample)) }

// Rates makes readings samples. Its zero value is ready.
type Rates struct {
	last map[uint64]counted
	at   time.Time // of the last reading
}

// counted is a counter when it was read last.
type counted struct {
	value float64
	at    time.Time
}

// kept is how long a counter is remembered that is not read: during a change a module may have none.
const kept = time.Minute

// Add sets the samples of readings. Counters that are lower than before have none: they began again.
func (r *Rates) Add(at time.Time, all []Reading) {
	if r.last == nil {
		r.last = map[uint64]counted{}
	}
	for i := range all {
		n := &all[i]
		if !n.Counter {
			n.Sample = float32(n.Value)
			continue
		}
		before, known := r.last[n.key]
		r.last[n.key] = counted{n.Value, at}
		if !known && n.FromZero && !r.at.IsZero() {
			before, known = counted{at: r.at}, true
		}
		n.Sample = nan
		if elapsed := at.Sub(before.at).Seconds(); known && elapsed > 0 && n.Value >= before.value {
			n.Sample = float32((n.Value - before.value) / elapsed)
		}
	}
	for key, c := range r.last {
		if at.Sub(c.at) > kept {
			delete(r.last, key)
		}
	}
	r.at = at
}
