// SPDX-License-Identifier: Apache-2.0

package helm

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"github.com/kerb-edge/kerb/internal/lab/kubeapi"
	"github.com/kerb-edge/kerb/internal/lab/kubeapi/kubeapitest"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/lab/pki"
	"github.com/kerb-edge/kerb/internal/lab/wait"
)

// scraped are the targets of two nodes and a controller: job and instance by address.
var scraped = map[string][2]string{
	"192.0.2.1:4600": {"kerb", "n1"}, "192.0.2.1:4601": {"kerb-kube-node", "n1"},
	"192.0.2.2:4600": {"kerb", "n2"}, "192.0.2.2:4601": {"kerb-kube-node", "n2"},
	"192.0.2.3:4600": {"kerb-kube-controller", "controller-3"},
}

const (
	metricsToken = "token-of-a-scraper"
	monitored    = "/api/v1/namespaces/kerb-system/"
)

// The operator of Prometheus takes the ServiceMonitors of the chart. With what it makes of them, Prometheus selects the
// endpoints of each agent, kerb-kube-node and kerb-kube-controller, names them as boards and rules do, and reads their
// metrics by TLS, with the token.
func TestMonitors(t *testing.T) {
	operator := os.Getenv("KERB_OPERATOR")
	if operator == "" {
		t.Skip("needs the operator of Prometheus: make test-monitors")
	}
	m := newMonitoring(t)
	crds, err := filepath.Glob(filepath.Join(operator, "crds", "*.yaml"))
	if err != nil || len(crds) == 0 {
		t.Fatal(crds, err)
	}
	m.api.Install(crds...)
	m.install()
	m.start("operator", filepath.Join(operator, "operator"), "--apiserver="+m.api.URL, "--ca-file="+m.admin("ca.crt"),
		"--cert-file="+m.admin("admin.crt"), "--key-file="+m.admin("admin.key"), "--web.listen-address=127.0.0.1:8080")
	config := m.configuration()
	m.start("prometheus", "prometheus", "--config.file="+config, "--storage.tsdb.path="+filepath.Join(m.dir, "data"),
		"--web.listen-address=127.0.0.1:9090")
	var got map[string][2]string
	wait.Until(t, "Prometheus scrapes all", func() bool {
		var problems []string
		got, problems = m.targets()
		return len(problems) == 0 && maps.Equal(got, scraped)
	}, func() any { _, problems := m.targets(); return fmt.Sprint(problems, cmp.Diff(scraped, got)) })
}

// monitoring is an API server with what of Kerb a Prometheus scrapes.
type monitoring struct {
	*testing.T
	ns    *netlab.Namespace
	api   *kubeapitest.Server
	dir   string // certificates, and what the programs write
	found []any  // of Prometheus in the cluster, for file_sd_configs
}

func newMonitoring(t *testing.T) *monitoring {
	lab, err := netlab.Open("km"+strconv.FormatInt(int64(os.Getpid()), 36)+"a", netlab.Options{OwnNode: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := lab.Close(); err != nil {
			t.Error(err)
		}
	})
	m := &monitoring{T: t, ns: lab.Node(), dir: t.TempDir()}
	m.api = kubeapitest.Start(t, m.ns, kubeapi.Loopback)
	ca, err := pki.New(m.dir)
	if err == nil {
		err = ca.Issue("tls", &x509.Certificate{DNSNames: []string{"kerb-metrics.kerb-system.svc"},
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	}
	if err != nil {
		t.Fatal(err)
	}
	for address := range scraped {
		m.serve(address)
	}
	return m
}

// serve answers scrapes on an address as programs of Kerb do: by TLS, and of clients with the token.
func (m *monitoring) serve(address string) {
	m.Helper()
	host, _, _ := net.SplitHostPort(address)
	add := m.ns.Command(m.Context(), "ip", "addr", "replace", host+"/32", "dev", "lo")
	if out, err := add.CombinedOutput(); err != nil {
		m.Fatalf("%v: %s", err, out)
	}
	pair, err := tls.LoadX509KeyPair(filepath.Join(m.dir, "tls.crt"), filepath.Join(m.dir, "tls.key"))
	if err != nil {
		m.Fatal(err)
	}
	var l net.Listener
	if err := m.ns.Do(func() (err error) { l, err = net.Listen("tcp", address); return err }); err != nil {
		m.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/metrics" || r.Header.Get("Authorization") != "Bearer "+metricsToken {
			w.WriteHeader(http.StatusForbidden)
		}
		fmt.Fprintln(w, "up_here 1")
	})}
	config := &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS13}
	go func() { _ = server.Serve(tls.NewListener(l, config)) }()
	m.Cleanup(func() { server.Close() })
}

