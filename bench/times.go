// SPDX-License-Identifier: Apache-2.0

package bench

// Times are durations in us, in the format of the C programs (include/histogram.h).
type Times struct {
	P1, P25, P50, P75, P99, Max, Mean, Stddev float64

	P999 float64 `json:"p99.9"`
	Bins []Bin
}

// Samples returns the named stats.
func (t Times) Samples(metric string, stats ...string) []Sample {
	values := map[string]float64{"p1": t.P1, "p25": t.P25, "p50": t.P50, "p75": t.P75, "p99": t.P99, "p99.9": t.P999,
		"max": t.Max, "mean": t.Mean, "stddev": t.Stddev}
	samples := make([]Sample, len(stats))
	for i, stat := range stats {
		samples[i] = Sample{metric, stat, "us", values[stat]}
	}
	return samples
}
