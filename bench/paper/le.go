// SPDX-License-Identifier: Apache-2.0

package paper

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kerb-edge/kerb/bench"
	_ "github.com/kerb-edge/kerb/bench/intercept"
)

func init() { register(&le) }

var le = Work{
	Name:   "le",
	Title:  "Le, reliable execution of time-critical applications (TU Berlin, 2022)",
	Tables: []Table{leTable("idle", "8.8 and 8.9"), leTable("stress", "8.10 and 8.11")},
	Claims: leClaims,
}

// The cases: bytes per packet and packets per second.
var leCases = []string{"64/50k", "512/6k", "1024/3k"}

func leLoads(besides string) (loads []string) {
	for _, c := range leCases {
		loads = append(loads, c+"/"+besides)
	}
	return loads
}

var leNames = map[string]string{"idle": "the idle machine", "stress": "under stress"}

func leTable(besides, combined string) Table {
	loads := leLoads(besides)
	t := Table{
		Name:  besides,
		Title: "Section 8, figures 8.2 to 8.11: " + leNames[besides],
		Shows: "Delay from the hook (T1) to a program: same-t2, same-t3 and same-kmod are Kerb's ring (T2), a UDP socket " +
			"(T3) and a kernel module, which receive the same packets; array (the published eBPF design), kmod, ringbuf and " +
			"socket are measured with packets of their own",
		Experiment: "intercept",
		Loads:      [modes][]string{loads, loads, loads[:1]},
		Rounds:     [modes]int{5, 5, 1},
		Takes:      [modes]time.Duration{20 * time.Minute, 4 * time.Minute, 12 * time.Second},
		Configs: []Config{{"same-t3", "T3"}, {"same-t2", "T2"}, {"same-kmod", "T2 of the module"}, {"array", "T2 of eBPF"},
			{"kmod", ""}, {"socket", ""}, {"ringbuf", ""}},
		Counts: counts("524,288, 65,536 and 32,768 packets", "52,428, 6,553 and 3,276 packets", "5,000 packets"),
		Differs: "sender and receiver are on different CPUs of one machine; losses are totals of all rounds; in the " +
			"figures, the last bin includes all later packets, and times are recorded with a resolution of a quarter of a bin " +
			"or better",
	}
	for _, load := range loads {
		name := strings.TrimSuffix(load, "/"+besides)
		size, rate, _ := strings.Cut(name, "/")
		rows := []Row{
			{Label: name + " median", Metric: "delay", Stat: "p50", Unit: "us", Ratios: map[string]float64{"same-t3": 1,
				"same-t2": 0.1}},
			{Label: name + " p99", Metric: "delay", Stat: "p99", Unit: "us"},
			{Label: name + " later than 100 us", Metric: "over100", Stat: "sum", Unit: "packets"},
			{Label: name + " lost", Metric: "lost", Stat: "sum", Unit: "packets"},
		}
		if load == "64/50k/idle" {
			rows[3].Published = map[string]float64{"same-t3": 643, "same-kmod": 4}
		}
		for i := range rows {
			rows[i].Load = load
		}
		t.Rows = append(t.Rows, rows...)
		t.Figures = append(t.Figures, bench.Figure{Kind: "histogram", Name: strings.ReplaceAll(load, "/", "-"), Load: load,
			Title:  fmt.Sprintf("Figures 8.2 to 8.7: %s bytes, %s packets/s, %s", size, rate, besides),
			Metric: "delay", Width: 5, Below: 50})
	}
	t.Rows = append(t.Rows, Row{Label: "CPU", Load: loads[len(loads)-1], Metric: "cpu", Stat: "p50",
		Unit: "CPUs"})
	t.Figures = append(t.Figures, bench.Figure{Kind: "histogram", Name: besides + "-combined", Metric: "delay", Width: 5,
		Title: "Figures " + combined + ": all cases, " + besides, Below: 50},
		bench.Figure{Kind: "histogram", Name: besides + "-combined-log", Metric: "delay", Logarithmic: true,
			Title: "Figures " + combined + ": all cases, " + besides + ", logarithmic"})
	return t
}

// gains returns the ratios of T3 to T2 of a stat in all cases.
func gains(f *results, metric, stat string) (all []float64) {
	for _, besides := range []string{"idle", "stress"} {
		for _, load := range leLoads(besides) {
			t2, t3 := f.positive(besides, "same-t2", load, metric, stat), f.positive(besides, "same-t3", load, metric, stat)
			all = append(all, t3/t2)
		}
	}
	return all
}

func span(values []float64) string {
	return fmt.Sprintf("by factors of %.1f to %.1f in the six cases", slices.Min(values), slices.Max(values))
}

var leClaims = []Claim{
	{Text: "T2-T1 has a median below 1 us", Where: "section 8", Evaluate: func(f *results) (bool, string) {
		var medians []float64
		for _, besides := range []string{"idle", "stress"} {
			for _, load := range leLoads(besides) {
				medians = append(medians, f.positive(besides, "same-t2", load, "delay", "p50"))
			}
		}
		return slices.Max(medians) < 1, fmt.Sprintf("%.2f to %.2f us; the published receivers poll all the time, ours for "+
			"a while", slices.Min(medians), slices.Max(medians))
	}},
	{Text: "The median is 10 times lower than that of the UDP socket", Where: "section 8",
		Evaluate: func(f *results) (bool, string) {
			all := gains(f, "delay", "p50")
			return atLeast(bench.Median(all), 10), span(all) + "; the median of the six counts"
		}},
	{Text: "p99 is 2 to 10 times lower", Where: "section 8", Evaluate: func(f *results) (bool, string) {
		all := gains(f, "delay", "p99")
		return slices.Min(all) >= 2, span(all) + "; required is a factor of 2 in each"
	}},
	{Text: "Up to 100 times fewer packets are later than 100 us", Where: "section 8", Evaluate: leLate},
	{Text: "Fewer packets are lost: 4, with the socket 643 (64 bytes, 50,000/s, idle)", Where: "section 8",
		Evaluate: func(f *results) (bool, string) {
			of := func(config string) float64 { return f.of("idle", config, "64/50k/idle", "lost", "sum") }
			t2, t3 := of("same-t2"), of("same-t3")
			if t2 == 0 && t3 == 0 {
				f.miss("lost packets of either receiver")
			}
			return t2 < t3, fmt.Sprintf("%.0f, with the socket %.0f", t2, t3)
		}},
	{Text: "A kernel module delivers as fast as eBPF", Where: "section 8", Evaluate: func(f *results) (bool, string) {
		of := func(config string) float64 { return f.positive("idle", config, "64/50k/idle", "delay", "p50") }
		module, array := of("kmod"), of("array") // measured separately; same-kmod shares packets and CPU with two others
		return module <= 1.5*array, fmt.Sprintf("medians of %.2f and %.2f us (64 bytes, 50,000/s, idle)", module, array)
	}},
}

// leLate compares late packets in all cases.
func leLate(f *results) (bool, string) {
	var t2, t3, best float64
	for _, besides := range []string{"idle", "stress"} {
		for _, load := range leLoads(besides) {
			a, b := f.of(besides, "same-t2", load, "over100", "sum"), f.of(besides, "same-t3", load, "over100", "sum")
			t2, t3, best = t2+a, t3+b, max(best, b/max(a, 1))
		}
	}
	if t3 == 0 {
		f.miss("packets of the socket later than 100 us")
	}
	return best >= 100, fmt.Sprintf("%.0f in all cases, with the socket %.0f; at best %.1f times fewer", t2, t3, best)
}
