// SPDX-License-Identifier: Apache-2.0

package responder

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"

	"github.com/kerb-edge/kerb/bench"
	"github.com/kerb-edge/kerb/bench/internal/pages"
)

// The tables of open questions in docs/benchmarks.md match the kept reports.
func TestOpenQuestions(t *testing.T) {
	parts := map[string]string{}
	for name, write := range map[string]func(kept) string{"work": kept.work,
		"precision": kept.precision,
		"setpoint":  kept.setPoints,
		"priority":  kept.priority,
		"ipv6":      kept.ipv6,
		"energy":    kept.energy} {
		var r bench.Report
		part := ""
		err := bench.ReadJSON("../../docs/figures/responder-"+name+".json.gz", &r)
		if errors.Is(err, fs.ErrNotExist) && name == "energy" {
			part, err = "Not measured: no machine at hand has counters of energy.\n", nil
		} else if err == nil {
			part = kept{&r}.where() + write(kept{&r})
		}
		if err != nil {
			t.Fatal(err)
		}
		parts["responder "+name] = part
	}
	pages.Check(t, "../../docs/benchmarks.md", parts)
}

// kept is a report with the methods for its tables.
type kept struct{ *bench.Report }

func (k kept) where() string {
	text := k.Where()
	if why := k.Warnings(); len(why) > 0 {
		text += ". **A busy machine**: " + strings.Join(why, "; ")
	}
	if n := len(k.Unsound); n > 0 {
		text += fmt.Sprintf(". **Invalid** in %d rounds: %s", n, k.Unsound[0])
	}
	return text + ".\n\n"
}

// values returns a figure of several configs, "1.2 / 3.4".
func (k kept) values(configs []string, load, metric, stat string) string {
	var all []string
	for _, config := range configs {
		text := "-"
		if c, ok := k.Find(config, load, metric, stat); ok {
			text = short(c.Value)
		}
		all = append(all, text)
	}
	return strings.Join(all, " / ")
}

