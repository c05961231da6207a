// SPDX-License-Identifier: Apache-2.0

package otlp

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	logs "go.opentelemetry.io/proto/otlp/collector/logs/v1"
	metrics "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	"google.golang.org/protobuf/proto"

	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/lab/node"
	"github.com/kerb-edge/kerb/internal/lab/node/nodetest"
	"github.com/kerb-edge/kerb/internal/lab/wait"
)

func TestMain(m *testing.M) { os.Exit(nodetest.Main(m)) }

// collector takes what is exported, as the messages of OTLP that it is.
type collector struct {
	*httptest.Server
	mu      sync.Mutex
	away    bool
	metrics map[string]float64             // the sum of all points, by name
	logs    map[string][]map[string]string // attributes, by name of the event; the body is "body"
	service string                         // of the resource
	header  string
}

func newCollector(t *testing.T) *collector {
	c := &collector{metrics: map[string]float64{}, logs: map[string][]map[string]string{}}
	c.Server = httptest.NewServer(c)
	t.Cleanup(c.Close)
	return c
}

func (c *collector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var body io.Reader = r.Body
	if r.Header.Get("Content-Encoding") == "gzip" {
		body, _ = gzip.NewReader(r.Body)
	}
	data, _ := io.ReadAll(body)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.away {
		http.Error(w, "away", http.StatusBadRequest)
		return
	}
	c.header = r.Header.Get("Kerb-Test")
	switch r.URL.Path {
	case "/v1/metrics":
		var in metrics.ExportMetricsServiceRequest
		_ = proto.Unmarshal(data, &in)
		c.takeMetrics(&in)
	case "/v1/logs":
		var in logs.ExportLogsServiceRequest
		_ = proto.Unmarshal(data, &in)
		c.takeLogs(&in)
	}
}

func (c *collector) takeMetrics(in *metrics.ExportMetricsServiceRequest) {
	for _, of := range in.ResourceMetrics {
		c.service = attributes(of.Resource.Attributes)["service.name"]
		for _, scope := range of.ScopeMetrics {
			for _, m := range scope.Metrics {
				c.metrics[m.Name] = 0
				for _, p := range slices.Concat(m.GetSum().GetDataPoints(), m.GetGauge().GetDataPoints()) {
					c.metrics[m.Name] += p.GetAsDouble()
				}
			}
		}
	}
}

func (c *collector) takeLogs(in *logs.ExportLogsServiceRequest) {
	for _, of := range in.ResourceLogs {
		for _, scope := range of.ScopeLogs {
			for _, r := range scope.LogRecords {
				record := attributes(r.Attributes)
				record["body"] = r.Body.GetStringValue()
				c.logs[r.EventName] = append(c.logs[r.EventName], record)
			}
		}
	}
}

func attributes(all []*common.KeyValue) map[string]string {
	out := map[string]string{}
	for _, a := range all {
		switch v := a.Value.Value.(type) {
		case *common.AnyValue_StringValue:
			out[a.Key] = v.StringValue
		case *common.AnyValue_ArrayValue:
			for _, one := range v.ArrayValue.Values {
				out[a.Key] += one.GetStringValue() + " "
			}
		default:
			out[a.Key] = fmt.Sprint(a.Value.GetIntValue() + int64(a.Value.GetDoubleValue()))
		}
	}
	return out
}

// receive has the exporter run against the agent of a node until the test ends.
func (c *collector) receive(t *testing.T, n *nodetest.Node) {
	t.Setenv(endpoint, c.URL)
	t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", "kerb-test=yes")
	t.Setenv("OTEL_BLRP_SCHEDULE_DELAY", "50")
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- Run(ctx, Options{Agent: n.Socket(), Interval: 100 * time.Millisecond},
			slog.New(slog.NewTextHandler(t.Output(), nil)))
	}()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func (c *collector) has(event string, want map[string]string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.ContainsFunc(c.logs[event], func(r map[string]string) bool {
		for k, v := range want {
			if !strings.Contains(r[k], v) {
				return false
			}
		}
		return true
	})
}

func (c *collector) seen() any {
	c.mu.Lock()
	defer c.mu.Unlock()
	return fmt.Sprint(slices.Sorted(maps.Keys(c.metrics)), c.logs)
}