// install applies the Services and ServiceMonitors of the chart, as strictly as the API server can, and what else of a
// cluster a Prometheus reads.
func (m *monitoring) install() {
	m.Helper()
	m.apply("/api/v1/namespaces/kerb-system", object{"apiVersion": "v1", "kind": "Namespace",
		"metadata": object{"name": "kerb-system"}})
	chart := parse(m.T, render(m.T, "--set", "metrics.secret=kerb-metrics,metrics.serviceMonitor.enabled=true,"+
		"metrics.serviceMonitor.labels.release=prometheus,metrics.serviceMonitor.interval=1s"))
	for id, o := range chart {
		kind, name, _ := strings.Cut(id, " ")
		switch kind {
		case "Service":
			m.apply(monitored+"services/"+name, o)
		case "ServiceMonitor":
			m.apply("/apis/monitoring.coreos.com/v1/namespaces/kerb-system/servicemonitors/"+name, o)
		}
	}
	secret := object{"token": metricsToken}
	for _, file := range []string{"ca.crt", "tls.crt", "tls.key"} {
		text, err := os.ReadFile(filepath.Join(m.dir, file))
		if err != nil {
			m.Fatal(err)
		}
		secret[file] = string(text)
	}
	m.apply(monitored+"secrets/kerb-metrics", object{"apiVersion": "v1", "kind": "Secret",
		"metadata": object{"name": "kerb-metrics"}, "stringData": secret})
	m.endpoints(chart["Service kerb-metrics"], "kerb", 1, "n1", "n2")
	m.endpoints(chart["Service kerb-kube-controller-metrics"], "controller", 3, "n1")
	m.apply("/apis/monitoring.coreos.com/v1/namespaces/kerb-system/prometheuses/test", object{
		"apiVersion": "monitoring.coreos.com/v1", "kind": "Prometheus", "metadata": object{"name": "test"},
		"spec": object{"version": "v2.42.0", "serviceMonitorSelector": object{"matchLabels": object{"release": "prometheus"}},
			"apiserverConfig": object{"host": m.api.URL, "tlsConfig": object{"caFile": m.admin("ca.crt"),
				"certFile": m.admin("admin.crt"), "keyFile": m.admin("admin.key")}}}})
}

// admin returns a file of the administrator of the API server.
func (m *monitoring) admin(file string) string {
	m.Helper()
	return filepath.Join(filepath.Dir(m.api.Kubeconfig("")), file)
}

// endpoints adds what Prometheus finds in a cluster of a Service and its pods, of which there is one on each of the
// nodes: the Prometheus of Debian does not ask API servers. Names and addresses of pods end with numbers from the first
// on.
func (m *monitoring) endpoints(service object, pod string, first int, nodes ...string) {
	about := service["metadata"].(object)
	for _, p := range service["spec"].(object)["ports"].([]any) {
		for i, node := range nodes {
			labels := map[string]any{"namespace": about["namespace"], "service_name": about["name"],
				"endpoint_port_name": p.(object)["name"], "endpoint_ready": "true", "endpoint_address_target_kind": "Pod",
				"pod_node_name": node, "pod_name": fmt.Sprintf("%s-%d", pod, first+i), "pod_phase": "Running"}
			for name, value := range about["labels"].(object) {
				name = strings.NewReplacer(".", "_", "/", "_").Replace(name)
				labels["service_label_"+name], labels["service_labelpresent_"+name] = value, "true"
			}
			meta := object{}
			for name, value := range labels {
				meta["__meta_kubernetes_"+name] = value
			}
			address := fmt.Sprintf("192.0.2.%d:%v", first+i, p.(object)["port"])
			m.found = append(m.found, object{"targets": []any{address}, "labels": meta})
		}
	}
}

