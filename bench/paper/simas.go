// SPDX-License-Identifier: Apache-2.0

package paper

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/kerb-edge/kerb/bench"
	_ "github.com/kerb-edge/kerb/bench/accelerator"
)

func init() { register(&simas) }

var simas = Work{
	Name:   "simas",
	Title:  "Simas, acceleration of connections within a node (Unicamp, 2025)",
	Tables: []Table{simasEcho, simasFile, simasRedis},
	Claims: simasClaims(),
}

var simasConfigs = []Config{{"plain", "baseline"}, {"kerb", "accelerated"}, {keys, "rebuilt from its source"}}

const keys = "published-keys"

// simasMeshes are the meshes of `kerb bench mesh`, in the work's order, and those of the work.
var simasMeshes = []struct{ name, theirs string }{{"none", "no mesh"}, {"cilium-like", "Cilium"},
	{"sidecar", "Istio sidecar"}}

const simasDiffers = "two namespaces, and one of a node that translates the service's address, instead of " +
	"Kubernetes; all programs share a CPU; CPU and memory are totals of all programs instead of the whole machine; " +
	"published values are the p50 of five runs, from the work's notebooks, and changes in percent"

// simasMetric has the published values of a metric in each mesh.
type simasMetric struct {
	Row
	values  map[string][2]float64 // by mesh: plain TCP, and accelerated
	changes map[string]float64    // by mesh, in percent
}

// simasRows returns the rows of a workload, mesh by mesh.
func simasRows(workload string, metrics []simasMetric) (rows []Row) {
	for _, mesh := range simasMeshes {
		for _, m := range metrics {
			row := m.Row
			row.Label, row.Group, row.Load = mesh.name+" "+m.Label, mesh.name, mesh.name+"/"+workload
			if v, ok := m.values[mesh.name]; ok {
				row.Published = map[string]float64{"plain": v[0], "kerb": v[1]}
			}
			if percent, ok := m.changes[mesh.name]; ok {
				row.Ratios = change(percent)
			}
			rows = append(rows, row)
		}
	}
	return rows
}

// change returns the ratio for a published difference in percent.
func change(percent float64) map[string]float64 {
	return map[string]float64{"plain": 1, "kerb": 1 + percent/100}
}

// simasFigures returns figures of the metrics with published changes, and of memory, with a published range.
func simasFigures(name string, metrics []simasMetric) (all []bench.Figure) {
	for _, m := range metrics {
		f := bench.Figure{Kind: bars, Name: name + "-" + m.Metric, Metric: m.Metric, X: "mesh",
			Title: fmt.Sprintf("%s: %s", name, m.Label)}
		if m.changes != nil {
			f.Metric, f.Title = ratioOf(m.Metric), f.Title+", relative to plain TCP"
		}
		if m.changes != nil || m.Metric == simasMemory.Metric {
			all = append(all, f)
		}
	}
	return all
}

func simasTable(name, title, shows, workload string, counts [modes]string, differs string,
	takes [modes]time.Duration, metrics []simasMetric) Table {
	var loads []string
	for _, mesh := range simasMeshes {
		loads = append(loads, mesh.name+"/"+workload)
	}
	return Table{Name: name, Title: title, Shows: shows, Experiment: "mesh",
		Loads: [modes][]string{loads, loads, loads[:1]}, Counts: counts, Rounds: [modes]int{5, 5, 1}, Takes: takes,
		Configs: simasConfigs, Differs: simasDiffers + differs, Rows: simasRows(workload, metrics),
		Figures: simasFigures(name, metrics)}
}

