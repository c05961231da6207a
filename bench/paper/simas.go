// SPDX-License-Identifier: Apache-2.0

package paper

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/kerb-edge/kerb/bench"
	_ "github.com/kerb-edge/kerb/bench/accelerator"
)

func init() { register(&simas) }

var simas = Work{
	Name:   "simas",
	Title:  "Simas, acceleration of connections within a node (Unicamp, 2025), without a mesh",
	Tables: []Table{simasEcho, simasFile, simasRedis},
	Claims: simasClaims,
}

var simasConfigs = []Config{{"plain", "baseline"}, {"kerb", "accelerated"}, {"redirect-all", ""}}

const simasDiffers = "two namespaces with a bridge in place of Kubernetes, so no ClusterIP; all processes share a " +
	"CPU; redirect-all redirects everything that can be, as the published program does"

// change is published as a difference in percent.
func change(percent float64) map[string]float64 {
	return map[string]float64{"plain": 1, "kerb": 1 + percent/100}
}

func simasTable(name, title, shows, load string, counts [modes]string, differs string,
	takes [modes]time.Duration, rows ...Row) Table {
	for i := range rows {
		rows[i].Load = load
	}
	figures := []bench.Figure{{Kind: bars, Name: name, Title: title + ": all, relative to plain TCP", Metric: ratios}}
	if slices.ContainsFunc(rows, func(r Row) bool { return r.Metric == "latency" }) {
		figures = append(figures, bench.Figure{Kind: bars, Name: name + "-latency", Title: title + ": latency",
			Metric: "latency"})
	}
	return Table{Name: name, Title: title, Shows: shows, Experiment: "accelerator", Loads: Same([]string{load}),
		Counts: counts, Rounds: [modes]int{5, 5, 1}, Takes: takes, Configs: simasConfigs, Differs: simasDiffers + differs,
		Rows: rows, Figures: figures}
}

var simasEcho = simasTable("ping-echo", "Chapter 5, ping-echo", "Requests and answers of 24 bytes on one connection",
	"veth/echo-24", counts("4 s, time enough for 100,000 requests", "0.4 s", "0.15 s"), "; C in place "+
		"of Python at both ends; completion time is that of 100,000 requests at the rate measured",
	[modes]time.Duration{time.Minute, 30 * time.Second, 15 * time.Second},
	Row{Label: "latency p25", Metric: "latency", Stat: "p25", Unit: "us"},
	Row{Label: "latency p50", Metric: "latency", Stat: "p50", Unit: "us", Ratios: change(-39.4)},
	Row{Label: "latency mean", Metric: "latency", Stat: "mean", Unit: "us"},
	Row{Label: "latency p75", Metric: "latency", Stat: "p75", Unit: "us"},
	Row{Label: "jitter", Metric: "jitter", Stat: "p50", Unit: "us", Ratios: change(-0.2)},
	Row{Label: "rate", Metric: "rate", Stat: "p50", Unit: "1/s", Ratios: change(65)},
	Row{Label: "completion time", Metric: "fct", Stat: "p50", Unit: "s", Ratios: change(-34.7)},
	Row{Label: "CPU", Metric: "cpu_op", Stat: "p50", Unit: "us per request", Ratios: change(-16.2)},
)

var simasFile = simasTable("file-transfer", "Chapter 5, file-transfer", "A file in one direction",
	"veth/file", counts("1000 MiB", "100 MiB", "1 MiB"), "; C in place of ncat",
	[modes]time.Duration{2 * time.Minute, 40 * time.Second, 12 * time.Second},
	Row{Label: "completion time", Metric: "fct", Stat: "p50", Unit: "s", Ratios: change(-21)},
	Row{Label: "throughput", Metric: "throughput", Stat: "p50", Unit: "Gbit/s"},
	Row{Label: "CPU", Metric: "cpu_byte", Stat: "p50", Unit: "ns per byte", Ratios: change(-5.8)},
)

var simasRedis = simasTable("redis", "Chapter 5, redis", "Operations on 50 connections", "veth/redis-50",
	counts("0.4 s", "0.4 s", "0.15 s"),
	"; redis-benchmark with GET on 50 connections in place of memtier with SET and GET on 100",
	[modes]time.Duration{time.Minute, 30 * time.Second, 12 * time.Second},
	Row{Label: "operations", Metric: "rate", Stat: "p50", Unit: "1/s", Ratios: change(47)},
	Row{Label: "latency p50", Metric: "latency", Stat: "p50", Unit: "us", Ratios: change(-32.2)},
	Row{Label: "latency mean", Metric: "latency", Stat: "mean", Unit: "us"},
	Row{Label: "CPU", Metric: "cpu_op", Stat: "p50", Unit: "us per operation", Ratios: change(8)},
)

// simasClaim holds if the change by acceleration is at most the published one, or where more is better at least that,
// to the tenth of a percent that is published.
func simasClaim(text, table, load, metric string, more bool, percent float64) Claim {
	return Claim{Text: text, Where: "chapter 5, no mesh", Judge: func(f *found) (bool, string) {
		ratio := f.positive(table, "kerb", load, metric, "p50") / f.positive(table, "plain", load, metric, "p50")
		rounded, limit := math.Round(1000*ratio)/1000, math.Round(1000+10*percent)/1000
		holds := more && atLeast(rounded, limit) || !more && atMost(rounded, limit)
		return holds, fmt.Sprintf("%+.1f %%", 100*(ratio-1))
	}}
}

var simasClaims = []Claim{
	simasClaim("ping-echo: latency changes by -39.4 %", "ping-echo", "veth/echo-24", "latency", false, -39.4),
	simasClaim("ping-echo: requests a second change by +65 %", "ping-echo", "veth/echo-24", "rate", true, 65),
	simasClaim("ping-echo: CPU changes by -16.2 %", "ping-echo", "veth/echo-24", "cpu_op", false, -16.2),
	simasClaim("file-transfer: completion time changes by -21 %", "file-transfer", "veth/file", "fct", false, -21),
	simasClaim("redis: operations a second change by +47 %", "redis", "veth/redis-50", "rate", true, 47),
	simasClaim("redis: CPU changes by +8 %, or less", "redis", "veth/redis-50", "cpu_op", false, 8),
	{Text: "Gains within Cilium, Istio ambient and Istio sidecar", Where: "chapter 5",
		NotMeasured: "`kerb bench mesh` has paths like those of Cilium and of sidecars without Kubernetes, none of " +
			"ambient, and notes the published changes next to its own"},
	{Text: "11.6 to 61.3 MB of memory more", Where: "chapter 5",
		NotMeasured: "`kerb bench mesh` has the memory of all programs, " +
			"`kerb bench accelerator --loads veth/held` the kernel's for a connection"},
}
