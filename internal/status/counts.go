// SPDX-License-Identifier: Apache-2.0

package status

import (
	"cmp"
	"maps"
	"math/bits"
	"slices"
	"sort"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/kerbabi"
	"github.com/kerb-edge/kerb/internal/promtext"
	"github.com/kerb-edge/kerb/sdk"
)

// CountsOf returns the packet counts of one module, by hook and direction.
func CountsOf(c dataplane.Counts, module string) (out []v1.ModuleCount) {
	for _, key := range countKeys(c) {
		if key.Module == module {
			out = append(out, count(key, c.Modules[key]))
		}
	}
	return out
}

func countKeys(c dataplane.Counts) []dataplane.CountKey {
	keys := slices.Collect(maps.Keys(c.Modules))
	sort.Slice(keys, func(i, j int) bool {
		x, y := keys[i], keys[j]
		return cmp.Or(cmp.Compare(x.Module, y.Module), cmp.Compare(x.Side, y.Side),
			cmp.Compare(x.Direction, y.Direction)) < 0
	})
	return keys
}

// ChainCounts returns, in chain order, the counts of a chain's modules since it was linked, and its packet times.
func ChainCounts(id string, c dataplane.ChainStats) v1.ChainCounts {
	out := v1.ChainCounts{ID: id, Latency: latency(c.Latency)}
	for i, s := range c.Members {
		if i < len(c.Spec.Members) {
			out.Counts = append(out.Counts, count(dataplane.CountKey{Module: c.Spec.Members[i].Name, Side: c.Spec.Side,
				Direction: c.Spec.Direction}, s))
		}
	}
	return out
}

func latency(l dataplane.Latency) *v1.Sampled {
	h := l.Histogram()
	if h.Count() == 0 {
		return nil
	}
	return &v1.Sampled{Packets: h.Count(), P50: h.Quantile(0.5), P99: h.Quantile(0.99)}
}

// count converts the counts of a module on one hook for the API: verdicts without packets are left out.
func count(key dataplane.CountKey, s dataplane.Stats) v1.ModuleCount {
	sum := s.Verdicts.Sum()
	out := v1.ModuleCount{Module: key.Module, Hook: string(key.Side), Direction: string(key.Direction),
		Packets: sum.Packets, Bytes: sum.Bytes, Latency: latency(s.Latency)}
	for verdict, n := range s.Verdicts {
		if n.Packets > 0 {
			out.Verdicts = append(out.Verdicts, v1.VerdictCount{Verdict: kerbabi.Verdict(verdict).String(),
				Packets: n.Packets, Bytes: n.Bytes})
		}
	}
	return out
}

// Buckets of the metrics end at the powers of two from 16 ns to 1 ms.
const leastPower, mostPower = 4, 20

var latencyBounds = func() (out []float64) {
	for power := leastPower; power <= mostPower; power++ {
		out = append(out, float64(uint64(1)<<power)/1e9)
	}
	return out
}()

// powersOfTwo merges the buckets of a histogram into powers of two; the last one counts all larger values.
func powersOfTwo(h sdk.Histogram) []uint64 {
	out := make([]uint64, len(latencyBounds)+1)
	for b, n := range h {
		power := bits.Len64(sdk.HistogramFloor(b)) // all values of the bucket are below 2^power
		out[min(max(power-leastPower, 0), len(latencyBounds))] += n
	}
	return out
}

// native counts each value as the largest one of its bucket, in seconds, in which powers of two are no bucket bounds.
func native(h sdk.Histogram) *promtext.Native {
	var out promtext.Native
	for b, n := range h {
		out.Add(float64(sdk.HistogramFloor(b+1)-1)/1e9, n)
	}
	return &out
}

// CollectCounts adds the counts of all modules to the metrics.
func CollectCounts(c dataplane.Counts, out *promtext.Set) {
	for _, key := range countKeys(c) {
		s := c.Modules[key]
		of := []string{"module", key.Module, "hook", string(key.Side), "direction", string(key.Direction)}
		if h := s.Latency.Histogram(); h.Count() > 0 {
			out.Buckets("kerb_module_latency_seconds", "Time that a module took for a packet, of one packet in 4,096.",
				latencyBounds, powersOfTwo(h), float64(s.Latency.Sum)/1e9, native(h), of...)
		}
		for verdict, n := range s.Verdicts {
			labels := append(slices.Clip(of), "verdict", kerbabi.Verdict(verdict).String())
			out.Counter("kerb_module_packets_total", "Packets that reached a module, by its verdict.", float64(n.Packets),
				labels...)
			out.Counter("kerb_module_bytes_total", "Bytes of packets that reached a module, by its verdict.",
				float64(n.Bytes), labels...)
		}
	}
}
