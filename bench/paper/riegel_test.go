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
	checkClaims(t, riegelClaims, good,
		spoilt{0, map[value]float64{of("kerb", "connect"): 4.2}},
		spoilt{1, map[value]float64{of("kerb", "jitter"): 8.3}},
		spoilt{2, map[value]float64{of("kerb", "throughput"): 21}},
		spoilt{3, map[value]float64{of("kerb", "cpu"): 0.055}})
}
