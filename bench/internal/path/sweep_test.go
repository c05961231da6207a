// SPDX-License-Identifier: Apache-2.0

package path

import (
	"io"
	"math"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kerb-edge/kerb/bench"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
)

// Rates rise by 50 Mbit/s to 1 Gbit/s, then by a quarter.
func TestSweepRates(t *testing.T) {
	rates := sweepRates(false)
	if want := []float64{50, 100, 150}; !slices.Equal(rates[:3], want) {
		t.Errorf("the first are %v", rates[:3])
	}
	if want := []float64{950, 1000, 1250, 1562.5}; !slices.Equal(rates[18:22], want) {
		t.Errorf("then %v", rates[18:22])
	}
	if quick := sweepRates(true); !slices.Equal(quick[:4], []float64{50, 525, 1000, 1250}) {
		t.Errorf("quick: %v", quick[:4])
	}
}

// Packets dropped because the receiver's buffer is full do not count as lost on the path. They end a sweep with the
// generator's limit, as does a sender that falls behind.
func TestWhoseLimit(t *testing.T) {
	const second = time.Second
	rate := 8 * datagram * 1000 / 1e6 // 1000 packets a second
	for _, tc := range []struct {
		flow      flow
		lost      float64
		generator bool
	}{
		{flow{sent: 1000, received: 1000, took: second}, 0, false},
		{flow{sent: 1000, received: 900, took: second}, 0.1, false},
		{flow{sent: 1000, received: 900, refused: 50, took: second}, 0.05, true},
		{flow{sent: 1000, received: 1001, took: second}, 0, false}, // the buffer of another socket was full
		{flow{sent: 900, received: 900, took: second}, 0, true},
		{flow{took: second}, 0, true},
	} {
		lost, generator := tc.flow.lost(), tc.flow.limitedByGenerator(rate)
		if math.Abs(lost-tc.lost) > 1e-9 || generator != tc.generator {
			t.Errorf("%+v: lost %v, the generator's limit: %v", tc.flow, lost, generator)
		}
	}
}

// A path with a limit of 8,000 packets/s and bursts of 2,000 is at its bottleneck after 50 Mbit/s, which are 4,464
// packets/s.
func TestSweepFindsTheBottleneck(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip(err)
	}
	lab, err := netlab.New("kbswp")
	if err != nil {
		t.Fatal(err)
	}
	defer lab.Close()
	hosts, err := lab.Hosts(2, netlab.HostOptions{})
	if err != nil {
		t.Fatal(err)
	}
	const rules = "table ip t { chain input { type filter hook input priority 0; " +
		"udp dport 5202 limit rate over 8000/second burst 2000 packets drop; }; }"
	cmd := hosts[1].Command(t.Context(), "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(rules)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	ways := []openConfig{{"limited", &Path{Client: hosts[0], Server: hosts[1], Address: hosts[1].Addr4()}}}
	number := uint64(0)
	var report *bench.Report
	for limit := (bench.Cell{Value: 1}); limit.Value == 1; { // a busy machine may not send 47,000 a second
		r := bench.NewRun(bench.Experiment{}, true, 1, nil, io.Discard)
		if err := sweep(t.Context(), r, "sweep/x", ways, &number); err != nil {
			t.Fatal(err)
		}
		report = r.Report()
		limit, _ = report.Find("limited", "sweep/x", "generator_limit", "sum")
	}
	end, _ := report.Find("limited", "sweep/x", "bottleneck", "p50")
	at50, _ := report.Find("limited", "sweep/x/50", "loss", "p50")
	at525, found := report.Find("limited", "sweep/x/525", "loss", "p50")
	if end.Value != 50 || at50.Value != 0 || !found || at525.Value < 50 { // 47,000 a second
		t.Errorf("bottleneck %v Mbit/s, loss at 50 %v%%, at 525 %v%%: %v", end.Value, at50.Value, at525.Value,
			report.Notes)
	}
	if _, tried := report.Find("limited", "sweep/x/1000", "loss", "p50"); tried {
		t.Error("the sweep continued beyond the bottleneck")
	}
	latency, found := report.Find("limited", "sweep/x/50", "oneway", "p50")
	if !found || latency.Value <= 0 || latency.Value > 1e5 {
		t.Errorf("one-way latency %v us", latency.Value)
	}
}

// A path without replies yields an error, or the loss of all packets, and no latency.
func TestSweepWithoutAWay(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	lab, err := netlab.New("kbswn")
	if err != nil {
		t.Fatal(err)
	}
	defer lab.Close()
	hosts, err := lab.Hosts(2, netlab.HostOptions{})
	if err != nil {
		t.Fatal(err)
	}
	p := &Path{Client: hosts[0], Server: hosts[1], Address: netip.MustParseAddr("192.0.2.1")}
	f, err := p.offer(50, 100*time.Millisecond, 1)
	if err == nil && (f.received > 0 || len(f.latencies) > 0) {
		t.Errorf("%+v", f)
	}
}
