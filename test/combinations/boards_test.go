// SPDX-License-Identifier: Apache-2.0

package combinations

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	kerbnode "github.com/kerb-edge/kerb/internal/lab/node"
	"github.com/kerb-edge/kerb/internal/lab/wait"
)

const deployed = "../../deploy"

// metricName matches the names of agents' metrics in a query.
var metricName = regexp.MustCompile(`\b(kerb|process)_[a-z_]+\b`)

// Prometheus accepts every query of the dashboards and alerts in deploy/, and their metrics exist on a node that runs
// all modules and has a problem.
func TestBoards(t *testing.T) {
	secrets := t.TempDir()
	f := newField(t, fmt.Sprintf("tcp: {address: '127.0.0.1:4600', certificate: %[1]s/cert, key: %[1]s/key, "+
		"metricsTokenFile: %[1]s/token}\n", credentials(t, secrets)))
	f.nodes[0].Apply(kerbnode.Module("nowhere", "counter", "app=nothing", nil),
		kerbnode.Module("audit", "firewall", "*", map[string]any{"mode": "audit"}))
	c := f.combine(builtins)
	for _, s := range f.servers {
		c.checkServer(s, s.virtual[0])
	}
	query := prometheus(t, f, secrets)
	exprs := append(boardQueries(t), ruleQueries(t)...)
	wanted := map[string]bool{}
	for i, expr := range exprs {
		exprs[i] = strings.NewReplacer("$__rate_interval", "5m", "$instance", ".*", "$service", ".*").Replace(expr)
		for _, name := range metricName.FindAllString(expr, -1) {
			wanted[name] = true
		}
	}
	if len(exprs) < 50 || len(wanted) < 40 {
		t.Errorf("%d queries about %d metrics; want 50 about 40, and more", len(exprs), len(wanted))
	}
	var names string
	missing := func() (all []string) {
		for name := range wanted {
			if !strings.Contains("\n"+names, "\n"+name+" =>") {
				all = append(all, name)
			}
		}
		return all
	}
	wait.Until(t, "Prometheus has all metrics of boards and alerts", func() bool {
		c.flood(netip.AddrPortFrom(f.servers[0].Addr4(), livePort), 5000) // one of 4,096 packets has its latency measured
		names, _ = query(`count by (__name__) ({__name__=~"(kerb|process)_.+"})`)
		return len(missing()) == 0
	}, func() any { return fmt.Sprintf("no %v, but %s", missing(), names) })
	for _, expr := range exprs {
		if _, err := query(expr); err != nil {
			t.Errorf("%s: %v", expr, err)
		}
	}
}

// flood sends datagrams, and does not wait for the replies.
func (c *combination) flood(to netip.AddrPort, datagrams int) {
	c.t.Helper()
	conn := c.dial("udp", to)
	defer conn.Close()
	for range datagrams {
		_, _ = conn.Write([]byte("measure"))
	}
}

// credentials writes the endpoint's certificate, its key and a token, and returns dir.
func credentials(t *testing.T, dir string) string {
	t.Helper()
	server := httptest.NewTLSServer(http.NotFoundHandler())
	server.Close()
	pair := server.TLS.Certificates[0]
	key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{
		"cert":  pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]}),
		"key":   pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}),
		"token": []byte(strings.Repeat("secret-", 6) + "\n"),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// prometheus runs Prometheus with the configuration in deploy/ on the first node, and returns a function that runs
// queries.
func prometheus(t *testing.T, f *field, secrets string) func(expr string) (string, error) {
	t.Helper()
	dir, ns := t.TempDir(), f.nodes[0].Lab.Node()
	config := strings.NewReplacer("/etc/prometheus/kerb/ca.pem", secrets+"/cert", "/etc/prometheus/kerb/token",
		secrets+"/token", `["192.0.2.1:4600", "192.0.2.2:4600"]`, `["127.0.0.1:4600"]`, "15s", "1s").
		Replace(read(t, "prometheus/prometheus.yaml"))
	for name, text := range map[string]string{"prometheus.yaml": config,
		"kerb.rules.yaml": read(t, "prometheus/kerb.rules.yaml")} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	var log strings.Builder
	server := ns.Command(ctx, "prometheus", "--config.file="+filepath.Join(dir, "prometheus.yaml"),
		"--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address=127.0.0.1:9090")
	server.Stdout, server.Stderr = &log, &log
	if err := server.Start(); err != nil {
		t.Fatalf("%v; make test-setup installs it", err)
	}
	t.Cleanup(func() {
		cancel()
		_ = server.Wait() // killed
		if t.Failed() {
			t.Logf("Prometheus said:\n%s", log.String())
		}
	})
	return func(expr string) (string, error) {
		out, err := ns.Command(ctx, "promtool", "query", "instant", "http://127.0.0.1:9090", expr).CombinedOutput()
		if err != nil {
			return "", fmt.Errorf("%w: %s", err, out)
		}
		return string(out), nil
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(deployed, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func boardQueries(t *testing.T) (exprs []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(deployed, "grafana", "*.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%v, %v", files, err)
	}
	for _, file := range files {
		var board struct {
			UID    string
			Panels []struct {
				Title   string
				Targets []struct{ Expr string }
			}
		}
		data, err := os.ReadFile(file)
		if err == nil {
			err = json.Unmarshal(data, &board)
		}
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if want := strings.TrimSuffix(filepath.Base(file), ".json"); board.UID != want {
			t.Errorf("%s has the uid %q", file, board.UID)
		}
		for _, p := range board.Panels {
			if len(p.Targets) == 0 {
				t.Errorf("%s: panel %q has no query", file, p.Title)
			}
			for _, target := range p.Targets {
				exprs = append(exprs, target.Expr)
			}
		}
	}
	return exprs
}

// ruleQueries returns the queries of the alerts, after promtool has accepted them and checked when they fire.
func ruleQueries(t *testing.T) (exprs []string) {
	t.Helper()
	test := exec.Command("promtool", "test", "rules", "kerb.rules.test.yaml")
	test.Dir = filepath.Join(deployed, "prometheus")
	if out, err := test.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	rules, tests := read(t, "prometheus/kerb.rules.yaml"), read(t, "prometheus/kerb.rules.test.yaml")
	for _, rule := range strings.Split(rules, "- alert: ")[1:] {
		name, _, _ := strings.Cut(rule, "\n")
		if !strings.Contains(tests, `alertname="`+name+`"`) {
			t.Errorf("alert %s has no test", name)
		}
		_, expr, _ := strings.Cut(rule, "expr: ")
		expr, _, _ = strings.Cut(expr, "\n        annotations:")
		expr = regexp.MustCompile(`\n        (for|labels): .*`).ReplaceAllString(expr, "")
		exprs = append(exprs, strings.TrimPrefix(expr, "|"))
	}
	return exprs
}
