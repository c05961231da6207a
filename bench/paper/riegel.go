// SPDX-License-Identifier: Apache-2.0

package paper

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/kerb-edge/kerb/bench"
	_ "github.com/kerb-edge/kerb/bench/proxy"
)

func init() { register(&riegel) }

var riegel = Work{
	Name:   "riegel",
	Title:  "Riegel, a module manager for an orchestrated edge (TU Munich, 2024)",
	Tables: []Table{riegelProxy, riegelSweep, riegelTimeline, riegelTwoNodes, riegelSweepTwo, riegelTimelineTwo},
	Claims: riegelClaims,
}

const sameNode = "same-node/ipv4"

// before returns published values of the proxy in user space and of that in eBPF.
func before(tun, kerb float64) map[string]float64 {
	return map[string]float64{"tun-go": tun, "kerb": kerb}
}

var riegelProxy = Table{
	Name:       "proxy",
	Title:      "Table 5.1, figures 4.1 to 4.3 and 4.5: connections to a virtual address, on one node",
	Shows:      "TCP handshakes, UDP jitter at 1 Mbit/s, one CUBIC stream, and CPU time at 100 Mbit/s",
	Counts:     counts("15 handshakes, streams of 20 s", "15 handshakes, streams of 2 s", "15 handshakes, streams of 1 s"),
	Experiment: "proxy",
	Loads:      Same([]string{sameNode}),
	Rounds:     [modes]int{30, 10, 1},
	Takes:      [modes]time.Duration{2 * time.Hour, 6 * time.Minute, 30 * time.Second},
	Configs:    []Config{{"tun-go", "Oakestra's proxy"}, {"kerb", "eBPF proxy"}, {"nftables", ""}, {"direct", ""}},
	Differs: "tun-go is a proxy with the design of Oakestra's, instead of NetManager; latency is that of connect(2) " +
		"with both ends on one CPU, instead of hping3",
	Rows: []Row{
		{Label: "latency", Load: sameNode, Metric: "connect", Stat: "p50", Unit: "ms", By: 1e-3,
			Published: before(4.66, 4.14)},
		{Label: "jitter", Load: sameNode, Metric: "jitter", Stat: "p50", Unit: "ms", By: 1e-3,
			Published: before(0.0326, 0.0082)},
		{Label: "throughput", Load: sameNode, Metric: "throughput", Stat: "p50", Unit: "Gbit/s",
			Published: before(0.26, 21.2)},
		{Label: "CPU at 100 Mbit/s", Load: sameNode, Metric: "cpu", Stat: "p50", Unit: "%", By: 100,
			Published: before(20.19, 5.39)},
		{Label: "memory", Load: sameNode, Metric: "memory", Stat: "p50", Unit: "MiB"},
	},
	Figures: proxyFigures("", ""),
}

// twoNodesConfigs are the ways to a virtual address of another node.
var twoNodesConfigs = []Config{{"tun-go", "Oakestra's proxy"}, {"kerb", ""}, {"vxlan-nftables", ""}, {"direct", ""}}

const (
	onTwoNodes = "two-nodes-virtual/ipv4"
	twoDiffers = "the work measures one node only, and proposes this as future work: proxy and tunnel, with a veth pair " +
		"between two namespaces instead of a network; the MTU of services is 1450 bytes"
)

// riegelTwoNodes is riegelProxy with the server on another node, without published values.
var riegelTwoNodes = Table{
	Name:       "proxy-two-nodes",
	Title:      "Section 5.2.5: the same, with the server on another node",
	Shows:      riegelProxy.Shows,
	Counts:     riegelProxy.Counts,
	Experiment: "proxy",
	Loads:      [modes][]string{{onTwoNodes}, {onTwoNodes}, nil},
	Rounds:     riegelProxy.Rounds,
	Takes:      riegelProxy.Takes,
	Configs:    twoNodesConfigs,
	Differs:    twoDiffers,
	Rows:       unpublished(riegelProxy.Rows, onTwoNodes),
	Figures:    proxyFigures("-two-nodes", ", to another node"),
}

