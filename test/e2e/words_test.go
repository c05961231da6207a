// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
)

// One drop has the same words in all outputs: module, verdict and reason. The page shows those of the API (test/ui).
func TestSameWords(t *testing.T) {
	n := newRunningNode(t)
	n.sendDropped(53)
	n.Eventually("packets are dropped", func() bool { return strings.Contains(n.must("drops"), "fw:drop") })

	n.expect("trace", []string{"--service", "db", "--port", "53", "--count", "1"}, "fw:drop (policy)")
	n.expect("trace", []string{"--service", "db", "--port", "53", "--count", "1", "-o", "json"}, // as in the API
		`"module":"fw","verdict":"drop","reason":"policy"`)
	n.expect("drops", []string{"--module", "fw", "--reason", "policy", "--count", "1"}, "fw:drop (policy)")
	n.expect("explain", []string{"packet", "udp 198.51.100.7:4000 > " + n.db.Addr4().String() + ":53", "--service", "db"},
		"fw:drop (policy)", "the packet is dropped by fw (policy)")
	n.expect("module", []string{"drops", "fw"}, "policy")
	n.expect("module", []string{"counts", "fw"}, "DROP")
	n.expect("top", []string{"drops", "--filter", "fw", "--count", "1"}, "fw", "policy")
	metrics := n.metrics()
	for _, want := range []string{`kerb_dropped_packets_total{module="fw",reason="policy"}`,
		`kerb_module_packets_total{module="fw",hook="tc-egress",direction="ingress",verdict="drop"}`} {
		if !strings.Contains(metrics, want) {
			t.Errorf("the metrics lack %s:\n%s", want, metrics)
		}
	}
	tshark, err := exec.LookPath("tshark")
	if err != nil {
		t.Log("without tshark the capture is not examined")
		return
	}
	file := filepath.Join(t.TempDir(), "dropped.pcapng")
	n.kerb("trace", "--service", "db", "--verdict", "drop", "--count", "1", "-w", file)
	comment, err := exec.Command(tshark, "-r", file, "-T", "fields", "-e", "frame.comment").Output()
	if err != nil || !strings.Contains(string(comment), "kerb: fw:drop (policy)") {
		t.Errorf("tshark shows %q, %v", comment, err)
	}
}

// A figure has the same value under its name in the API and in the metrics. The kept drop, the metric of its rule, the
// command line and the capture contain the same words: module, verdict, reason and note.
func TestSameFigures(t *testing.T) {
	n := newRunningNode(t)
	n.sendDropped(53)
	n.apply(counter(0))
	n.Eventually("packets are dropped", func() bool { return strings.Contains(n.must("drops"), "fw:drop") })
	n.Eventually("the module is measured", func() bool { // one packet in 4,096 on a CPU
		n.floods(n.web, n.db, 9, 4096)
		return strings.Contains(n.must("module", "counts", "fw", "-o", "json"), "p99Nanoseconds")
	})
	before := n.figures()
	metrics := n.metrics()
	after := n.figures()
	for name, from := range before {
		at := strings.Index(metrics, "\n"+name+" ")
		if at < 0 {
			t.Errorf("the metrics lack %s:\n%s", name, metrics)
			continue
		}
		value, err := strconv.ParseFloat(strings.Fields(metrics[at+1:])[1], 64)
		if err != nil || value < from || value > after[name] {
			t.Errorf("%s is %v, %v; in the API %v and then %v", name, value, err, from, after[name])
		}
	}

	var kept []v1.TracedPacket
	err := json.Unmarshal([]byte(n.must("drops", "--module", "fw", "--count", "1", "-o", "json")), &kept)
	if err != nil || len(kept) != 1 {
		t.Fatalf("%+v, %v", kept, err)
	}
	step := kept[0].Steps[len(kept[0].Steps)-1]
	if step.Module != "fw" || step.Verdict != "drop" || step.Reason != "policy" || step.Note != "rule" {
		t.Fatalf("the dropped packet has %+v", step)
	}
	words := "fw:drop (policy) rule=" + cmp.Or(step.Name, strconv.FormatUint(step.Value, 10))
	n.expect("drops", []string{"--module", "fw", "--count", "1"}, words)
	file := filepath.Join(t.TempDir(), "dropped.pcapng")
	n.kerb("drops", "--module", "fw", "--count", "1", "-w", file)
	if data, err := os.ReadFile(file); err != nil || !bytes.Contains(data, []byte("kerb: "+words)) {
		t.Errorf("the capture lacks %q, %v", words, err)
	}
}

// figures returns the figures of the API that are also metrics, by the name of the metric with labels.
func (n *node) figures() map[string]float64 {
	n.T.Helper()
	var all []v1.Module
	if err := json.Unmarshal([]byte(n.must("module", "list", "-o", "json")), &all); err != nil {
		n.T.Fatal(err)
	}
	out := map[string]float64{}
	for _, m := range all {
		name := m.Metadata.Name
		out[fmt.Sprintf(`kerb_module_memory_bytes{module=%q}`, name)] = float64(m.Status.Memory)
		for _, c := range m.Status.Counts {
			at := fmt.Sprintf(`module=%q,hook=%q,direction=%q`, name, c.Hook, c.Direction)
			for _, v := range c.Verdicts {
				out[fmt.Sprintf(`kerb_module_packets_total{%s,verdict=%q}`, at, v.Verdict)] = float64(v.Packets)
				out[fmt.Sprintf(`kerb_module_bytes_total{%s,verdict=%q}`, at, v.Verdict)] = float64(v.Bytes)
			}
			if c.Latency != nil {
				out[fmt.Sprintf(`kerb_module_latency_seconds_count{%s}`, at)] = float64(c.Latency.Packets)
			}
		}
		for _, d := range m.Status.Drops {
			out[fmt.Sprintf(`kerb_dropped_packets_total{module=%q,reason=%q}`, name, d.Reason)] = float64(d.Packets)
			for _, s := range d.Services {
				out[fmt.Sprintf(`kerb_service_dropped_packets_total{module=%q,service=%q,reason=%q}`, name, s.Service,
					d.Reason)] = float64(s.Packets)
			}
		}
	}
	if len(out) < 6 {
		n.T.Fatalf("the API has only %v", out)
	}
	return out
}

// The JSON output of the command line uses exactly the names of the API.
func TestSameNames(t *testing.T) {
	n := newRunningNode(t)
	n.sendDropped(53)
	n.apply(counter(0))
	for command, into := range map[string]any{
		"status": new(v1.NodeStatus), "service list": new([]v1.Service), "service get web": new(v1.Service),
		"module list": new([]v1.Module), "module get fw": new(v1.Module), "changes": new([]v1.ChangeRecord),
		"package list": new([]v1.Package), "virtualservice list": new([]v1.VirtualService), "model list": new([]v1.Model),
		"module counts": new([]v1.ModuleCount),
	} {
		words := append(strings.Fields(command), "-o", "json")
		out := n.must(words[0], words[1:]...)
		read := json.NewDecoder(strings.NewReader(out))
		read.DisallowUnknownFields()
		if err := read.Decode(into); err != nil {
			t.Errorf("kerb %s prints what the API has not: %v\n%.500s", command, err, out)
		}
	}
}

// metrics returns the response for Prometheus.
func (n *node) metrics() string {
	n.T.Helper()
	c := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", n.Socket())
	}}}
	defer c.CloseIdleConnections()
	r, err := c.Get("http://kerb/metrics")
	if err != nil {
		n.T.Fatal(err)
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		n.T.Fatal(err)
	}
	return string(text)
}