func short(v float64) string {
	switch {
	case v >= 1e6:
		return fmt.Sprintf("%.3gM", v/1e6)
	case v >= 1e4:
		return fmt.Sprintf("%.3gk", v/1e3)
	case v >= 10 || v == float64(int(v)):
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.2g", v)
}

// ratio returns the median of the rounds' ratios of two configs.
func (k kept) ratio(config, base, load, metric, stat string) (float64, bool) {
	a, _ := k.Find(config, load, metric, stat)
	b, _ := k.Find(base, load, metric, stat)
	var all []float64
	for i := range min(len(a.Rounds), len(b.Rounds)) {
		if b.Rounds[i] > 0 {
			all = append(all, a.Rounds[i]/b.Rounds[i])
		}
	}
	return bench.Median(all), len(all) > 0
}

func tableRow(cells ...string) string { return "| " + strings.Join(cells, " | ") + " |\n" }

func tableHead(cells ...string) string {
	return tableRow(cells...) + "|" + strings.Repeat("---|", len(cells)) + "\n"
}

// loadsOf returns the loads of a family in the report, in order.
func (k kept) loadsOf(family string) (all []string) {
	seen := map[string]bool{}
	for _, c := range k.Cells {
		if strings.HasPrefix(c.Load, family+"/") && !seen[c.Load] {
			seen[c.Load] = true
			all = append(all, c.Load)
		}
	}
	return all
}

func numberOf(load string) string { return load[strings.Index(load, "/")+1:] }

var workConfigs = []string{"user", "user-best", "afxdp", "kernel"}

// work leaves out figures that other programs on the CPUs falsify, since kernel work in their time is charged to them.
func (k kept) work() string {
	loads := k.loadsOf("work")
	if len(k.Warnings()) > 0 {
		out := tableHead("steps", "alone, p50, us", "`kernel` / `user`", "`kernel` / `user-best`", "`kernel` / `afxdp`")
		for _, load := range loads {
			cells := []string{numberOf(load), k.values(workConfigs, load, "rtt", "p50")}
			for _, base := range workConfigs[:3] {
				ratio, _ := k.ratio("kernel", base, load, "rtt", "p50")
				cells = append(cells, fmt.Sprintf("%.2f", ratio))
			}
			out += tableRow(cells...)
		}
		return out + "\nCPU time, bystanders and the published metric are left out, as other programs used the CPUs.\n"
	}
	out := tableHead("steps", "alone, p50, us", "120 threads, us", "client busy, %", "servers busy, %", "CPU, us",
		"bystander, p50, us", "bystander, p99, us")
	for _, load := range loads {
		v := func(metric, stat string) string { return k.values(workConfigs, load, metric, stat) }
		out += tableRow(numberOf(load), v("rtt", "p50"), v("thread_mean", "p50"), v("client_busy", "p50"),
			v("server_busy", "p50"), v("cpu", "p50"), v("bystander_rtt", "p50"), v("bystander_rtt", "p99"))
	}
	cells := []string{"`kernel` divided by"}
	for _, load := range loads {
		cells = append(cells, numberOf(load)+" steps")
	}
	out += "\n" + tableHead(append(cells, "less up to")...)
	for _, f := range []struct{ name, metric, stat string }{{"alone, p50", "rtt", "p50"},
		{"120 threads", "thread_mean", "p50"}, {"CPU", "cpu", "p50"}, {"bystander, p99", "bystander_rtt", "p99"}} {
		for _, base := range workConfigs[:3] {
			out += k.workRatios(loads, f.name+", `"+base+"`", base, f.metric, f.stat)
		}
	}
	return out + "\n" + k.unbound(loads)
}

// workRatios ends with the maximum number of steps up to which the kernel is better.
func (k kept) workRatios(loads []string, name, base, metric, stat string) string {
	cells, upTo, better := []string{name}, "nowhere", true
	for _, load := range loads {
		ratio, ok := k.ratio("kernel", base, load, metric, stat)
		if !ok {
			cells, better = append(cells, "-"), false
			continue
		}
		cells = append(cells, fmt.Sprintf("%.2f", ratio))
		if better = better && ratio < 1; better {
			upTo = numberOf(load)
		}
	}
	return tableRow(append(cells, upTo)...)
}

// unbound returns the published metric where the client is not the bottleneck.
func (k kept) unbound(loads []string) string {
	const limit = 90 // %
	var parts []string
	for _, load := range loads {
		unbound := true
		for _, config := range []string{"user", "kernel"} {
			client, ok := k.Find(config, load, "client_busy", "p50")
			server, ok2 := k.Find(config, load, "server_busy", "p50")
			unbound = unbound && ok && ok2 && client.Value < limit && server.Value >= limit
		}
		if ratio, ok := k.ratio("user", "kernel", load, "thread_mean", "p50"); ok && unbound {
			parts = append(parts, fmt.Sprintf("%.2f times (%s steps)", ratio, numberOf(load)))
		}
	}
	if len(parts) == 0 {
		return "By the published metric, there is no load in which the servers' CPU was at least 90% busy and the client's " +
			"was not, of both `user` and `kernel`.\n"
	}
	return "By the published metric, where the servers' CPU was at least 90% busy and the client's was not, of both " +
		"`user` and `kernel`, `user` takes " + strings.Join(parts, ", ") + " as long as `kernel`.\n"
}

func (k kept) precision() string {
	out := tableHead("cars/s", "limit by", "not the right one, %", "error, mean / p99 / max, km/h",
		"age, mean / p99 / max, ms")
	for _, load := range k.loadsOf("precision") {
		for _, config := range precisionConfigs {
			v := func(metric, stat string) string { return k.values([]string{config}, load, metric, stat) }
			three := func(metric string) string {
				return v(metric, "mean") + " / " + v(metric, "p99") + " / " + v(metric, "max")
			}
			out += tableRow(numberOf(load), "`"+config+"`", v("off", "p50"), three("error"), three("age"))
		}
	}
	return out
}

// setPoints leaves out times if other programs use the CPUs, for which the agent would wait.
func (k kept) setPoints() string {
	if len(k.Warnings()) > 0 {
		out := tableHead("threads", "set by", "old answers to later requests", "set")
		for _, load := range k.loadsOf("setpoint") {
			for _, config := range []string{"user", "put"} {
				out += tableRow(numberOf(load), "`"+config+"`", k.values([]string{config}, load, "stale", "sum"),
					k.values([]string{config}, load, "set_points", "sum"))
			}
		}
		return out + "\nTimes are left out, as other programs used the CPUs.\n"
	}
	out := tableHead("threads", "set by", "set, p50 / p99, us", "first new answer, p50 / p99, us",
		"last old answer, p50 / p99, us", "old answers to later requests", "set")
	for _, load := range k.loadsOf("setpoint") {
		for _, config := range setPointConfigs {
			v := func(metric, stat string) string { return k.values([]string{config}, load, metric, stat) }
			pair := func(metric string) string { return v(metric, "p50") + " / " + v(metric, "p99") }
			out += tableRow(numberOf(load), "`"+config+"`", pair("set"), pair("new_after"), pair("old_until"),
				v("stale", "sum"), v("set_points", "sum"))
		}
	}
	return out
}

func (k kept) priority() string {
	out := tableHead("low, 1/s", "answered by", "high, p50 / p99, us", "high, lost, %", "low, sent, 1/s",
		"low, answered, 1/s")
	for _, load := range k.loadsOf("priority") {
		for _, config := range priorityConfigs {
			v := func(metric, stat string) string { return k.values([]string{config}, load, metric, stat) }
			out += tableRow(numberOf(load), "`"+config+"`", v("high_rtt", "p50")+" / "+v("high_rtt", "p99"),
				v("high_lost", "p50"), v("low_sent", "p50"), v("low_answered", "p50"))
		}
	}
	return out
}

func (k kept) ipv6() string {
	cells := []string{"load", ""}
	for _, config := range ipv6Configs {
		cells = append(cells, "`"+config+"`")
	}
	out := tableHead(append(cells, "`kernel` / `user`")...)
	for _, load := range append(k.loadsOf("direct6"), k.loadsOf("routed6")...) {
		for _, f := range []struct{ name, metric string }{{"p50 / p99, us", "rtt"}, {"without loss, 1/s", "lossfree_rate"},
			{"CPU, us", "cpu"}} {
			if f.metric == "cpu" && len(k.Warnings()) > 0 {
				continue // kernel work in the time of other programs is charged to them
			}
			cells := []string{load, f.name}
			for _, config := range ipv6Configs {
				text := k.values([]string{config}, load, f.metric, "p50")
				if f.metric == "rtt" {
					text += " / " + k.values([]string{config}, load, "rtt", "p99")
				}
				cells = append(cells, text)
			}
			ratio, _ := k.ratio("kernel", "user", load, f.metric, "p50")
			out += tableRow(append(cells, fmt.Sprintf("%.2f", ratio))...)
		}
	}
	return out
}

func (k kept) energy() string {
	out := tableHead("requests/s", "`user`", "`mixed`", "`kernel`", "`reflector`")
	for _, load := range k.loadsOf("energy") {
		cells := []string{numberOf(load)}
		for _, config := range []string{"user", "mixed", "kernel", "reflector"} {
			cells = append(cells, k.values([]string{config}, load, "energy", "p50"))
		}
		out += tableRow(cells...)
	}
	return out
}