func (m *monitoring) apply(path string, o object) {
	m.Helper()
	text, err := yaml.Marshal(o)
	if err == nil {
		err = m.api.Apply(path, string(text))
	}
	if err != nil {
		m.Fatalf("%s: %v", path, err)
	}
}

// start runs a program in the namespace until the test ends.
func (m *monitoring) start(name, program string, args ...string) {
	m.Helper()
	log, err := os.Create(filepath.Join(m.dir, name+".log"))
	if err != nil {
		m.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cmd := m.ns.Command(ctx, program, args...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		m.Fatal(err)
	}
	m.Cleanup(func() {
		cancel()
		_ = cmd.Wait()
		log.Close()
		if text, _ := os.ReadFile(log.Name()); m.Failed() {
			m.Logf("%s said:\n%s", name, text[max(0, len(text)-4000):])
		}
	})
}

// secret returns a secret, or nil while there is none.
func (m *monitoring) secret(name string) map[string][]byte {
	var s struct{ Data map[string][]byte }
	if err := m.api.Call(http.MethodGet, monitored+"secrets/"+name, nil, &s); err != nil {
		return nil
	}
	return s.Data
}

// inCluster is how Prometheus finds the endpoints of Services.
var inCluster = regexp.MustCompile(`(?s)kubernetes_sd_configs:\n  - role: endpoints\n.*?\n  scrape_interval`)

// configuration writes the file that the operator makes, with the certificates that it mounts, and returns its path.
// The endpoints are in another file.
func (m *monitoring) configuration() string {
	m.Helper()
	var text string
	wait.Until(m.T, "the operator configures Prometheus", func() bool {
		r, err := gzip.NewReader(bytes.NewReader(m.secret("prometheus-test")["prometheus.yaml.gz"]))
		if err != nil {
			return false
		}
		all, err := io.ReadAll(r)
		text = string(all)
		return err == nil && strings.Count(text, "job_name: serviceMonitor/kerb-system/") == 3
	}, func() any { return text })
	var assets map[string][]byte
	wait.Until(m.T, "the operator copies the certificate authority", func() bool {
		assets = m.secret("prometheus-test-tls-assets-0")
		return len(assets) > 0
	})
	for name, data := range assets {
		if err := os.WriteFile(filepath.Join(m.dir, name), data, 0o600); err != nil {
			m.Fatal(err)
		}
	}
	file := filepath.Join(m.dir, "prometheus.yaml")
	text = strings.NewReplacer("/etc/prometheus/certs", m.dir, "$(SHARD)", "0").Replace(text)
	endpoints := filepath.Join(m.dir, "endpoints.json")
	text = inCluster.ReplaceAllString(text, "file_sd_configs:\n  - files: ["+endpoints+"]\n  scrape_interval")
	found, err := json.Marshal(m.found)
	if err == nil {
		err = errors.Join(os.WriteFile(endpoints, found, 0o600), os.WriteFile(file, []byte(text), 0o600))
	}
	if err != nil {
		m.Fatal(err)
	}
	if out, err := exec.Command("promtool", "check", "config", file).CombinedOutput(); err != nil {
		m.Fatalf("%v: %s\n%s", err, out, text)
	}
	return file
}

// targets returns job and instance of the targets that Prometheus reads, by address, and what is wrong with others.
func (m *monitoring) targets() (map[string][2]string, []string) {
	out, err := m.ns.Command(m.Context(), "curl", "-s", "http://127.0.0.1:9090/api/v1/targets?state=active").Output()
	if err != nil {
		return nil, []string{err.Error()}
	}
	var answer struct {
		Data struct {
			ActiveTargets []struct {
				Labels                       map[string]string
				ScrapeURL, LastError, Health string
			}
		}
	}
	if err := json.Unmarshal(out, &answer); err != nil {
		return nil, []string{err.Error()}
	}
	got := map[string][2]string{}
	var problems []string
	for _, target := range answer.Data.ActiveTargets {
		if target.Health != "up" {
			problems = append(problems, target.ScrapeURL+": "+target.Health+" "+target.LastError)
		}
		address := strings.TrimSuffix(strings.TrimPrefix(target.ScrapeURL, "https://"), "/metrics")
		got[address] = [2]string{target.Labels["job"], target.Labels["instance"]}
	}
	slices.Sort(problems)
	return got, problems
}
