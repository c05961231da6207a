// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"slices"
	"testing"

	"github.com/kerb-edge/kerb/bench/internal/pages"
)

// The tables of intercept in docs/benchmarks.md and docs/realtime.md match the kept report.
func TestInterceptTables(t *testing.T) {
	report, err := readReport("../docs/figures/intercept.json.gz")
	if err != nil {
		t.Fatal(err)
	}
	c := interceptCells{report}
	pages.Check(t, page, map[string]string{"intercept delays": c.delays(), "intercept pairs": c.pairs()})
	pages.Check(t, "../docs/realtime.md", map[string]string{"intercept plain": c.plain()})
}

type interceptCells struct{ *Report }

// duel is a pair of one of Kerb's receivers and a socket with the same way of waiting.
type duel struct{ name, ring, socket string }

var duels = []duel{
	{"adaptive, nice -20 (`ringbuf`)", "ringbuf", "socket-adaptive-eager"},
	{"adaptive, FIFO", "ringbuf-adaptive-fifo", "socket-adaptive-fifo"},
	{"adaptive, ready", "ringbuf-adaptive-ready", "socket-adaptive-ready"},
	{"sleep, nice -20", "ringbuf-sleep-eager", "socket-eager"},
	{"sleep, FIFO", "ringbuf-sleep-fifo", "socket-fifo"},
	{"sleep, ready", "ringbuf-sleep-ready", "socket-ready"},
	{"spin, FIFO", "ringbuf-spin-fifo", "socket-spin-fifo"},
}

var interceptLoads = []string{"1024/3k/idle", "1024/3k/stress", "512/6k/idle", "512/6k/stress", "64/50k/idle",
	"64/50k/stress", "64/200k/idle", "64/200k/stress", "64/50k/io", "64/50k/memory"}

// interceptFigures are the rows of a load.
var interceptFigures = []string{"p50", "p99", "% above 100", "CPU"}

// value returns a figure of a receiver. The fraction above 100 us is that of all packets in the report's histogram. For
// clock-fifo, which receives no packets, it comes from the bins with bounds near 100 us.
func (r interceptCells) value(config, load, figure string) float64 {
	switch figure {
	case "CPU":
		return r.cell(config, load, "cpu", "p50")
	case "% above 100":
		late, all := 0.0, 0.0
		for _, h := range r.Histograms {
			if h.Config != config || h.Load != load || h.Metric != "delay" {
				continue
			}
			for _, b := range h.Bins {
				all += float64(b.Count)
				if b.UpTo > 100 {
					late += float64(b.Count)
				}
			}
		}
		if over, ok := r.Find(config, load, "over100", "sum"); ok {
			late = over.Value
		}
		return 100 * late / all
	}
	return r.cell(config, load, "delay", figure)
}

func (r interceptCells) cell(config, load, metric, stat string) float64 {
	c, ok := r.Find(config, load, metric, stat)
	if !ok {
		panic(fmt.Sprintf("no %s %s of %s, %s", metric, stat, config, load))
	}
	return c.Value
}

func two(v float64) string {
	if v >= 10 {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.2g", v)
}

func (r interceptCells) delays() string {
	names := []string{"load", ""}
	for _, d := range duels {
		names = append(names, d.name)
	}
	out := head(append(names, "plain socket", "clock")...)
	for _, load := range interceptLoads {
		for i, figure := range interceptFigures {
			cells := []string{load, figure}
			if i > 0 {
				cells[0] = ""
			}
			for _, d := range duels {
				cells = append(cells, two(r.value(d.ring, load, figure))+" / "+two(r.value(d.socket, load, figure)))
			}
			out += row(append(cells, two(r.value("socket", load, figure)), two(r.value("clock-fifo", load, figure)))...)
		}
	}
	return out
}

// plain compares the library with default options with a plain socket.
func (r interceptCells) plain() string {
	figures := interceptFigures[:3]
	out := head(append([]string{"load"}, figures...)...)
	for _, l := range []struct{ load, name string }{
		{"1024/3k/idle", "1024 bytes, 3,000/s, idle"},
		{"512/6k/idle", "512 bytes, 6,000/s, idle"},
		{"64/50k/idle", "64 bytes, 50,000/s, idle"},
		{"64/50k/stress", "64 bytes, 50,000/s, all CPUs busy"},
	} {
		cells := []string{l.name}
		for _, figure := range figures {
			cells = append(cells, two(r.value("ringbuf", l.load, figure))+" / "+two(r.value("socket", l.load, figure)))
		}
		out += row(cells...)
	}
	return out
}

// pairs counts the pairs with the same way of waiting in which the ring has the lower figure.
func (r interceptCells) pairs() string {
	out := head(append([]string{"the ring is lower than the socket that waits in the same way"}, interceptFigures...)...)
	for _, kind := range []struct {
		name  string
		duels []duel
	}{{"adaptive", duels[:3]}, {"sleeping", duels[3:6]}, {"spinning", duels[6:]}} {
		cells := []string{kind.name}
		for _, figure := range interceptFigures {
			lower, all := 0, 0
			for _, d := range kind.duels {
				for _, load := range interceptLoads {
					all++
					if r.value(d.ring, load, figure) < r.value(d.socket, load, figure) {
						lower++
					}
				}
			}
			cells = append(cells, fmt.Sprintf("%d of %d", lower, all))
		}
		out += row(cells...)
	}
	plain := []string{"default (`ringbuf`) against the plain socket"}
	for _, figure := range interceptFigures {
		var ratios []float64
		for _, load := range interceptLoads {
			if ring := r.value("ringbuf", load, figure); ring > 0 {
				ratios = append(ratios, r.value("socket", load, figure)/ring)
			}
		}
		plain = append(plain, fmt.Sprintf("%s to %s times", two(slices.Min(ratios)), two(slices.Max(ratios))))
	}
	return out + row(plain...)
}