var simasEcho = simasTable("ping-echo", "Chapter 5, ping-echo",
	"Requests and replies of 24 bytes on one connection, both ends in Python", "echo",
	counts("100,000 requests", "10,000 requests", "100 requests"),
	"; the rate is that of a whole run instead of the median of single requests",
	[modes]time.Duration{4 * time.Minute, 90 * time.Second, 15 * time.Second}, []simasMetric{
		{Row: Row{Label: "latency p25", Metric: "latency", Stat: "p25", Unit: "us"},
			values: pairs(97.7, 60.6, 83, 60.9, 406.5, 236.1)},
		{Row: Row{Label: "latency p50", Metric: "latency", Stat: "p50", Unit: "us"},
			values: pairs(121.4, 73.5, 102, 73.8, 495.6, 287.4), changes: percents(-39.4, -27.6, -42)},
		{Row: Row{Label: "latency mean", Metric: "latency", Stat: "mean", Unit: "us"},
			values: pairs(139.8, 91.2, 118.5, 91.4, 551.5, 320.4)},
		{Row: Row{Label: "latency p75", Metric: "latency", Stat: "p75", Unit: "us"},
			values: pairs(157.8, 97.5, 134.3, 97.3, 615.3, 359.5)},
		{Row: Row{Label: "jitter", Metric: "jitter", Stat: "p50", Unit: "us"},
			values: pairs(96, 95.8, 87.9, 97.4, 278.3, 179.1), changes: percents(-0.2, 10.8, -35.6)},
		{Row: Row{Label: "request rate", Metric: "rate", Stat: "p50", Unit: "1/s"},
			values: pairs(8238.7, 13600.8, 9803.7, 13541.5, 2017.9, 3479.5), changes: percents(65, 38, 72)},
		{Row: Row{Label: "completion time", Metric: "fct", Stat: "p50", Unit: "s"},
			values: pairs(14.8, 9.7, 12.4, 9.6, 56.1, 33), changes: percents(-34.7, -22.7, -41.2)},
		{Row: simasCPU, changes: percents(-16.2, -12.1, -23.2)},
		{Row: simasMemory},
	})

var simasFile = simasTable("file-transfer", "Chapter 5, file-transfer", "A file in one direction", "file",
	counts("1000 MiB", "100 MiB", "1 MiB"), "; a C program instead of ncat",
	[modes]time.Duration{3 * time.Minute, 90 * time.Second, 12 * time.Second}, []simasMetric{
		{Row: Row{Label: "completion time", Metric: "fct", Stat: "p50", Unit: "s"},
			values: pairs(10.5, 8.3, 9.5, 8.4, 6.9, 8.3), changes: percents(-21, -11.7, 20)},
		{Row: Row{Label: "throughput", Metric: "throughput", Stat: "p50", Unit: "Gbit/s"}},
		{Row: simasCPU, changes: percents(-5.8, -0.7, 13.7)},
		{Row: simasMemory},
	})

var simasRedis = simasTable("redis", "Chapter 5, redis", "One SET, then ten GETs, on 2 x 50 connections, like "+
	"memtier_benchmark", "redis",
	counts("1,000,000 operations", "100,000 operations", "2,000 operations"),
	"; the published latencies are means of runs",
	[modes]time.Duration{20 * time.Minute, 4 * time.Minute, 15 * time.Second}, []simasMetric{
		{Row: Row{Label: "operation rate", Metric: "rate", Stat: "p50", Unit: "1/s"},
			values: pairs(48005, 70765, 70428, 71332, 17528.5, 17232), changes: percents(47, 1.3, -1.7)},
		{Row: Row{Label: "latency p25", Metric: "latency", Stat: "p25", Unit: "ms", By: 1e-3}},
		{Row: Row{Label: "latency p50", Metric: "latency", Stat: "p50", Unit: "ms", By: 1e-3}},
		{Row: Row{Label: "latency mean", Metric: "latency", Stat: "mean", Unit: "ms", By: 1e-3},
			values: pairs(2.1, 1.4, 1.4, 1.4, 5.7, 5.8), changes: percents(-32.2, -1.4, 1.7)},
		{Row: Row{Label: "latency p75", Metric: "latency", Stat: "p75", Unit: "ms", By: 1e-3}},
		{Row: Row{Label: "jitter", Metric: "jitter", Stat: "p50", Unit: "ms", By: 1e-3}},
		{Row: Row{Label: "completion time", Metric: "fct", Stat: "p50", Unit: "s"},
			values: pairs(20, 14, 14, 14, 56.5, 57.5), changes: percents(-30, 0, 1.8)},
		{Row: simasCPU, changes: percents(8, 29, 22)},
		{Row: simasMemory},
	})

