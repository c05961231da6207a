// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kerb-edge/kerb/bench/internal/pages"
)

// The tables of chains in docs/benchmarks.md, with the list of missed goals, match the kept report.
func TestChainTables(t *testing.T) {
	report, err := readReport("../docs/figures/chain.json.gz")
	if err != nil {
		t.Fatal(err)
	}
	c := chainCells{report}
	pages.Check(t, page, map[string]string{"chain ratios": c.ratios(), "chain times": c.times(),
		"chain misses":       c.misses(),
		"chain instructions": c.instructions(), "chain flows": c.flows(), "chain loading": c.loading()})
}

type chainCells struct{ *Report }

var modules = []float64{1, 2, 4, 8, 16}

// column is a config and a kind of load.
type column struct{ config, kind string }

// find returns the cell of a metric with one stat per load.
func (r chainCells) find(config, load, metric string) Cell {
	c, ok := r.Find(config, load, metric, "p50")
	if !ok {
		c, ok = r.Find(config, load, metric, "max")
	}
	if !ok {
		panic(fmt.Sprintf("no %s of %s, %s", metric, config, load))
	}
	return c
}

// packet returns the time of a packet in ns, without the overhead of the test run.
func (r chainCells) packet(config, kind string, n float64) float64 {
	return n * r.find(config, fmt.Sprintf("%s/%v", kind, n), "per_module").Value
}

func (r chainCells) ratio(config, base, kind string, n float64) Ratio {
	load := fmt.Sprintf("%s/%v", kind, n)
	ratio, _ := r.find(config, load, "per_module").ratioTo(r.find(base, load, "per_module"))
	return ratio
}

func tenths(v float64) string {
	if v >= 100 {
		return number(v)
	}
	return fmt.Sprintf("%.1f", v)
}

func (r chainCells) ratios() string {
	out := fmt.Sprintf("%s, load %.1f:\n\n", r.Machine.CPU, r.Machine.Load) + head("modules", "Kerb, XDP",
		"tail calls, XDP", "Kerb, TC", "tail calls, TC", "TCX programs", "clsact filters")
	for _, n := range modules {
		cells := []string{fmt.Sprint(n)}
		for _, c := range []column{{"kerb", "xdp"}, {"tailcall", "xdp"}, {"kerb", "tc"}, {"tailcall", "tc"}, {"tcx", "tc"},
			{"clsact", "tc"}} {
			cells = append(cells, fmt.Sprintf("%.2f", r.ratio(c.config, "bare", c.kind, n).Median))
		}
		out += row(cells...)
	}
	return out
}

func (r chainCells) times() (out string) {
	for _, of := range []struct{ name, suffix string }{{"IPv4", ""}, {"IPv6", "-ipv6"}} {
		out += head(of.name+", ns", "Kerb, XDP", "uncounted", "`bare`", "tail calls", "Kerb, TC", "uncounted", "`bare`",
			"tail calls", "TCX programs", "clsact filters")
		for _, n := range modules {
			cells := []string{fmt.Sprint(n)}
			for _, kind := range []string{"xdp", "tc"} {
				for _, config := range []string{"kerb", "kerb-uncounted", "bare", "tailcall", "tcx", "clsact"} {
					if kind == "tc" || config != "tcx" && config != "clsact" {
						cells = append(cells, tenths(r.packet(config, kind+of.suffix, n)))
					}
				}
			}
			out += row(cells...)
		}
		out += "\n"
	}
	own := r.find("bare", "xdp/1", "packet").Value - r.packet("bare", "xdp", 1)
	return out + fmt.Sprintf("A test run's own time, which is not in them, is %s ns on XDP.\n", tenths(own))
}

// misses lists the loads that miss a goal, and the ratio. The goals: at most 1.10 times the hand-written program, or 1
// ns more with counts and up to two modules; and, by the lower quartile, not slower than the alternatives.
func (r chainCells) misses() string {
	rows := ""
	for _, kind := range []string{"xdp", "xdp-ipv6", "tc", "tc-ipv6", "tc-run", "tc-run-ipv6"} {
		for _, n := range modules {
			over := map[string]string{"kerb": "", "kerb-uncounted": ""}
			for config := range over {
				more := r.packet(config, kind, n) - r.packet("bare", kind, n)
				ratio := r.ratio(config, "bare", kind, n).Median
				if ratio > 1.1 && (config != "kerb" || n > 2 || more > 1) {
					over[config] = fmt.Sprintf("%.3f (%s ns more)", ratio, tenths(more))
				}
			}
			var slower []string
			for _, base := range []string{"tailcall", "tcx", "clsact"} {
				if _, ok := r.Find(base, fmt.Sprintf("%s/%v", kind, n), "per_module", "p50"); !ok {
					continue
				}
				if ratio := r.ratio("kerb", base, kind, n); ratio.Lower > 1 {
					slower = append(slower, fmt.Sprintf("%s: %.3f (%.3f)", base, ratio.Median, ratio.Lower))
				}
			}
			if over["kerb"]+over["kerb-uncounted"] != "" || len(slower) > 0 {
				rows += row(fmt.Sprintf("%s/%v", kind, n), over["kerb"], over["kerb-uncounted"],
					strings.Join(slower, "; "))
			}
		}
	}
	if rows == "" {
		return "None.\n"
	}
	return head("load", "`kerb` to `bare`", "`kerb-uncounted` to `bare`", "slower than (lower quartile)") + rows
}

func (r chainCells) instructions() string {
	out := head("executed, IPv4; IPv6", "Kerb, XDP", "uncounted", "`bare`", "Kerb, TC", "uncounted", "`bare`")
	for _, n := range modules {
		cells := []string{fmt.Sprint(n)}
		for _, kind := range []string{"xdp", "tc"} {
			for _, config := range []string{"kerb", "kerb-uncounted", "bare"} {
				cells = append(cells, fmt.Sprintf("%v; %v", r.find(config, fmt.Sprintf("%s/%v", kind, n), "executed").Value,
					r.find(config, fmt.Sprintf("%s-ipv6/%v", kind, n), "executed").Value))
			}
		}
		out += row(cells...)
	}
	return out
}

func (r chainCells) flows() string {
	more := func(kind, metric string) string {
		return number(r.find("kerb-flows", kind+"/1", metric).Value - r.find("kerb", kind+"/1", metric).Value)
	}
	return fmt.Sprintf("Recording the flow takes a packet %s ns on XDP and %s on TC, and %s and %s executed "+
		"instructions.\n", more("xdp", "packet"), more("tc", "packet"), more("xdp", "executed"), more("tc", "executed"))
}

func (r chainCells) loading() string {
	out := head("load_time, ms, p50", "Kerb", "tail calls", "TCX programs", "clsact filters", "`bare`")
	for _, n := range []float64{1, 8, 16} {
		for _, kind := range []string{"xdp", "tc"} {
			cells := []string{fmt.Sprintf("%s/%v", kind, n)}
			for _, config := range []string{"kerb", "tailcall", "tcx", "clsact", "bare"} {
				if kind == "xdp" && (config == "tcx" || config == "clsact") {
					cells = append(cells, "-")
					continue
				}
				cells = append(cells, tenths(r.find(config, cells[0], "load_time").Value))
			}
			out += row(cells...)
		}
	}
	return out
}