// proxyFigures returns figures 4.1 to 4.3, for one node as published, or for two.
func proxyFigures(name, where string) []bench.Figure {
	f := func(kind, number, part, shows, metric string) bench.Figure {
		title := "Figure " + strings.ReplaceAll(number, "-", ".") + ": " + shows
		if name != "" {
			title = "Section 5.2.5, as f" + title[1:] + where
		}
		return bench.Figure{Kind: kind, Name: number + name + part, Title: title, Metric: metric}
	}
	return []bench.Figure{
		f("cdf", "4-1", "", "latency of TCP handshakes", "connect"),
		f("box", "4-2", "", "jitter at 1 Mbit/s", "jitter"), f("cdf", "4-2", "-cdf", "jitter at 1 Mbit/s", "jitter"),
		f("box", "4-3", "", "throughput of one stream", "throughput"),
		f("cdf", "4-3", "-cdf", "throughput of one stream", "throughput"),
	}
}

// unpublished returns the rows for another load, without published figures.
func unpublished(rows []Row, load string) (all []Row) {
	for _, row := range rows {
		row.Load, row.Published = load, nil
		all = append(all, row)
	}
	return all
}

var (
	riegelSweep = sweepTable("sweep", "Figure 4.4: UDP in steps of 50 Mbit/s", "sweep/one-node", "4-4",
		riegelProxy.Configs, "above 1 Gbit/s in steps of a factor of 1.25")
	riegelSweepTwo = sweepTable("sweep-two-nodes", "Section 5.2.5: UDP in steps of 50 Mbit/s to another node",
		"sweep/two-nodes", "4-4-two-nodes", twoNodesConfigs, twoDiffers)
	riegelTimeline = timelineTable("timeline", "Figures 4.5 and 4.6: CPU and memory over time", "timeline/one-node", "",
		riegelProxy.Configs, "of the participating programs and their share of memory, instead of the whole machine")
	riegelTimelineTwo = timelineTable("timeline-two-nodes", "Section 5.2.5: CPU and memory over time, on two nodes",
		"timeline/two-nodes", "-two-nodes", twoNodesConfigs, twoDiffers)
)

func sweepTable(name, title, load, figure string, configs []Config, differs string) Table {
	rate := func(label string, mbits int, metric, stat, unit string) Row {
		return Row{Label: fmt.Sprintf("%s at %d Mbit/s", label, mbits), Load: fmt.Sprintf("%s/%d", load, mbits),
			Metric: metric, Stat: stat, Unit: unit}
	}
	loads := [modes][]string{{load}, {load}, nil}
	return Table{
		Name: name, Title: title, Experiment: "proxy", Loads: loads, Configs: configs, Differs: differs,
		Shows: "The highest payload rate with a loss of at most 1 %, or the limit of the generator (with the number of " +
			"rounds in which it was reached), and one-way latency and loss by rate",
		Counts: counts("60 s of each rate", "6 s of each rate", ""),
		Rounds: Same(1),
		Takes:  [modes]time.Duration{2 * time.Hour, 12 * time.Minute, 0},
		Rows: []Row{
			{Label: "bottleneck", Load: load, Metric: "bottleneck", Stat: "p50", Unit: "Mbit/s"},
			{Label: "generator's limit", Load: load, Metric: "generator_limit", Stat: "sum", Unit: "rounds"},
			rate("one-way latency", 50, "oneway", "p50", "us"), rate("one-way latency", 500, "oneway", "p50", "us"),
			rate("one-way latency", 1000, "oneway", "p50", "us"), rate("loss", 500, "loss", "p50", "%"),
			rate("loss", 1000, "loss", "p50", "%"),
		},
		Figures: []bench.Figure{
			{Kind: "rates", Name: figure, Title: title + ", one-way latency", Metric: "oneway", Stat: "p50", X: "Mbit/s",
				Logarithmic: true},
			{Kind: "rates", Name: figure + "-loss", Title: title + ", loss", Metric: "loss", Stat: "p50", X: "Mbit/s"},
		},
	}
}

// smoothed is the weight of a sample in the work's figures of CPU and memory.
const smoothed = 0.2

