// SPDX-License-Identifier: Apache-2.0

package paper

import (
	"fmt"
	"strings"
	"time"

	"github.com/kerb-edge/kerb/bench"
	_ "github.com/kerb-edge/kerb/bench/classifier"
)

func init() { register(&gallego) }

var gallego = Work{
	Name:   "gallego",
	Title:  "Gallego-Madrid et al., machine learning on traffic in the kernel (Computer Networks, 2024)",
	Tables: gallegoTables,
	Figures: []bench.Figure{
		{Kind: bars, Name: "6", Title: "Instead of figure 6 (CPU over time): CPU time per frame", Metric: "cpu",
			X: "window"},
		{Kind: bars, Name: "7", Title: "Figure 7: execution time of the model", Metric: "inference", X: "window"},
	},
	Claims: gallegoClaims,
}

// sizeLoads are the sizes of figure 5; its text gives the rates of the smallest and of the largest.
var sizeLoads = []string{"size/64", "size/128", "size/256", "size/512", "size/1024", "size/1500"}

var gallegoSizes = Table{
	Name:  "figure5",
	Title: "Figure 5: data rate by packet size, without the model",
	Shows: "Frames of one size, including the Ethernet header, through an interface without a program, and through a " +
		"chain with one module",
	Experiment: "classifier",
	Loads:      [modes][]string{sizeLoads, sizeLoads, nil},
	Rounds:     [modes]int{10, 3, 0},
	Takes:      [modes]time.Duration{33 * time.Minute, 2 * time.Minute, 0},
	Configs:    []Config{{"plain", "without a program"}, {"bare-generic", ""}, {"bare", ""}},
	Counts:     counts("10 s of frames for each config and size", "1 s of frames for each config and size", ""),
	Differs: "virtual Ethernet instead of a USB network card with 100 Mbit/s, which limits the published rates; for the " +
		"largest packets, \"above 90\" Mbit/s are published",
	Rows: sizeRows(),
	Figures: []bench.Figure{{Kind: "rates", Name: "5", Title: "Figure 5: data rate by packet size",
		Metric: "data_rate", Stat: "p50", X: "bytes of a frame"}},
}

func sizeRows() (rows []Row) {
	for _, load := range sizeLoads {
		row := Row{Label: strings.TrimPrefix(load, "size/") + " bytes", Load: load, Metric: "data_rate", Stat: "p50",
			Unit: "Mbit/s"}
		switch load {
		case sizeLoads[0]:
			row.Published = map[string]float64{"plain": smallRate}
		case sizeLoads[len(sizeLoads)-1]:
			row.Published = map[string]float64{"plain": largeRate}
		}
		rows = append(rows, row)
	}
	return rows
}

var gallegoSoftirqs = Table{
	Name:  "figure6",
	Title: "Figure 6: CPU time in softirqs over time",
	Shows: "Utilisation of the CPU that sends, classifies and receives frames, at the same rate for all configs: 90 % " +
		"of the lowest loss-free rate",
	Experiment: "classifier",
	Loads:      [modes][]string{{"softirq/1s"}, {"softirq/1s"}, nil},
	Rounds:     [modes]int{10, 3, 0},
	Takes:      [modes]time.Duration{52 * time.Minute, 2 * time.Minute, 0},
	Configs: []Config{{"user-generic", "user"}, {"kernel-generic", "kernel"}, {"user", ""}, {"kernel", ""},
		{"bare-generic", ""}},
	Counts: counts("60 s of frames for each config", "6 s of frames for each config", ""),
	Differs: "frames of 123 bytes over virtual Ethernet on one CPU, instead of 90 bytes to a Raspberry Pi 3, for which " +
		"60 to 80 % are published; in both, time during which the receiving program waits does not count as softirq",
	Rows: []Row{
		{Label: "figure 6 softirqs", Load: "softirq/1s", Metric: "softirq_share", Stat: "p50", Unit: "% of the CPU",
			Ratios: map[string]float64{"user-generic": 1, "kernel-generic": 0.94}},
		{Label: "rate", Load: "softirq/1s", Metric: "rate", Stat: "p50", Unit: "Mbit/s", By: frameMbit},
	},
	Figures: []bench.Figure{{Kind: "each", Name: "6-softirqs", Title: "Figure 6: CPU time in softirqs over time",
		Metric: "softirq_share", X: "seconds", Step: 0.5}},
}