var (
	simasCPU    = Row{Label: "CPU", Metric: "cpu", Stat: "p50", Unit: "s"}
	simasMemory = Row{Label: "memory", Metric: "memory", Stat: "p50", Unit: "MiB"}
)

// pairs returns pairs of values, plain TCP and accelerated, by mesh.
func pairs(values ...float64) map[string][2]float64 {
	all := map[string][2]float64{}
	for i, mesh := range simasMeshes {
		all[mesh.name] = [2]float64{values[2*i], values[2*i+1]}
	}
	return all
}

func percents(values ...float64) map[string]float64 {
	all := map[string]float64{}
	for i, mesh := range simasMeshes {
		all[mesh.name] = values[i]
	}
	return all
}

// simasClaims returns the changes by acceleration that the work claims.
func simasClaims() (claims []Claim) {
	for _, mesh := range simasMeshes {
		for _, t := range []*Table{&simasEcho, &simasFile, &simasRedis} {
			for _, row := range t.Rows {
				if row.Group == mesh.name && row.Ratios != nil {
					claims = append(claims, simasClaim(t.Name, mesh.theirs, row))
				}
			}
		}
	}
	return append(claims, simasMemoryClaim, simasAmbientClaim)
}

// simasClaim holds if the change by acceleration is at least as good as the published one, to a tenth of a percent.
func simasClaim(table, mesh string, row Row) Claim {
	limit := math.Round(1000*row.Ratios["kerb"]) / 1000
	more := row.Metric == "rate"
	text := fmt.Sprintf("%s, %s: %s changes by %+.1f %%", table, mesh, strings.TrimPrefix(row.Label, row.Group+" "),
		100*(limit-1))
	switch {
	case more && limit <= 1:
		text += ", or more"
	case !more && limit >= 1:
		text += ", or less"
	}
	return Claim{Text: text, Where: "chapter 5", Evaluate: func(f *results) (bool, string) {
		ratio := f.positive(table, "kerb", row.Load, row.Metric, row.Stat) /
			f.positive(table, "plain", row.Load, row.Metric, row.Stat)
		rounded := math.Round(1000*ratio) / 1000
		return more && atLeast(rounded, limit) || !more && atMost(rounded, limit), fmt.Sprintf("%+.1f %%", 100*(ratio-1))
	}}
}

// simasMemoryClaim is in MB of 10^6 bytes.
var simasMemoryClaim = Claim{Text: "Acceleration takes 11.6 to 61.3 MB more memory", Where: "chapter 5",
	Evaluate: func(f *results) (bool, string) {
		least, most := math.Inf(1), math.Inf(-1)
		for _, t := range []*Table{&simasEcho, &simasFile, &simasRedis} {
			for _, load := range t.Loads[Published] {
				plain, kerb := f.positive(t.Name, "plain", load, "memory", "p50"), f.positive(t.Name, "kerb", load, "memory", "p50")
				more := (kerb - plain) * (1 << 20) / 1e6
				least, most = min(least, more), max(most, more)
			}
		}
		return most <= 61.3, fmt.Sprintf("%.1f to %.1f MB, for the agent and its maps, once per node", least, most)
	}}

var simasAmbientClaim = Claim{Text: "The same gains with Istio ambient", Where: "chapter 5",
	NotMeasured: "`kerb bench mesh --loads 'ambient/*'` measures ztunnel (docs/benchmarks.md): its sockets stay on TCP, " +
		"so that there is no gain, and no loss. The published results for ambient are within 2 % of those without a mesh " +
		"(ping-echo 122.0 and 121.4 us, redis 48,314 and 48,005 operations per second), and the published manifests " +
		"do not label their namespaces for ambient: ztunnel was probably not in the path"}
