// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
)

// One drop has the same words wherever it is shown: module, verdict and reason. The page has those of the API
// (test/ui).
func TestSameWords(t *testing.T) {
	n := newRunningNode(t)
	n.dropping(53)
	n.Eventually("packets are dropped", func() bool { return strings.Contains(n.must("drops"), "fw:drop") })

	n.wants("trace", []string{"--service", "db", "--port", "53", "--count", "1"}, "fw:drop (policy)")
	n.wants("trace", []string{"--service", "db", "--port", "53", "--count", "1", "-o", "json"}, // as the API has it
		`"module":"fw","verdict":"drop","reason":"policy"`)
	n.wants("drops", []string{"--module", "fw", "--reason", "policy", "--count", "1"}, "fw:drop (policy)")
	n.wants("explain", []string{"packet", "udp 198.51.100.7:4000 > " + n.db.Addr4().String() + ":53", "--service", "db"},
		"fw:drop (policy)", "the packet is dropped by fw (policy)")
	n.wants("module", []string{"drops", "fw"}, "policy")
	n.wants("module", []string{"counts", "fw"}, "DROP")
	n.wants("top", []string{"drops", "--filter", "fw", "--count", "1"}, "fw", "policy")
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

// What the command line prints as JSON has the names of the API, and no others.
func TestSameNames(t *testing.T) {
	n := newRunningNode(t)
	n.dropping(53)
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

// metrics is what Prometheus reads.
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
