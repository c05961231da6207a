// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
)

// history is the JSON output of kerb history.
type history struct {
	Step   int
	Times  []float64
	Series []struct {
		v1.Series
		Values v1.Values
	}
}

// sampled returns the samples of a series of kerb history NAME. There are none before it has values.
func (n *node) sampled(of string, series v1.Series) (h history, values v1.Values) {
	n.T.Helper()
	if err := json.Unmarshal([]byte(n.must("history", of, "-o", "json")), &h); err != nil {
		n.T.Fatal(err)
	}
	for _, s := range h.Series {
		if s.Series == series {
			return h, s.Values
		}
	}
	return h, nil
}

// An operator reads the history of the services, the modules and the agent. It survives the agent, and can be imported
// into Prometheus.
func TestHistory(t *testing.T) {
	n := newRunningNode(t)
	n.refused(n.kerb("history"), 5, "the history is off", "history: {}")
	n.expect("top", []string{"modules", "--count", "1"}, "MODULE", "REDIRECT/S") // needs no history
	n.Stop()
	n.Configure("history: {}\n")
	n.start()
	n.apply(module("fw", "firewall", "app=web", map[string]any{"rules": []any{map[string]any{"action": "deny",
		"direction": "ingress", "protocol": "udp"}}}))
	stop := n.sendDenied()

	n.Eventually("kerb top shows drops", func() bool {
		return strings.Contains(n.must("top", "drops", "--filter", "fw", "--count", "1"), "policy")
	})
	dropped := v1.Series{Name: "kerb_dropped_packets_per_second", Module: "fw", Reason: "policy"}
	n.Eventually("drops are sampled", func() bool { _, values := n.sampled("fw", dropped); return len(values) > 0 })
	seen := v1.Series{Name: "kerb_module_packets_per_second", Module: "fw", Direction: "ingress", Verdict: "drop"}
	n.Eventually("packets of the module are sampled", func() bool { // a rate takes two samples
		_, values := n.sampled("fw", seen)
		return len(values) > 0
	})
	sends := v1.Series{Name: "kerb_service_packets_per_second", Service: "db", Direction: "egress"}
	n.Eventually("traffic is sampled", func() bool {
		_, values := n.sampled("db", sends)
		return len(values) > 0 && values[len(values)-1] > 100
	})
	took := v1.Series{Name: "kerb_module_latency_p99_seconds", Module: "fw", Direction: "ingress"}
	n.Eventually("the time that the module takes is sampled", func() bool { // one packet in 4,096 on a CPU
		n.floods(n.db, n.web, 9, 4096)
		_, values := n.sampled("fw", took)
		return slices.ContainsFunc(values, func(seconds float32) bool { return seconds > 0 && seconds < 0.01 })
	})
	lost := v1.Series{Name: "kerb_service_dropped_packets_per_second", Service: "web"}
	if h, values := n.sampled("web", lost); h.Step != 10 || len(values) == 0 || slices.Max(values) < 100 {
		t.Errorf("drops of web: %+v", h)
	}
	n.expect("history", nil, "node ", "process_cpu_seconds_per_second", "db ", "kerb_service_packets_per_second egress",
		"|")
	n.expect("history", []string{"fw", "--since", "10m"}, "kerb_module_packets_per_second ingress,drop", "SINCE 10m",
		took.Name+" ingress")
	n.refused(n.kerb("history", "--since", "1y"), 2, "--since")
	n.refused(n.kerb("status", "-o", "openmetrics"), 2, "openmetrics")
	n.follow("fw", dropped)
	if sent := stop(); sent == 0 {
		t.Error("nothing was sent")
	}

	n.Kill()
	n.start()
	if _, values := n.sampled("fw", dropped); len(values) == 0 {
		t.Error("the samples are lost after the agent was killed")
	}
	dir := t.TempDir()
	file, blocks := filepath.Join(dir, "node.om"), filepath.Join(dir, "data")
	err := os.WriteFile(file, []byte(n.must("history", "-o", "openmetrics")), 0o600)
	if err == nil {
		err = os.MkdirAll(filepath.Join(blocks, "wal"), 0o700) // promtool tsdb dump requires it
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"create-blocks-from", "openmetrics", file, blocks}, {"dump", blocks}} {
		out, err := exec.Command("promtool", append([]string{"tsdb"}, args...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s; make test-setup installs promtool", err, out)
		}
		want := `__name__="kerb_dropped_packets_per_second", module="fw", reason="policy"`
		if args[0] == "dump" && !strings.Contains(string(out), want) {
			t.Errorf("the blocks have %s", out)
		}
	}
	for _, info := range []string{"10s", "1m", "10m", "series.json"} {
		if f, err := os.Stat(filepath.Join(n.State, "samples", info)); err != nil || f.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", info, f, err)
		}
	}
}

// follow reads one sample per second, of a series that is not zero.
func (n *node) follow(of string, series v1.Series) {
	n.T.Helper()
	c := n.Command(n.T.Context(), "history", of, "--follow", "-o", "json")
	out, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		n.T.Fatal(err)
	}
	defer func() { _ = c.Process.Kill(); _ = c.Wait() }()
	var all []v1.Series
	var times []float64
	for lines := json.NewDecoder(out); len(times) < 3; {
		var l v1.HistoryLine
		if err := lines.Decode(&l); err != nil || l.Error != "" {
			n.T.Fatalf("%v %s", err, l.Error)
		}
		if l.Step > 0 {
			if all = l.Series; l.Step != 1 {
				n.T.Errorf("samples each %v s", l.Step)
			}
		} else if at := slices.Index(all, series); at >= 0 && l.Values[at] > 100 {
			times = append(times, l.Time)
		}
	}
	if !slices.IsSorted(times) || len(slices.Compact(times)) < 3 { // a sample for the files may come right before one
		n.T.Errorf("samples at %v", times)
	}
}
