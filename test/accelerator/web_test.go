// SPDX-License-Identifier: Apache-2.0

package accelerator

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kerb-edge/kerb/internal/lab/netlab"
)

const (
	webPort   = 8080
	proxyPort = 8090
)

// webFiles are the files that servers serve and clients send, by size in bytes.
var webFiles = map[string]int{"none": 0, "one": 1, "page": 10_000, "picture": 300_000, "film": 20_000_000}

// website creates a directory of random files.
func (n *node) website() string {
	n.T.Helper()
	dir := filepath.Join(n.Dir, "www")
	if err := os.Mkdir(dir, 0o755); err != nil {
		n.T.Fatal(err)
	}
	for name, size := range webFiles {
		random := rand.NewChaCha8([32]byte{byte(size)})
		data := make([]byte, size)
		_, _ = random.Read(data)
		n.file(filepath.Join("www", name), string(data))
	}
	return dir
}

// same checks that a client has received the expected data.
func (n *node) same(what, got, want string) {
	n.T.Helper()
	a, err1 := os.ReadFile(got)
	b, err2 := os.ReadFile(want)
	if err1 != nil || err2 != nil || !bytes.Equal(a, b) {
		n.T.Errorf("%s: %d bytes that are not the right %d: %v %v", what, len(a), len(b), err1, err2)
	}
}

// browse fetches all files in one connection. With echoes, it also checks that the server returns what it sends.
func (n *node) browse(from *netlab.Host, base string, echoes bool) {
	n.T.Helper()
	n.awaitVerdicts(func() { n.output(from, "curl", "-sSf", "-o", n.fetched("film", 0), base+"/film") }, "curl")
	var gets, posts []string
	for name := range webFiles {
		for i := range 3 {
			gets = append(gets, "-o", n.fetched(name, i), base+"/"+name)
		}
		if echoes {
			posts = append(posts, "--next", "-sSf", "--data-binary", "@"+n.published(name), "-o", n.fetched(name, 3),
				base+"/"+name)
		}
	}
	n.output(from, "curl", append(append([]string{"-sSf"}, gets...), posts...)...)
	for name := range webFiles {
		for i := range 4 {
			if i < 3 || echoes {
				n.same(fmt.Sprintf("%s/%s, time %d", base, name, i), n.fetched(name, i), n.published(name))
			}
		}
	}
}

func (n *node) published(name string) string { return filepath.Join(n.Dir, "www", name) }

func (n *node) fetched(name string, i int) string {
	return filepath.Join(n.Dir, fmt.Sprintf("got-%s-%d", name, i))
}

// load runs wrk on persistent connections: it reports every invalid response.
func (n *node) load(from *netlab.Host, base string) {
	n.T.Helper()
	url := base + "/page"
	out := n.output(from, "wrk", "-t1", "-c16", "-d1s", "--timeout", "30s", url)
	if strings.Contains(out, "Socket errors") || strings.Contains(out, "Non-2xx") ||
		!strings.Contains(out, "Requests/sec") {
		n.T.Errorf("wrk %s: %s", url, out)
	}
	n.T.Logf("%s: %s", url, strings.Join(strings.Fields(out[strings.Index(out, "Requests/sec"):]), " "))
}

// url returns the URL of a port of a host.
func url(h *netlab.Host, port int) string { return fmt.Sprintf("http://%s:%d", h.Addr4(), port) }

// nginx serves the website on a host.
func (n *node) nginx(h *netlab.Host) {
	n.T.Helper()
	config := n.file("nginx-"+h.Name()+".conf", fmt.Sprintf(`
daemon off; master_process on; worker_processes 2; user www-data; pid %[1]s/nginx-%[2]s.pid; error_log stderr warn;
events { worker_connections 1024; }
http {
	access_log off; sendfile on; tcp_nopush on; keepalive_requests 100000; client_max_body_size 0;
	client_body_temp_path %[1]s/body; proxy_temp_path %[1]s/temp;
	upstream site { server %[3]s:%[4]d; keepalive 16; }
	server { listen %[4]d; root %[5]s; }
	server { listen %[6]d; location / { proxy_pass http://site; proxy_http_version 1.1; proxy_set_header Connection ""; } }
}`, n.Dir, h.Name(), n.b.Addr4(), webPort, filepath.Join(n.Dir, "www"), proxyPort))
	n.daemon(h, proxyPort, installed(n.T, "/usr/sbin/nginx"), "-c", config, "-e", "stderr")
}

// nginx as server, as reverse proxy, and both on one host; curl and wrk as clients.
func TestNginx(t *testing.T) {
	n := newAcceleratedNode(t, nil)
	n.website()
	n.nginx(n.b)
	n.nginx(n.a)
	n.browse(n.a, url(n.b, webPort), false)
	n.browse(n.b, url(n.b, proxyPort), false)
	n.browse(n.a, url(n.a, proxyPort), false)
	n.load(n.a, url(n.a, proxyPort))
	n.checkVerdicts("nginx", "curl")
}

func TestNode(t *testing.T) {
	n := newAcceleratedNode(t, nil)
	dir := n.website()
	n.daemon(n.b, webPort, installed(t, "node"), installed(t, "testdata/web/echo.js"), fmt.Sprint(webPort), dir)
	n.browse(n.a, url(n.b, webPort), true)
	n.browse(n.b, fmt.Sprintf("http://127.0.0.1:%d", webPort), true)
	n.load(n.a, url(n.b, webPort))
	n.checkVerdicts("node", "curl")
}

