// SPDX-License-Identifier: Apache-2.0

// Package ambient puts hosts of a lab into Istio's ambient mode: the real ztunnel carries their connections in HBONE,
// that is, HTTP/2 in mutual TLS. It runs in in-pod mode, as on a node of a cluster. A file replaces Istio's control
// plane, a certificate authority within ztunnel that of Istio, and this package Istio's CNI agent.
package ambient

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/kerb-edge/kerb/internal/lab/netlab"
)

// Program is the file name of ztunnel.
const Program = "ztunnel"

// Ports of ztunnel: the first three in each pod's namespace, the others in its own.
const (
	outboundPort = 15001
	inboundPort  = 15006
	HBONEPort    = 15008
	MetricsPort  = 15020
	ReadyPort    = 15021
)

// Mesh describes the connections that ztunnel carries: those between the pods, and those to the address of a service,
// if there is one, whose endpoint is a pod.
type Mesh struct {
	Pods    []*netlab.Host
	Service netip.Addr
	Server  *netlab.Host
	Ports   []int // of the service, and of the server
}

// Agent is the connection through which ztunnel receives its pods.
type Agent struct {
	mesh           Mesh
	config, socket string
	listener       *net.UnixListener
	conn           *net.UnixConn
}

// Prepare redirects the pods' connections, and writes ztunnel's configuration to a new directory.
func Prepare(m Mesh, dir string) (*Agent, error) {
	for _, pod := range m.Pods {
		if err := capture(pod); err != nil {
			return nil, fmt.Errorf("redirect %s to ztunnel: %w", pod.Name(), err)
		}
	}
	a := &Agent{mesh: m, config: filepath.Join(dir, "workloads.yaml"), socket: filepath.Join(dir, "agent.sock")}
	if err := errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(a.config, []byte(m.workloads()), 0o644)); err != nil {
		return nil, err
	}
	var err error
	a.listener, err = net.ListenUnix("unixpacket", &net.UnixAddr{Net: "unixpacket", Name: a.socket})
	return a, err
}

// Command runs ztunnel, with one thread for connections. One between two pods that carries nothing for idle is closed,
// as by ztunnel's own default after five minutes.
func (a *Agent) Command(program string, idle time.Duration) []string {
	return []string{"env", "PROXY_MODE=shared", "INPOD_UDS=" + a.socket, "LOCAL_XDS_PATH=" + a.config, "XDS_ADDRESS=",
		"FAKE_CA=true", "ZTUNNEL_WORKER_THREADS=1", "NODE_NAME=" + nodeName, "RUST_LOG=error",
		fmt.Sprintf("POOL_UNUSED_RELEASE_TIMEOUT=%dms", idle.Milliseconds()), program}
}

// Untestable reports whether the output of ztunnel shows that it exited because it lacks the build feature `testing`,
// with which it issues certificates.
func Untestable(words string) bool { return strings.Contains(words, "features testing") }

const (
	nodeName    = "node"
	trustDomain = "cluster.local"
	serviceName = "server.default.svc." + trustDomain
)

// workloads returns the file of LOCAL_XDS_PATH: the pods, and the service.
func (m Mesh) workloads() string {
	var ports []string
	for _, port := range m.Ports {
		ports = append(ports, fmt.Sprintf("%[1]d: %[1]d", port))
	}
	served := fmt.Sprintf("{%s}", strings.Join(ports, ", "))
	var b strings.Builder
	b.WriteString("workloads:\n")
	for _, pod := range m.Pods {
		implements := "{}"
		if pod == m.Server {
			implements = fmt.Sprintf("{default/%s: %s}", serviceName, served)
		}
		fmt.Fprintf(&b, "- {uid: lab//v1/Pod/default/%[1]s, name: %[1]s, namespace: default, serviceAccount: %[1]s, "+
			"trustDomain: %[2]s, workloadIps: [%[3]s], protocol: HBONE, node: %[4]s, network: '', services: %[5]s}\n",
			pod.Name(), trustDomain, pod.Addr4(), nodeName, implements)
	}
	if m.Server != nil {
		fmt.Fprintf(&b, "services:\n- {name: server, namespace: default, hostname: %s, vips: [/%s], ports: %s}\n",
			serviceName, m.Service, served)
	}
	return b.String()
}

// Close ends the connection to ztunnel, which then waits for another agent.
func (a *Agent) Close() error {
	err := a.listener.Close()
	if a.conn != nil {
		err = errors.Join(err, a.conn.Close())
	}
	return err
}
