// SPDX-License-Identifier: Apache-2.0

package paper

import (
	"testing"

	"github.com/kerb-edge/kerb/bench"
)

// value is a figure that claims read.
type value struct{ table, config, load, metric, stat string }

func reportOf(values map[value]float64) *Report {
	r := &Report{}
	for v, n := range values {
		if r.part(v.table) == nil {
			r.Parts = append(r.Parts, Part{Table: v.table, Report: &bench.Report{}})
		}
		p := r.part(v.table)
		p.Report.Cells = append(p.Report.Cells, bench.Cell{Config: v.config, Load: v.load, Metric: v.metric, Stat: v.stat,
			Value: n})
	}
	return r
}

// violation is a claim, by number, and the figures with which only this claim does not hold.
type violation struct {
	claim  int
	values map[value]float64
}

// checkClaims checks that all claims hold for good figures, and that each violation breaks its claim.
func checkClaims(t *testing.T, claims []Claim, good map[value]float64, bad ...violation) {
	t.Helper()
	tried := map[int]bool{}
	for _, s := range append([]violation{{claim: -1}}, bad...) {
		values := map[value]float64{}
		for v, n := range good {
			values[v] = n
		}
		for v, n := range s.values {
			if _, known := good[v]; !known {
				t.Errorf("nothing has %+v", v)
			}
			values[v] = n
		}
		tried[s.claim] = true
		for i, c := range claims {
			if c.Evaluate == nil {
				continue
			}
			if v := c.evaluate(reportOf(values)); v.outcome == notMeasured || (v.outcome == holdsNot) != (i == s.claim) {
				t.Errorf("spoilt for claim %d, claim %d (%s): %+v", s.claim, i, c.Text, v)
			}
		}
	}
	for i, c := range claims {
		if c.Evaluate != nil && !tried[i] {
			t.Errorf("nothing shows when %q does not hold", c.Text)
		}
	}
}

func TestClaimsOfGallego(t *testing.T) {
	of := func(config, metric string) value { return value{"1s", config, "rpl/1s", metric, "p50"} }
	accuracy := func(window string) value { return value{window, "kernel", "rpl/" + window, "accuracy", "p50"} }
	rate := func(size string) value { return value{"figure5", "plain", "size/" + size, "data_rate", "p50"} }
	good := map[value]float64{rate("64"): 28.5, rate("1500"): 90,
		accuracy("1s"): 0.99, accuracy("5s"): 1, accuracy("10s"): 1,
		of("user", "inference"): 100, of("kernel", "inference"): 3,
		of("user-generic", "lossfree_rate"): 45.5, of("kernel-generic", "lossfree_rate"): 43.1,
		of("user-generic", "cpu"): 100, of("kernel-generic", "cpu"): 94,
		of("user-generic", "load_time"): 789, of("kernel-generic", "load_time"): 830}
	checkClaims(t, gallegoClaims, good,
		violation{0, map[value]float64{accuracy("5s"): 0.99}},
		violation{1, map[value]float64{of("kernel", "inference"): 3.6}},
		violation{2, map[value]float64{of("kernel-generic", "lossfree_rate"): 46}},
		violation{2, map[value]float64{of("kernel-generic", "lossfree_rate"): 43}},
		violation{3, map[value]float64{of("kernel-generic", "cpu"): 95}},
		violation{4, map[value]float64{of("kernel-generic", "load_time"): 831}},
		violation{5, map[value]float64{rate("64"): 28.6}})
}

func TestClaimsOfSimas(t *testing.T) {
	good, bad := map[value]float64{}, []violation{}
	set := func(plain, kerb value, better float64) {
		good[plain], good[kerb] = 1, better
	}
	for _, mesh := range simasMeshes {
		for _, table := range simas.Tables {
			for _, row := range table.Rows {
				at := value{table.Name, "kerb", row.Load, row.Metric, row.Stat}
				plain := at
				plain.config = "plain"
				published, worse := row.Ratios["kerb"], 0.002
				switch {
				case row.Group != mesh.name:
				case row.Metric == "memory":
					set(plain, at, 2)
				case row.Ratios != nil:
					if row.Metric == "rate" {
						worse = -worse
					}
					set(plain, at, published-worse)
					bad = append(bad, violation{len(bad), map[value]float64{at: published + worse}})
				}
			}
		}
	}
	most := value{"redis", "kerb", "none/redis", "memory", "p50"}
	checkClaims(t, simasClaims(), good, append(bad, violation{len(bad), map[value]float64{most: 1 + 61.4e6/(1<<20)}})...)
}
