// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"math"
	"slices"
)

// Median returns the middle value, or the mean of the two middle values; NaN without values. It does not modify values.
func Median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	if n == 0 {
		return math.NaN()
	}
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// Percentile returns the smallest value that at least p percent of the values do not exceed (nearest rank); NaN without
// values.
func Percentile(values []float64, p float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	if len(sorted) == 0 {
		return math.NaN()
	}
	rank := int(math.Ceil(p / 100 * float64(len(sorted))))
	return sorted[min(max(rank, 1), len(sorted))-1]
}

// MedianAnd99 returns two samples of a metric: p50 and p99 of values.
func MedianAnd99(metric, unit string, values []float64) []Sample {
	return []Sample{
		P50(metric, unit, Median(values)),
		{Metric: metric, Stat: "p99", Unit: unit, Value: Percentile(values, 99)},
	}
}

// Mean returns the arithmetic mean; NaN without values.
func Mean(values []float64) float64 { return total(values) / float64(len(values)) }

func total(values []float64) (sum float64) {
	for _, v := range values {
		sum += v
	}
	return sum
}

// Stddev returns the sample standard deviation; 0 for fewer than two values.
func Stddev(values []float64) float64 {
	if len(values) < 2 {
		return 0
	}
	mean, squares := Mean(values), 0.0
	for _, v := range values {
		squares += (v - mean) * (v - mean)
	}
	return math.Sqrt(squares / float64(len(values)-1))
}

// merge combines the rounds' values according to the stat.
func merge(stat string, rounds []float64) float64 {
	switch stat {
	case "sum":
		return total(rounds)
	case "max":
		return slices.Max(rounds)
	case "min":
		return slices.Min(rounds)
	}
	return Median(rounds)
}
