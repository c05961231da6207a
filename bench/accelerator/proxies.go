// SPDX-License-Identifier: Apache-2.0

package accelerator

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
)

// proxyProgram is a TCP proxy with one thread.
type proxyProgram struct {
	config string // its file's name
	write  func(dir string, h hop, ports []int) string
	args   func(config string) []string
}

var proxies = map[string]proxyProgram{
	"haproxy": {"haproxy.cfg", haproxy, func(config string) []string { return []string{"haproxy", "-db", "-f", config} }},
	"nginx":   {"nginx.conf", nginxStream, nginx},
	"envoy": {"envoy.json", envoy, func(config string) []string {
		return []string{"envoy", "-c", config, "--concurrency", "1", "--disable-hot-restart", "-l", "error"}
	}},
}

func proxyNames() []string { return slices.Sorted(maps.Keys(proxies)) }

func haproxy(_ string, h hop, ports []int) string {
	var b strings.Builder
	b.WriteString("global\n nbthread 1\n maxconn 2000\ndefaults\n mode tcp\n timeout connect 5s\n timeout client 1h\n " +
		"timeout server 1h\n")
	for _, port := range ports {
		fmt.Fprintf(&b, "listen p%d\n bind %s\n server s %s\n", port, h.listen(port).after("unix@"),
			h.to(port).after("unix@"))
	}
	return b.String()
}

// nginxMain returns the common start of nginx configurations: a single process in the foreground.
func nginxMain(dir string) string {
	return fmt.Sprintf("daemon off;\nmaster_process off;\npid %s;\nerror_log stderr;\nevents { "+
		"worker_connections 4000; }\n",
		filepath.Join(dir, "nginx.pid"))
}

func nginx(config string) []string {
	return []string{"nginx", "-e", "stderr", "-p", filepath.Dir(config), "-c", config}
}

func nginxStream(dir string, h hop, ports []int) string {
	var b strings.Builder
	b.WriteString("load_module /usr/lib/nginx/modules/ngx_stream_module.so;\n" + nginxMain(dir) + "stream {\n")
	for _, port := range ports {
		fmt.Fprintf(&b, "\tserver { listen %s; proxy_pass %s; proxy_timeout 1h; }\n", h.listen(port).after("unix:"),
			h.to(port).after("unix:"))
	}
	return b.String() + "}\n"
}

// object is a part of Envoy's configuration.
type object map[string]any

// withTransport sets the transport socket of a listener's chain or a cluster, if it is not nil.
func (o object) withTransport(socket object) object {
	if socket != nil {
		o["transport_socket"] = socket
	}
	return o
}

func envoy(_ string, h hop, ports []int) string { return envoyWith(h, ports, nil, nil) }

// envoyWith returns Envoy's configuration with transport sockets towards the client and the server, which may be nil.
func envoyWith(h hop, ports []int, downstream, upstream object) string {
	var listeners, clusters []object
	for _, port := range ports {
		name := fmt.Sprintf("p%d", port)
		filter := object{"name": "envoy.filters.network.tcp_proxy", "typed_config": object{
			"@type": "type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy", "stat_prefix": name,
			"cluster": name}}
		chain := object{"filters": []object{filter}}
		listeners = append(listeners, object{"name": name, "address": envoyAddress(h.listen(port)),
			"filter_chains": []object{chain.withTransport(downstream)}})
		endpoint := object{"endpoint": object{"address": envoyAddress(h.to(port))}}
		cluster := object{"name": name, "type": "STATIC", "connect_timeout": "5s",
			"load_assignment": object{"cluster_name": name, "endpoints": []object{{"lb_endpoints": []object{endpoint}}}}}
		clusters = append(clusters, cluster.withTransport(upstream))
	}
	text, err := json.Marshal(object{"static_resources": object{"listeners": listeners, "clusters": clusters}})
	if err != nil {
		panic(err) // impossible for strings and numbers
	}
	return string(text)
}

func envoyAddress(a address) object {
	if a.isPath() {
		return object{"pipe": object{"path": a}}
	}
	at := netip.MustParseAddrPort(string(a))
	return object{"socket_address": object{"address": at.Addr().String(), "port_value": at.Port()}}
}
