// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"strings"
	"testing"

	"github.com/kerb-edge/kerb/bench/internal/pages"
)

// The table of docs/realtime.md about CTRL, DATA and LOG is that of the kept report.
func TestControllerTable(t *testing.T) {
	report, err := readReport("../docs/figures/controller.json.gz")
	if err != nil {
		t.Fatal(err)
	}
	pages.Check(t, "../docs/realtime.md", map[string]string{"controller": controllerCells{report}.receivers()})
}

type controllerCells struct{ *Report }

var controllerReceivers = []struct{ config, name string }{
	{"socket", "`socket`: one socket for all"},
	{"sockets-priority", "`sockets-priority`: three sockets, `SO_PRIORITY`, threads of different priority"},
	{"packet-mmap", "`packet-mmap`: a ring of an AF_PACKET socket"},
	{"afxdp", "`afxdp`: AF_XDP, copies"},
	{"io_uring", "`io_uring`: multishot receive"},
	{"dpdk", "`dpdk`: DPDK on AF_XDP (net_af_xdp), polls"},
	{"dpdk-packet", "`dpdk-packet`: DPDK on AF_PACKET (net_af_packet), polls"},
	{"ring", "`ring`: three classes, answers by `sendto`"},
	{"ring-reply", "`ring-reply`: the same, answers by the library"},
	{"kernel", "`kernel`: CTRL is answered by `action: answer`"},
}

// figures returns the figures of CTRL under the loads, separated by slashes, or nothing if the receiver has none.
func (r controllerCells) figures(config, class, metric, stat string, scale float64, loads ...string) string {
	var out []string
	for _, load := range loads {
		if c, ok := r.Find(config, class+"/"+load, metric, stat); ok {
			out = append(out, two(c.Value*scale))
		}
	}
	return strings.Join(out, " / ")
}

func (r controllerCells) receivers() string {
	out := head("receiver", "to the program, p50: alone / flood", "p99: alone / flood",
		"back at the sensor, p50: alone / flood", "p99: alone / flood", "p50 under cpu / memory / io / fork",
		"CPUs used, alone / flood", "bystander, %: alone / flood")
	for _, c := range controllerReceivers {
		out += row(c.name,
			r.figures(c.config, "ctrl", "to_program", "p50", 1, "alone", "flood"),
			r.figures(c.config, "ctrl", "to_program", "p99", 1, "alone", "flood"),
			r.figures(c.config, "ctrl", "to_sender", "p50", 1, "alone", "flood"),
			r.figures(c.config, "ctrl", "to_sender", "p99", 1, "alone", "flood"),
			r.figures(c.config, "ctrl", "to_sender", "p50", 1, "cpu", "memory", "io", "fork"),
			r.figures(c.config, "ctrl", "cpu", "p50", 1, "alone", "flood"),
			r.figures(c.config, "all", "bystander", "p50", 100, "alone", "flood"))
	}
	return out
}
