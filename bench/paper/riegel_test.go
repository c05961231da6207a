// SPDX-License-Identifier: Apache-2.0

package paper

import "testing"

func TestClaimsOfRiegel(t *testing.T) {
	of := func(config, metric string) value { return value{"proxy", config, sameNode, metric, "p50"} }
	good := map[value]float64{}
	for metric, v := range map[string][3]float64{"connect": {4.66, 4.14, 4}, "jitter": {32.6, 8.2, 8},
		"throughput": {0.26, 21.2, 30}, "cpu": {0.2019, 0.0539, 0.05}} {
		good[of("tun-go", metric)], good[of("kerb", metric)], good[of("direct", metric)] = v[0], v[1], v[2]
	}
	sweep := func(config, metric, stat string) value { return value{"sweep", config, "sweep/one-node", metric, stat} }
	for config, v := range map[string]float64{"tun-go": 200, "kerb": 5000, "direct": 5000} {
		good[sweep(config, "bottleneck", "p50")] = v
	}
	good[sweep("kerb", "generator_limit", "sum")] = 1
	timeline := func(metric string) value { return value{"timeline", "kerb", "timeline/one-node", metric, "p50"} }
	for metric, v := range map[string]float64{"cpu_idle": 0, "cpu_load": 5, "cpu_after": 0.5, "memory_idle": 90,
		"memory_after": 92} {
		good[timeline(metric)] = v
	}
	checkClaims(t, riegelClaims, good,
		violation{0, map[value]float64{of("kerb", "connect"): 4.2}},
		violation{1, map[value]float64{of("kerb", "jitter"): 8.3}},
		violation{2, map[value]float64{of("kerb", "throughput"): 21}},
		violation{3, map[value]float64{of("kerb", "cpu"): 0.055}},
		violation{4, map[value]float64{sweep("kerb", "bottleneck", "p50"): 200}},
		violation{5, map[value]float64{timeline("cpu_after"): 2}},
		violation{5, map[value]float64{timeline("memory_after"): 95}})
}
