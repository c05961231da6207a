// SPDX-License-Identifier: Apache-2.0

package accelerator

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/lab/pki"
)

// envoyFilters is a configuration of Envoy with all filters that read from a connection before the protocol's filter:
// the PROXY protocol, the inspectors of TLS and HTTP, and the original destination before REDIRECT. The first listener
// has HTTP/1 or 2, with or without TLS, and connects with TLS to the second one, which passes bytes to the server.
const envoyFilters = `
static_resources:
  listeners:
  - address: {socket_address: {address: 0.0.0.0, port_value: %[1]d}}
    listener_filters:
    - name: envoy.filters.listener.proxy_protocol
      typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.listener.proxy_protocol.v3.ProxyProtocol, allow_requests_without_proxy_protocol: true}
    - name: envoy.filters.listener.original_dst
      typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.listener.original_dst.v3.OriginalDst}
    - &tls_inspector
      name: envoy.filters.listener.tls_inspector
      typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.listener.tls_inspector.v3.TlsInspector}
    - name: envoy.filters.listener.http_inspector
      typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.listener.http_inspector.v3.HttpInspector}
    filter_chains:
    - filter_chain_match: {transport_protocol: tls}
      transport_socket: &downstream
        name: tls
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext
          common_tls_context: {alpn_protocols: [h2, http/1.1], tls_certificates: [{certificate_chain: {filename: %[5]s/proxy.crt}, private_key: {filename: %[5]s/proxy.key}}]}
      filters: &http
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: http
          http_filters: [{name: envoy.filters.http.router, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}]
          route_config: {virtual_hosts: [{name: all, domains: ["*"], routes: [{match: {prefix: /}, route: {cluster: envoy}}]}]}
    - filter_chain_match: {transport_protocol: raw_buffer}
      filters: *http
  - address: {socket_address: {address: 0.0.0.0, port_value: %[2]d}}
    listener_filters: [*tls_inspector]
    filter_chains:
    - transport_socket: *downstream
      filter_chain_match: {transport_protocol: tls}
      filters: &bytes
      - name: envoy.filters.network.tcp_proxy
        typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy, stat_prefix: bytes, cluster: site}
    - filter_chain_match: {transport_protocol: raw_buffer}
      filters: *bytes
  clusters:
  - name: envoy
    load_assignment: {cluster_name: envoy, endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: %[2]d}}}}]}]}
    transport_socket: {name: tls, typed_config: {"@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext}}
  - name: site
    load_assignment: {cluster_name: site, endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: %[3]s, port_value: %[4]d}}}}]}]}
`

// unlikeTCP matches calls that behave differently on sockets with redirected data (docs/accelerator.md).
var unlikeTCP = regexp.MustCompile(`FIONREAD|\bsplice\(|MSG_WAITALL|MSG_OOB|MSG_ZEROCOPY|SO_RCVLOWAT|SO_PEEK_OFF|` +
	`SO_BUSY_POLL|SO_ZEROCOPY|TCP_ULP|TCP_ZEROCOPY_RECEIVE|io_uring_setup`)

// tracing returns the arguments of strace that writes these calls to a file.
func tracing(file string) []string {
	return []string{"-f", "-qq", "-o", file, "-e",
		"trace=ioctl,splice,recvfrom,recvmsg,recvmmsg,sendto,sendmsg,setsockopt,getsockopt,io_uring_setup"}
}

// Envoy makes none of the calls that behave differently from TCP, whatever reads from a connection first: neither
// ioctl(FIONREAD), which the buffers of the linked libevent use, nor the others.
func TestEnvoyCalls(t *testing.T) {
	envoy := installed(t, envoyPath)
	strace := installed(t, "strace")
	n := newAcceleratedNode(t, map[string]any{"programs": map[string]any{"allow": []string{"envoy"}}})
	dir := n.website()
	file := filepath.Join(n.Dir, "calls")
	n.traceFinds(strace, file)
	n.daemon(n.b, webPort, installed(t, "node"), installed(t, "testdata/web/echo.js"), fmt.Sprint(webPort), dir)
	ca, err := pki.New(n.Dir)
	if err == nil {
		err = ca.Issue("proxy", &x509.Certificate{Subject: pkix.Name{CommonName: "proxy"}})
	}
	if err != nil {
		t.Fatal(err)
	}
	config := n.file("envoy.yaml", fmt.Sprintf(envoyFilters, proxyPort, proxyPort+1, n.b.Addr4(), webPort, n.Dir))
	n.daemon(n.a, proxyPort, strace, append(tracing(file), envoy, "-c", config, "--concurrency", "1",
		"--disable-hot-restart", "-l", "error")...)
	for _, from := range []*netlab.Host{n.a, n.b} {
		n.browse(from, url(n.a, proxyPort), true)
		n.browse(from, url(n.a, proxyPort+1), true)
		secure := fmt.Sprintf("https://%s:%d/", n.a.Addr4(), proxyPort)
		for _, options := range [][]string{{"-k", "--http2"}, {"-k", "--http1.1"}, {"-k", "--haproxy-protocol"}} {
			for name := range webFiles {
				n.output(from, "curl", append(options, "-sSf", "-o", n.fetched(name, 0), secure+name)...)
				n.same(fmt.Sprint(options, name), n.fetched(name, 0), n.published(name))
			}
		}
		n.output(from, "curl", "-sSf", "--haproxy-protocol", "-o", n.fetched("page", 0), url(n.a, proxyPort)+"/page")
	}
	n.checkVerdicts("envoy", "node", "curl")
	if x := n.executables()["envoy"]; !plain && x.Verdict != "safe" {
		t.Errorf("%+v", x)
	}
	calls, err := os.ReadFile(file)
	if err != nil || len(regexp.MustCompile(`MSG_PEEK`).FindAll(calls, -1)) == 0 {
		t.Fatalf("strace has not seen the inspectors read: %v, %d bytes", err, len(calls))
	}
	found := unlikeTCP.FindAllString(string(calls), -1)
	slices.Sort(found)
	if found = slices.Compact(found); len(found) > 0 {
		t.Errorf("Envoy calls %q", found)
	}
	t.Logf("%d bytes of calls, none unlike TCP; %+v", len(calls), n.pairReport())
}

// traceFinds checks that strace would write the call to the file.
func (n *node) traceFinds(strace, file string) {
	n.T.Helper()
	script := "import fcntl, socket, termios; a, b = socket.socketpair(); fcntl.ioctl(a, termios.FIONREAD, b'1234')"
	out, err := exec.Command(strace, append(tracing(file), "python3", "-c", script)...).CombinedOutput()
	if err != nil {
		n.T.Skipf("strace cannot trace here: %v: %s", err, out)
	}
	if calls, err := os.ReadFile(file); err != nil || !unlikeTCP.Match(calls) {
		n.T.Fatalf("strace has not seen FIONREAD: %v: %s", err, calls)
	}
}
