// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"crypto/x509"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/kerb-edge/kerb/internal/control/sandbox"
	"github.com/kerb-edge/kerb/internal/lab/wait"
)

const scraper = "token-of-a-scraper-of-metrics"

// scraping writes a certificate, its key and a token, and returns flags that serve metrics with them.
func scraping(t *testing.T, address string) []string {
	t.Helper()
	server := httptest.NewTLSServer(http.NotFoundHandler())
	server.Close()
	pair := server.TLS.Certificates[0]
	key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	flags := []string{"--metrics", address}
	for flag, data := range map[string][]byte{
		"certificate": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]}),
		"key":         pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}),
		"token":       []byte(scraper + "\n"),
	} {
		file := filepath.Join(dir, flag)
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
		flags = append(flags, "--metrics-"+flag, file)
	}
	return flags
}

// scrape requests a path of a program in the node's namespace with a token, and returns status code and body.
func (b *bed) scrape(address, path, token string) string {
	out, err := b.Lab.Node().Command(b.T.Context(), "curl", "--insecure", "--silent", "--max-time", "5", "--write-out",
		"\n%{http_code}", "--header", "Authorization: Bearer "+token, "https://"+address+path).Output()
	if err != nil {
		return err.Error()
	}
	end := strings.LastIndexByte(string(out), '\n')
	return string(out[end+1:]) + "\n" + string(out[:end])
}

// Both programs serve metrics to clients with the token, and nothing to others. They have all metrics that the alerts
// use.
func TestMetrics(t *testing.T) {
	const ofNode, ofController = "127.0.0.1:4601", "127.0.0.1:4602"
	b := newBed(t)
	b.stop(syscall.SIGKILL)
	b.flags = scraping(t, ofNode)
	b.start()
	leader := b.Lab.Node().Command(t.Context(), controllerProgram, append(scraping(t, ofController), "--kubeconfig",
		b.controllerConfig())...)
	leader.Stderr = b.log
	if err := sandbox.Start(leader); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = leader.Process.Kill(); _ = leader.Wait() })
	b.module("none", `{package: {name: nothing}, attach: {pods: {podSelector: {matchLabels: {app: web}}}}}`)
	b.module("rolling", `{package: {name: counter}, attach: {pods: {}}, rollout: {previous: {package: {name: counter}}}}`)
	b.pod("web", map[string]string{"app": "web"})
	b.pod("db", map[string]string{"app": "db"})

	expect := func(address string, want ...string) string {
		t.Helper()
		var got string
		missing := func() (out []string) {
			for _, line := range want {
				if !regexp.MustCompile(`(?m)^` + line + `$`).MatchString(got) {
					out = append(out, line)
				}
			}
			return out
		}
		wait.Until(t, "metrics of "+address, func() bool {
			got = b.scrape(address, "/metrics", scraper)
			return strings.HasPrefix(got, "200\n") && len(missing()) == 0
		}, func() any { return strings.Join(missing(), "\n") + "\n in " + got })
		return got
	}
	const api = `kerb_kube_api_requests_total\{method="`
	node := expect(ofNode, `kerb_kube_problem\{module="none",reason="Refused"\} 1`, `kerb_kube_pods 2`, `kerb_kube_modules 2`,
		`kerb_kube_pods_not_admitted 1`, `kerb_kube_synced 1`, `kerb_kube_syncs_total\{result="success"\} .+`,
		`kerb_kube_last_sync_timestamp_seconds .+`, `kerb_kube_snapshot_timestamp_seconds .+`, api+`GET",code="200"\} .+`,
		`kerb_kube_watch_lists_total\{resource="pods"\} 1`, `kerb_kube_watch_errors_total\{resource="pods"\} 0`,
		`kerb_kube_watch_last_event_timestamp_seconds\{resource="clustermodules"\} .+`, api+`PATCH",code="200"\} .+`,
		`kerb_kube_events_total\{result="written"\} 1`, `kerb_kube_build_info\{version=".+"\} 1`, `go_info\{.+`)
	control := expect(ofController, `kerb_kube_leader 1`, `kerb_kube_synced 1`,
		`kerb_kube_nodes\{state="ready"\} 1`, `kerb_kube_module_nodes\{module="none",state="failed"\} 1`,
		`kerb_kube_module_nodes\{module="rolling",state="ready"\} 1`,
		`kerb_kube_rollout\{module="rolling",reason="[A-Z].+"\} 1`, `kerb_kube_rollout_percent\{module="rolling"\} .+`,
		`kerb_kube_watch_lists_total\{resource="kerbnodes"\} 1`, api+`POST",code="201"\} .+`)
	for address, wrong := range map[string]string{ofNode: "", ofController: scraper + "x"} {
		got := b.scrape(address, "/metrics", wrong)
		if !strings.HasPrefix(got, "401\n") || strings.Contains(got, "kerb_kube") {
			t.Errorf("%s answers a client without the token: %s", address, got)
		}
		if got = b.scrape(address, "/debug/pprof/", scraper); !strings.HasPrefix(got, "403\n") {
			t.Errorf("%s has more than metrics: %s", address, got)
		}
	}

	const rules = "../../../deploy/prometheus/"
	text, err := os.ReadFile(rules + "kerb-kubernetes.rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	names := regexp.MustCompile(`\bkerb_[a-z_]+\b`).FindAllString(string(text), -1)
	for _, name := range names {
		if !strings.Contains(node+control, "\n# TYPE "+name+" ") {
			t.Errorf("an alert is about %s, which no program has", name)
		}
	}
	if len(names) < 6 {
		t.Errorf("alerts are about %v", names)
	}
	if _, err := exec.LookPath("promtool"); err != nil {
		t.Skip("needs promtool: make test-setup")
	}
	test := exec.Command("promtool", "test", "rules", "kerb-kubernetes.rules.test.yaml")
	test.Dir = rules
	if out, err := test.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}
