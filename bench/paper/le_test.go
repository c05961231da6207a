// SPDX-License-Identifier: Apache-2.0

package paper

import "testing"

func TestClaimsOfLe(t *testing.T) {
	good := map[value]float64{}
	of := func(besides, config, load, metric, stat string) value {
		return value{besides, config, load + "/" + besides, metric, stat}
	}
	for _, besides := range []string{"idle", "stress"} {
		for _, load := range leCases {
			for config, v := range map[string][4]float64{"same-t2": {0.9, 20, 5, 4}, "same-t3": {9.5, 60, 900, 643}} {
				good[of(besides, config, load, "delay", "p50")] = v[0]
				good[of(besides, config, load, "delay", "p99")] = v[1]
				good[of(besides, config, load, "over100", "sum")] = v[2]
				good[of(besides, config, load, "lost", "sum")] = v[3]
			}
		}
	}
	module := of("idle", "kmod", "64/50k", "delay", "p50")
	good[module], good[of("idle", "array", "64/50k", "delay", "p50")] = 1, 0.9
	good[of("idle", "same-kmod", "64/50k", "delay", "p50")] = 9 // after two others
	checkClaims(t, leClaims, good,
		violation{0, map[value]float64{of("stress", "same-t2", "512/6k", "delay", "p50"): 1}},
		violation{1, medians(good, 9)},
		violation{2, map[value]float64{of("idle", "same-t3", "1024/3k", "delay", "p99"): 39}},
		violation{3, lateOnes(good, 499)},
		violation{4, map[value]float64{of("idle", "same-t3", "64/50k", "lost", "sum"): 4}},
		violation{5, map[value]float64{module: 1.4}})
}

// medians sets the medians of the socket.
func medians(good map[value]float64, v float64) map[value]float64 {
	changed := map[value]float64{}
	for k := range good {
		if k.config == "same-t3" && k.stat == "p50" {
			changed[k] = v - 0.1
		}
	}
	return changed
}

func lateOnes(good map[value]float64, v float64) map[value]float64 {
	changed := map[value]float64{}
	for k := range good {
		if k.config == "same-t3" && k.metric == "over100" {
			changed[k] = v
		}
	}
	return changed
}