var gallegoTables = []Table{
	gallegoTable("1s", 0.99, 43.1, [modes][]string{{"rpl/1s"}, {"rpl/1s"}, {"rpl/1s"}}),
	gallegoTable("5s", 1, 43.6, [modes][]string{{"rpl/5s"}, {"rpl/5s"}, nil}),
	gallegoTable("10s", 1, 44.5, [modes][]string{{"rpl/10s"}, {"rpl/10s"}, nil}),
	gallegoSizes,
	gallegoSoftirqs,
}

const (
	userRate  = 45.5            // loss-free rate in Mbit/s, with the model in user space
	frameMbit = 123 * 8 / 1e6   // Ethernet, IPv4, UDP and a frame of ours in ZEP
	loadUser  = 789e-3          // ms
	loadInXDP = 830e-3          // ms
	rule      = "rule: dis > 0" // of the experiment
	smallRate = 28.5            // Mbit/s with packets of 64 bytes (figure 5)
	largeRate = 90              // lower bound for the largest packets
)

// gallegoTable returns the part for one window length of table 1, figures 6 and 7, and of the text about accuracy and
// loading.
func gallegoTable(window string, accuracy, rate float64, loads [modes][]string) Table {
	load := "rpl/" + window
	return Table{
		Name:  window,
		Title: "Table 1, figures 6 and 7, accuracy and loading: windows of " + strings.TrimSuffix(window, "s") + " s",
		Shows: "The included perceptron 4-3-2-1 on the published windows, and frames through a chain with the model in the " +
			"kernel or in user space; on generic XDP, as published, and on native XDP",
		Experiment: "classifier",
		Loads:      loads,
		Rounds:     [modes]int{10, 3, 1},
		Takes:      [modes]time.Duration{75 * time.Minute, 3 * time.Minute, 25 * time.Second},
		Configs: []Config{{"user-generic", "user"}, {"kernel-generic", "kernel"}, {"user", ""}, {"kernel", ""},
			{"bare-generic", ""}, {"bare", ""}},
		Counts: counts("60 s of frames for each config", "6 s of frames for each config", "1 s of frames"),
		Differs: "IEEE 802.15.4 frames in UDP (ZEP), of 123 instead of 90 bytes, over virtual Ethernet instead of a " +
			"Raspberry Pi 3 with 100 Mbit/s Ethernet; bare is a chain without a classifier; CPU time is that of sender, chain " +
			"and receiver per frame, instead of softirqs over time (figure 6)",
		Rows: []Row{
			{Label: "accuracy", Load: load, Metric: "accuracy", Stat: "p50", Unit: "share",
				Configs: []Config{{"kernel", ""}, {rule, ""}}, Published: map[string]float64{"kernel": accuracy}},
			{Label: "table 1 rate without loss", Load: load, Metric: "lossfree_rate", Stat: "p50", Unit: "Mbit/s",
				By: frameMbit, Published: map[string]float64{"user-generic": userRate, "kernel-generic": rate}},
			{Label: "figure 6 CPU", Load: load, Metric: "cpu", Stat: "p50", Unit: "us per frame",
				Ratios: map[string]float64{"user-generic": 1, "kernel-generic": 0.94}},
			{Label: "CPU of agent and control plane", Load: load, Metric: "control_cpu", Stat: "p50", Unit: "ms per s"},
			{Label: "figure 7 execution", Load: load, Metric: "inference", Stat: "p50", Unit: "us per window", By: 1e-3,
				Configs: []Config{{"user", ""}, {"kernel", ""}}, Ratios: map[string]float64{"user": 1, "kernel": 0.03}},
			{Label: "loading", Load: load, Metric: "load_time", Stat: "p50", Unit: "ms",
				Configs:   []Config{{"user-generic", "user"}, {"kernel-generic", "kernel"}},
				Published: map[string]float64{"user-generic": loadUser, "kernel-generic": loadInXDP}},
		},
	}
}