// What the agent reports reaches the collector: metrics by their names, and changes, events and drops once each.
func TestExport(t *testing.T) {
	n := nodetest.New(t)
	n.Start()
	web, db := n.Host("web"), n.Host("db")
	n.Apply(node.Service(web), node.Service(db))
	c := newCollector(t)
	c.receive(t, n)
	await := func(what string, ok func() bool) {
		t.Helper()
		wait.Until(t, what, ok, c.seen)
	}
	await("metrics", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.metrics["kerb_services"] == 2 && c.service == "kerb" && c.header == "yes"
	})
	fw := node.Module("fw", "firewall", "*", map[string]any{"rules": []any{map[string]any{"action": "deny",
		"protocol": "udp", "dstPort": 4001, "direction": "egress", "name": "no-4001"}},
		"defaultPolicy": map[string]any{"ingress": "allow"}})
	n.Apply(fw)
	await("the change", func() bool {
		return c.has("kerb.change", map[string]string{"kerb.resources": "Module/fw", "kerb.change.outcome": "done",
			"body": "create Module fw"})
	})
	if c.has("kerb.change", map[string]string{"kerb.resources": "Service/web"}) {
		t.Error("a change of before is exported")
	}
	await("an event of the control plane", func() bool {
		return c.has("kerb.event", map[string]string{"kerb.resource.name": "fw", "kerb.event.reason": "Started"})
	})
	sendUDP(t, web, net.JoinHostPort(db.Addr4().String(), "4001"))
	await("the drop", func() bool {
		return c.has("kerb.drop", map[string]string{"kerb.service": "web", "kerb.module": "fw",
			"kerb.drop.reason": "policy", "kerb.note": "rule", "kerb.note.value": "no-4001",
			"network.transport": "udp", "destination.port": "4001",
			"destination.address": db.Addr4().String()})
	})
	await("the counter of drops", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.metrics["kerb_dropped_packets_total"] == 1
	})
	for repeated := range 2 {
		if err := n.Node.Apply(node.Module("fw", "none", "*", nil)); err == nil {
			t.Fatal("a package that does not exist is accepted")
		}
		await("the refusal", func() bool {
			return c.has("kerb.change", map[string]string{"kerb.change.outcome": "refused", "body": "refused: ",
				"kerb.change.repeated": fmt.Sprint(repeated)})
		})
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.logs["kerb.drop"]) != 1 || len(c.logs["kerb.change"]) != 3 {
		t.Errorf("not once each: %v", c.logs)
	}
}

// The exporter survives a restart of its agent, and a collector that is away for a while.
func TestExportContinues(t *testing.T) {
	n := nodetest.New(t)
	c := newCollector(t)
	c.receive(t, n) // there is no agent yet
	n.Start()
	web := n.Host("web")
	count := func() int {
		c.mu.Lock()
		defer c.mu.Unlock()
		return len(c.metrics)
	}
	wait.Until(t, "metrics", func() bool { return count() > 0 }, c.seen)
	n.Kill()
	n.Start()
	c.mu.Lock()
	c.away = true
	c.mu.Unlock()
	n.Apply(node.Service(web))
	c.mu.Lock()
	c.away = false
	clear(c.metrics)
	c.mu.Unlock()
	wait.Until(t, "metrics again", func() bool { return count() > 0 }, c.seen)
	n.Apply(node.Module("count", "counter", "*", nil))
	wait.Until(t, "changes", func() bool {
		return c.has("kerb.change", map[string]string{"kerb.resources": "Module/count"})
	}, c.seen)
}

// What counts from 1 again is new.
func TestPurgedAgent(t *testing.T) {
	n := nodetest.New(t)
	n.Start()
	c := newCollector(t)
	for i := range 5 {
		n.Apply(node.Module(fmt.Sprint("count", i), "counter", "none", nil))
	}
	c.receive(t, n)
	n.Apply(node.Module("before", "counter", "none", nil))
	wait.Until(t, "a change", func() bool {
		return c.has("kerb.change", map[string]string{"kerb.resources": "Module/before"})
	}, c.seen)
	n.Kill()
	n.Purge()
	if err := os.RemoveAll(filepath.Join(n.Dir, "state")); err != nil {
		t.Fatal(err)
	}
	n.Start()
	n.Apply(node.Module("after", "counter", "none", nil))
	wait.Until(t, "the first change after a purge", func() bool {
		return c.has("kerb.change", map[string]string{"kerb.resources": "Module/after", "kerb.change.number": "1"})
	}, c.seen)
}

// Nothing is sent without a collector.
func TestNoCollector(t *testing.T) {
	var said bytes.Buffer
	err := Run(t.Context(), Options{Interval: time.Second}, slog.New(slog.NewTextHandler(&said, nil)))
	if err == nil || !strings.Contains(err.Error(), endpoint) {
		t.Errorf("%v", err)
	}
	t.Setenv(endpoint, "http://127.0.0.1:1")
	if err := Run(t.Context(), Options{}, slog.New(slog.NewTextHandler(&said, nil))); err == nil {
		t.Error("no interval is accepted")
	}
}

func sendUDP(t *testing.T, from *netlab.Host, to string) {
	t.Helper()
	err := from.Do(func() error {
		conn, err := net.Dial("udp", to)
		if err != nil {
			return err
		}
		defer conn.Close()
		_, err = conn.Write([]byte("x"))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