func timelineTable(name, title, load, figure string, configs []Config, differs string) Table {
	t := Table{
		Name: name, Title: title, Experiment: "proxy", Configs: configs, Differs: differs,
		Loads:  [modes][]string{{load}, {load}, nil},
		Shows:  "Three phases of the same length with 30 samples each: idle, with 100 Mbit/s of TCP, and idle again",
		Counts: counts("45 s", "6 s", ""),
		Rounds: [modes]int{30, 10, 1},
		Takes:  [modes]time.Duration{90 * time.Minute, 5 * time.Minute, 0},
		Figures: []bench.Figure{
			{Kind: "each", Name: "4-5" + figure, Title: title + ": CPU", Metric: "cpu_time", X: "sample", Smooth: smoothed},
			{Kind: "each", Name: "4-6" + figure, Title: title + ": memory", Metric: "memory_time", X: "sample",
				Smooth: smoothed},
		},
	}
	for _, phase := range []string{"idle", "load", "after"} {
		t.Rows = append(t.Rows, Row{Label: "CPU, " + phase, Load: load, Metric: "cpu_" + phase, Stat: "p50", Unit: "%"},
			Row{Label: "memory, " + phase, Load: load, Metric: "memory_" + phase, Stat: "p50", Unit: "MiB"})
	}
	return t
}

// Tolerances for CPU, in percent of one CPU, and memory, as a fraction, to have returned to their level before the
// load.
const (
	returnsCPU    = 1.0
	returnsMemory = 0.05
)

// riegelReturns reports whether CPU and memory with Kerb are the same before and after a load.
func riegelReturns(f *results) (bool, string) {
	of := func(metric string) float64 { return f.of("timeline", "kerb", "timeline/one-node", metric, "p50") }
	memory := f.positive("timeline", "kerb", "timeline/one-node", "memory_idle", "p50")
	f.positive("timeline", "kerb", "timeline/one-node", "cpu_load", "p50") // otherwise there was no load
	cpu, more := of("cpu_after")-of("cpu_idle"), of("memory_after")/memory-1
	why := fmt.Sprintf("%+.2f percentage points of CPU and %+.1f %% of memory; up to %g points and %g %% count as equal",
		cpu, 100*more, returnsCPU, 100*returnsMemory)
	return math.Abs(cpu) <= returnsCPU && math.Abs(more) <= returnsMemory, why
}

// riegelSweeps reports whether the eBPF proxy's bottleneck is above that of the proxy in user space.
func riegelSweeps(f *results) (bool, string) {
	of := func(config string) float64 {
		return f.positive("sweep", config, "sweep/one-node", "bottleneck", "p50")
	}
	kerb, tun, direct := of("kerb"), of("tun-go"), of("direct")
	more := ""
	if f.of("sweep", "kerb", "sweep/one-node", "generator_limit", "sum") > 0 {
		more = " or more, the limit of the generator"
	}
	return kerb > tun, fmt.Sprintf("%.0f Mbit/s%s; with tun-go %.0f, without a proxy %.0f", kerb, more, tun, direct)
}

// riegelClaim holds if the ratio of Kerb's figure to the user-space proxy's is at most, or at least, the published one.
func riegelClaim(text, label, metric string, holds func(ratio, limit float64) bool) Claim {
	return Claim{Text: text, Where: "table 5.1", Evaluate: func(f *results) (bool, string) {
		of := func(config string) float64 { return f.positive("proxy", config, sameNode, metric, "p50") }
		ratio := of("kerb") / of("tun-go")
		why := fmt.Sprintf("%+.1f %%; compared with no proxy %+.1f %%", 100*(ratio-1),
			100*(of("kerb")/of("direct")-1))
		return holds(ratio, riegelProxy.publishedRatio(label, "kerb", "tun-go")), why
	}}
}

var riegelClaims = []Claim{
	riegelClaim("Latency is 11.2 % lower", "latency", "connect", atMost),
	riegelClaim("Jitter is 74.9 % lower", "jitter", "jitter", atMost),
	riegelClaim("Throughput of TCP is 8054 % higher", "throughput", "throughput", atLeast),
	riegelClaim("100 Mbit/s take 73.3 % less CPU", "CPU at 100 Mbit/s", "cpu", atMost),
	{Text: "One-way latency and loss stay low up to a bottleneck, which comes later with the proxy in eBPF",
		Where: "figure 4.4", Evaluate: riegelSweeps},
	{Text: "CPU and memory return to what they were before after a load", Where: "figures 4.5 and 4.6",
		Evaluate: riegelReturns},
}
