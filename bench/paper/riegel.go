// SPDX-License-Identifier: Apache-2.0

package paper

import (
	"fmt"
	"time"

	"github.com/kerb-edge/kerb/bench"
	_ "github.com/kerb-edge/kerb/bench/proxy"
)

func init() { register(&riegel) }

var riegel = Work{
	Name:   "riegel",
	Title:  "Riegel, a module manager for an orchestrated edge (TU Munich, 2024)",
	Tables: []Table{riegelProxy},
	Claims: riegelClaims,
}

const sameNode = "same-node/ipv4"

// before and after are published of the proxy in user space and of that in eBPF.
func before(tun, kerb float64) map[string]float64 {
	return map[string]float64{"tun-go": tun, "kerb": kerb}
}

var riegelProxy = Table{
	Name:       "proxy",
	Title:      "Table 5.1, figures 4.1 to 4.3 and 4.5: a service by its virtual address, on one node",
	Shows:      "TCP handshakes, jitter of UDP at 1 Mbit/s, one CUBIC stream and CPU of 100 Mbit/s",
	Counts:     counts("15 handshakes, streams of 20 s", "15 handshakes, streams of 2 s", "15 handshakes, streams of 1 s"),
	Experiment: "proxy",
	Loads:      Same([]string{sameNode}),
	Rounds:     [modes]int{30, 10, 1},
	Takes:      [modes]time.Duration{2 * time.Hour, 6 * time.Minute, 30 * time.Second},
	Configs:    []Config{{"tun-go", "Oakestra's proxy"}, {"kerb", "eBPF proxy"}, {"nftables", ""}, {"direct", ""}},
	Differs: "tun-go is a proxy built like Oakestra's in place of NetManager; latency is that of connect(2) with both " +
		"ends on one CPU in place of hping3",
	Rows: []Row{
		{Label: "latency", Load: sameNode, Metric: "connect", Stat: "p50", Unit: "ms", By: 1e-3,
			Published: before(4.66, 4.14)},
		{Label: "jitter", Load: sameNode, Metric: "jitter", Stat: "p50", Unit: "ms", By: 1e-3,
			Published: before(0.0326, 0.0082)},
		{Label: "throughput", Load: sameNode, Metric: "throughput", Stat: "p50", Unit: "Gbit/s",
			Published: before(0.26, 21.2)},
		{Label: "CPU at 100 Mbit/s", Load: sameNode, Metric: "cpu", Stat: "p50", Unit: "%", By: 100,
			Published: before(20.19, 5.39)},
	},
	Figures: []bench.Figure{
		{Kind: "cdf", Name: "4-1", Title: "Figure 4.1: latency of TCP handshakes", Metric: "connect"},
		{Kind: "box", Name: "4-2", Title: "Figure 4.2: jitter at 1 Mbit/s", Metric: "jitter"},
		{Kind: "cdf", Name: "4-2-cdf", Title: "Figure 4.2: jitter at 1 Mbit/s", Metric: "jitter"},
		{Kind: "box", Name: "4-3", Title: "Figure 4.3: throughput of one stream", Metric: "throughput"},
		{Kind: "cdf", Name: "4-3-cdf", Title: "Figure 4.3: throughput of one stream", Metric: "throughput"},
	},
}

// riegelClaim holds if the ratio of Kerb's figure to the user-space proxy's is at most, or at least, the published one.
func riegelClaim(text, label, metric string, holds func(ratio, limit float64) bool) Claim {
	return Claim{Text: text, Where: "table 5.1", Judge: func(f *found) (bool, string) {
		of := func(config string) float64 { return f.positive("proxy", config, sameNode, metric, "p50") }
		ratio := of("kerb") / of("tun-go")
		why := fmt.Sprintf("%+.1f %%, and against the way without a proxy %+.1f %%", 100*(ratio-1),
			100*(of("kerb")/of("direct")-1))
		return holds(ratio, riegelProxy.publishedRatio(label, "kerb", "tun-go")), why
	}}
}

var riegelClaims = []Claim{
	riegelClaim("Latency is 11.2 % lower", "latency", "connect", atMost),
	riegelClaim("Jitter is 74.9 % lower", "jitter", "jitter", atMost),
	riegelClaim("Throughput of TCP is 8054 % higher", "throughput", "throughput", atLeast),
	riegelClaim("100 Mbit/s take 73.3 % less CPU", "CPU at 100 Mbit/s", "cpu", atMost),
	{Text: "One-way latency and loss stay low up to a bottleneck, in steps of 50 Mbit/s of UDP", Where: "figure 4.4",
		NotMeasured: "no experiment here takes one-way latency by rate"},
	{Text: "CPU and memory return to what they were before after a load", Where: "figures 4.5 and 4.6",
		NotMeasured: "`kerb bench scale` and `control` have memory and time of deployments, not over time"},
}
