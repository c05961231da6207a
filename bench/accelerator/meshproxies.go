// SPDX-License-Identifier: Apache-2.0

package accelerator

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/kerb-edge/kerb/bench"
	"github.com/kerb-edge/kerb/internal/lab/ambient"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/lab/pki"
	"github.com/kerb-edge/kerb/internal/lab/tempdir"
)

// meshAvailable returns why a mesh is not available on this machine.
func meshAvailable(mesh string) error {
	program := map[string]string{"ambient": ambient.Program, "sidecar": "envoy"}[mesh]
	if program == "" {
		return nil
	}
	if _, err := exec.LookPath(program); err != nil {
		return fmt.Errorf("%w: %s is not on PATH", bench.ErrLeftOut, program)
	}
	return nil
}

// ready returns the address on which Istio's proxies listen when they are ready.
func (p *place) ready(int) address { return at(p.loopback, readyPort)(0) }

// addEnvoys adds Istio's sidecars to client and server, with mutual TLS between them. All traffic of client and server
// is redirected to them.
func (p *place) addEnvoys() error {
	id, err := newIdentity()
	if err != nil {
		return err
	}
	program := &proxyProgram{"envoy.json", func(_ string, h hop, ports []int) string { return sidecar(id, h, ports) },
		proxies["envoy"].args}
	for side, h := range []*netlab.Host{clientSide: p.client, serverSide: p.server} {
		if err := p.intercept(h); err != nil {
			return err
		}
		p.hops = append(p.hops, hop{h, side, p.ready, nil, program})
	}
	return nil
}

// identity is the part of Envoy's configuration with which the sidecars authenticate each other.
type identity object

func newIdentity() (identity, error) {
	dir, err := tempdir.New()
	if err != nil {
		return nil, err
	}
	defer tempdir.Remove(dir)
	ca, err := pki.New(dir)
	if err == nil {
		err = ca.Issue("proxy", &x509.Certificate{Subject: pkix.Name{CommonName: "proxy"}})
	}
	texts := map[string]object{}
	for _, file := range []string{"ca.crt", "proxy.crt", "proxy.key"} {
		text, wrong := os.ReadFile(filepath.Join(dir, file))
		texts[file], err = object{"inline_string": string(text)}, errors.Join(err, wrong)
	}
	return identity{"validation_context": object{"trusted_ca": texts["ca.crt"]},
		"tls_certificates": []object{{"certificate_chain": texts["proxy.crt"], "private_key": texts["proxy.key"]}}}, err
}

const envoyTypes = "type.googleapis.com/envoy.extensions."

// sidecar returns Envoy's configuration, with the ports of Istio's sidecar. Outbound connections are forwarded in TLS
// to the original destination, inbound ones in TLS to the program. Over AF_UNIX there is no original destination, and
// only one route.
func sidecar(id identity, h hop, ports []int) string {
	tls := func(kind string, more object) object {
		more["@type"], more["common_tls_context"] = envoyTypes+"transport_sockets.tls.v3."+kind, id
		return object{"name": "tls", "typed_config": more}
	}
	upstream, downstream := tls("UpstreamTlsContext", object{}),
		tls("DownstreamTlsContext", object{"require_client_certificate": true})
	switch {
	case h.listen(firstPort).isPath() && h.side == clientSide:
		return envoyWith(h, ports, nil, upstream)
	case h.listen(firstPort).isPath():
		return envoyWith(h, ports, downstream, nil)
	}
	config := object{"static_resources": object{
		"listeners": []object{
			redirectedListener("outbound", outboundPort, nil), redirectedListener("inbound", inboundPort, downstream),
			readyListener()},
		"clusters": []object{originalDestination("outbound", upstream), originalDestination("inbound", nil)},
	}}
	text, err := json.Marshal(config)
	if err != nil {
		panic(err) // impossible for strings and numbers
	}
	return string(text)
}

func envoyListener(name string, port int, chain object) object {
	return object{"name": name, "filter_chains": []object{chain},
		"address": envoyAddress(address(fmt.Sprintf("0.0.0.0:%d", port)))}
}

// redirectedListener returns a listener for redirected connections, which forwards them to a cluster.
func redirectedListener(name string, port int, socket object) object {
	proxy := object{"name": "envoy.filters.network.tcp_proxy", "typed_config": object{
		"@type": envoyTypes + "filters.network.tcp_proxy.v3.TcpProxy", "stat_prefix": name, "cluster": name}}
	l := envoyListener(name, port, object{"filters": []object{proxy}}.withTransport(socket))
	l["listener_filters"] = []object{{"name": "envoy.filters.listener.original_dst", "typed_config": object{
		"@type": envoyTypes + "filters.listener.original_dst.v3.OriginalDst"}}}
	return l
}

// readyListener is the last listener: when it listens, all listeners do.
func readyListener() object {
	answer := object{"name": "envoy.filters.network.direct_response", "typed_config": object{
		"@type": envoyTypes + "filters.network.direct_response.v3.Config"}}
	return envoyListener("ready", readyPort, object{"filters": []object{answer}})
}

// originalDestination returns a cluster that connects to the destination before the redirection, with a mark that
// prevents another redirection.
func originalDestination(name string, socket object) object {
	const level, mark = 1, 36 // SOL_SOCKET, SO_MARK
	cluster := object{"name": name, "type": "ORIGINAL_DST", "lb_policy": "CLUSTER_PROVIDED", "connect_timeout": "5s",
		"upstream_bind_config": object{
			"source_address": object{"address": "0.0.0.0", "port_value": 0},
			"socket_options": []object{{"level": level, "name": mark, "int_value": proxyMark, "state": "STATE_PREBIND"}}}}
	return cluster.withTransport(socket)
}