func TestJava(t *testing.T) {
	n := newAcceleratedNode(t, nil)
	dir := n.website()
	n.daemon(n.b, webPort, installed(t, "java"), "-XX:TieredStopAtLevel=1", installed(t, "testdata/web/Echo.java"),
		fmt.Sprint(webPort), dir)
	n.browse(n.a, url(n.b, webPort), true)
	n.browse(n.b, fmt.Sprintf("http://127.0.0.1:%d", webPort), true)
	n.load(n.a, url(n.b, webPort))
	n.checkVerdicts("java", "curl")
}

// HAProxy with all its splicing enabled, for HTTP and TCP.
func TestHAProxy(t *testing.T) {
	n := newAcceleratedNode(t, nil)
	n.website()
	n.nginx(n.b)
	config := n.file("haproxy.cfg", fmt.Sprintf(`
global
	maxconn 1000
defaults
	timeout connect 60s
	timeout client 60s
	timeout server 60s
	option splice-auto
	option splice-request
	option splice-response
listen http
	mode http
	bind :%[1]d
	server site %[3]s:%[4]d
listen bytes
	mode tcp
	bind :%[2]d
	server site %[3]s:%[4]d
`, proxyPort, proxyPort+1, n.b.Addr4(), webPort))
	n.daemon(n.a, proxyPort, installed(t, "/usr/sbin/haproxy"), "-db", "-f", config)
	n.browse(n.a, url(n.a, proxyPort), false)
	n.browse(n.b, url(n.a, proxyPort+1), false)
	n.load(n.a, url(n.a, proxyPort))
	n.checkVerdicts("haproxy", "nginx", "curl")
	if plain {
		return
	}
	if x, guard := n.executables()["haproxy"], n.spliceFails(); guard != (x.Verdict == "safe") {
		t.Errorf("guard: %v, %+v", guard, x)
	}
}

// HAProxy without splicing is accelerated if it is allowed.
func TestHAProxyWithoutSplicing(t *testing.T) {
	n := newAcceleratedNode(t, map[string]any{"programs": map[string]any{"allow": []string{"haproxy"}}})
	dir := n.website()
	n.daemon(n.b, webPort, installed(t, "node"), installed(t, "testdata/web/echo.js"), fmt.Sprint(webPort), dir)
	config := n.file("haproxy.cfg", fmt.Sprintf(`
defaults
	mode tcp
	timeout connect 60s
	timeout client 60s
	timeout server 60s
listen bytes
	bind :%d
	server site %s:%d
`, proxyPort, n.b.Addr4(), webPort))
	n.daemon(n.a, proxyPort, installed(t, "/usr/sbin/haproxy"), "-db", "-f", config)
	n.browse(n.a, url(n.a, proxyPort), true)
	n.browse(n.b, url(n.a, proxyPort), true)
	n.load(n.a, url(n.a, proxyPort))
	n.checkVerdicts("haproxy", "node", "curl")
	if x := n.executables()["haproxy"]; !plain && x.Verdict != "safe" {
		t.Errorf("%+v", x)
	}
}

// envoyConfig returns a configuration with HTTP on one port of a host, and TCP on the next one, for the web server of
// b.
func (n *node) envoyConfig() string {
	n.T.Helper()
	return n.file("envoy.yaml", fmt.Sprintf(`
static_resources:
  listeners:
  - address: {socket_address: {address: 0.0.0.0, port_value: %[1]d}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: http
          http_filters: [{name: envoy.filters.http.router, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}]
          route_config: {virtual_hosts: [{name: all, domains: ["*"], routes: [{match: {prefix: /}, route: {cluster: site}}]}]}
  - address: {socket_address: {address: 0.0.0.0, port_value: %[2]d}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.tcp_proxy
        typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy, stat_prefix: bytes, cluster: site}
  clusters:
  - name: site
    load_assignment: {cluster_name: site, endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: %[3]s, port_value: %[4]d}}}}]}]}
`, proxyPort, proxyPort+1, n.b.Addr4(), webPort))
}

// envoyPath is the path to which scripts/setup test installs Envoy.
const envoyPath = "../../out/envoy/lib/python3*/site-packages/envoy/_bin/envoy"

func TestEnvoy(t *testing.T) {
	n := newAcceleratedNode(t, nil)
	n.website()
	n.nginx(n.b)
	envoy := installed(t, envoyPath)
	n.daemon(n.a, proxyPort+1, envoy, "-c", n.envoyConfig(), "--concurrency", "1", "--disable-hot-restart", "-l", "error")
	n.browse(n.a, url(n.a, proxyPort), false)
	n.browse(n.b, url(n.a, proxyPort+1), false)
	n.load(n.a, url(n.a, proxyPort))
	n.checkVerdicts("envoy", "nginx", "curl")
}

// A Go proxy splices between sockets, in front of an echo server that sends and receives at the same time.
func TestGoProxy(t *testing.T) {
	n := newAcceleratedNode(t, nil)
	dir := n.website()
	n.daemon(n.b, webPort, installed(t, "node"), installed(t, "testdata/web/echo.js"), fmt.Sprint(webPort), dir)
	n.daemon(n.a, proxyPort, copier, fmt.Sprintf(":%d", proxyPort), fmt.Sprintf("%s:%d", n.b.Addr4(), webPort))
	n.browse(n.a, url(n.a, proxyPort), true)
	n.browse(n.b, url(n.a, proxyPort), true)
	n.load(n.a, url(n.a, proxyPort))
	n.checkVerdicts("copier", "node", "curl")
}