// gallegoRatio returns the ratio of two configs with windows of 1 s.
func gallegoRatio(f *results, metric, a, b string) float64 {
	return f.positive("1s", a, "rpl/1s", metric, "p50") / f.positive("1s", b, "rpl/1s", metric, "p50")
}

var gallegoClaims = []Claim{
	{Text: "The model detects the attacker with an accuracy of 0.99, 1 and 1 (windows of 1, 5 and 10 s)", Where: "the " +
		"text", Evaluate: func(f *results) (bool, string) {
		a, b, c := f.of("1s", "kernel", "rpl/1s", "accuracy", "p50"), f.of("5s", "kernel", "rpl/5s", "accuracy", "p50"),
			f.of("10s", "kernel", "rpl/10s", "accuracy", "p50")
		return a >= 0.985 && b >= 0.995 && c >= 0.995, fmt.Sprintf("%.4f, %.4f and %.4f on all published windows, most of "+
			"which were used for training; a rule with a single comparison is as accurate (docs/classifier.md)", a, b, c)
	}},
	{Text: "The model takes 97 % less time in the kernel", Where: "figure 7", Evaluate: func(f *results) (bool, string) {
		r := gallegoRatio(f, "inference", "kernel", "user")
		return r < 0.035, fmt.Sprintf("%.1f %% less, compared with three system calls per source, as published", 100*(1-r))
	}},
	{Text: "The rate without loss is up to 5 % lower with the model in the kernel", Where: "table 1",
		Evaluate: func(f *results) (bool, string) {
			r := gallegoRatio(f, "lossfree_rate", "kernel-generic", "user-generic")
			limit := gallegoTables[0].publishedRatio("table 1 rate without loss", "kernel-generic", "user-generic")
			return r < 1 && atLeast(r, limit), fmt.Sprintf("%+.1f %% on generic XDP", 100*(r-1))
		}},
	{Text: "The kernel's model needs 6 % less CPU", Where: "figure 6", Evaluate: func(f *results) (bool, string) {
		r := gallegoRatio(f, "cpu", "kernel-generic", "user-generic")
		limit := gallegoTables[0].publishedRatio("figure 6 CPU", "kernel-generic", "user-generic")
		return atMost(r, limit), fmt.Sprintf("%+.1f %% on generic XDP, without the agent and the control plane", 100*(r-1))
	}},
	{Text: "Loading takes not more than 5 % longer with the model in the kernel", Where: "the text",
		Evaluate: func(f *results) (bool, string) {
			r := gallegoRatio(f, "load_time", "kernel-generic", "user-generic")
			limit := gallegoTables[0].publishedRatio("loading", "kernel-generic", "user-generic")
			return atMost(r, limit), fmt.Sprintf("%+.1f %%; ours is the time until an applied module classifies packets, "+
				"theirs that of one system call", 100*(r-1))
		}},
	{Text: "Without a program, rates go from 28.5 Mbit/s with 64 bytes to above 90", Where: "figure 5",
		Evaluate: func(f *results) (bool, string) {
			small := f.positive("figure5", "plain", "size/64", "data_rate", "p50")
			large := f.positive("figure5", "plain", "size/1500", "data_rate", "p50")
			return atLeast(large/small, largeRate/smallRate), fmt.Sprintf("from %.0f to %.0f Mbit/s with 1500 bytes, %.1f "+
				"times; published are more than %.2f times, where the network card is the limit", small, large, large/small,
				largeRate/smallRate)
		}},
}
