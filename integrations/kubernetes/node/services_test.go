// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
	"github.com/kerb-edge/kerb/integrations/kubernetes/names"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/lab/wait"
)

const targetPort = 8080

// endpoint creates a host that answers every TCP connection to a port with its name.
func (b *bed) endpoint(name string, port uint16) *netlab.Host {
	b.T.Helper()
	h := b.Host(name)
	b.serve(h, name, port)
	return h
}

// serve makes a host answer every TCP connection to a port with its name.
func (b *bed) serve(h *netlab.Host, name string, port uint16) {
	b.T.Helper()
	b.listen(h, port, func(c net.Conn) { _, _ = io.WriteString(c, name) })
}

// listen makes a host handle every TCP connection to a port, and close it afterwards.
func (b *bed) listen(h *netlab.Host, port uint16, handle func(net.Conn)) {
	b.T.Helper()
	err := h.Do(func() error {
		l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(h.Addr4(), port)))
		if err != nil {
			return err
		}
		b.T.Cleanup(func() { l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go func() { handle(c); c.Close() }()
			}
		}()
		return nil
	})
	if err != nil {
		b.T.Fatal(err)
	}
}

// reach returns the name that answers a connection from a pod, or an error.
func (p *pod) reach(address string, port int) string {
	var answer []byte
	err := p.host.Do(func() error {
		c, err := (&net.Dialer{Timeout: wait.Patience / 60}).Dial("tcp", net.JoinHostPort(address, fmt.Sprint(port)))
		if err != nil {
			return err
		}
		defer c.Close()
		answer, err = io.ReadAll(c)
		return err
	})
	if err != nil {
		return err.Error()
	}
	return string(answer)
}

// service creates a Service, and returns its cluster address.
func (b *bed) service(name, more string) string {
	b.T.Helper()
	return b.serviceWith(name, more+"ports: [{name: http, port: 80, targetPort: web}]")
}

// serviceWith creates a Service with a spec as YAML, and returns its cluster address.
func (b *bed) serviceWith(name, spec string) string {
	b.T.Helper()
	text := "{apiVersion: v1, kind: Service, metadata: {name: " + name + "}, spec: {" + spec + "}}"
	if err := b.api.Apply("/api/v1/namespaces/default/services/"+name, text); err != nil {
		b.T.Fatal(err)
	}
	var created struct{ Spec struct{ ClusterIP string } }
	b.api.Must(http.MethodGet, "/api/v1/namespaces/default/services/"+name, nil, &created)
	return created.Spec.ClusterIP
}

// slice sets an EndpointSlice of a Service.
func (b *bed) slice(service, name string, port int, endpoints ...string) {
	b.T.Helper()
	b.sliceWith(service, name, fmt.Sprint("name: http, port: ", port), endpoints...)
}

// sliceWith sets an EndpointSlice with a port as YAML.
func (b *bed) sliceWith(service, name, port string, endpoints ...string) {
	b.T.Helper()
	text := fmt.Sprintf("{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: %s, labels: "+
		"{kubernetes.io/service-name: %s}}, addressType: IPv4, ports: [{%s, protocol: TCP}], "+
		"endpoints: [%s]}", name, service, port, strings.Join(endpoints, ", "))
	if err := b.api.Apply("/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/"+name, text); err != nil {
		b.T.Fatal(err)
	}
}

func at(h *netlab.Host, conditions string) string {
	return fmt.Sprintf("{addresses: [%s], conditions: {%s}}", h.Addr4(), conditions)
}

// A pod with the proxy reaches the current endpoints of Services by their cluster addresses. Pods without it, and
// Services that are disabled or not supported, are left to kube-proxy, which does not run here.
func TestServices(t *testing.T) {
	b := newBed(t)
	first, second := b.endpoint("first", targetPort), b.endpoint("second", targetPort)
	third := b.endpoint("third", targetPort+1)
	client := b.pod("client", map[string]string{"app": "client"})
	plain := b.pod("plain", map[string]string{"app": "plain"})
	address := b.service("web", "")
	b.slice("web", "web-1", targetPort, at(first, "ready: true"), at(second, "ready: false"))
	off := b.service("stays", "")
	b.slice("stays", "stays-1", targetPort, at(first, "ready: true"))
	if err := b.api.Apply("/api/v1/namespaces/default/services/stays",
		`{apiVersion: v1, kind: Service, metadata: {name: stays, annotations: {kerb.dev/proxy: "off"}}, spec: {`+
			`ports: [{name: http, port: 80, targetPort: web}]}}`); err != nil {
		t.Fatal(err)
	}
	differs := b.service("differs", "")
	b.slice("differs", "differs-1", targetPort, at(first, "ready: true"))
	b.slice("differs", "differs-2", targetPort+1, at(third, "ready: true"))
	var ports []string
	for i := range 257 {
		ports = append(ports, fmt.Sprintf("{name: p%d, port: %d}", i, 80+i))
	}
	many := b.serviceWith("many", "ports: ["+strings.Join(ports, ", ")+"]")
	b.sliceWith("many", "many-1", fmt.Sprint("name: p0, port: ", targetPort), at(first, "ready: true"))

	plain.await("")
	var all []v1.VirtualService
	if b.Must(http.MethodGet, "/v1/virtualservices", nil, &all); len(all) > 0 {
		t.Errorf("without the proxy there are %d virtual services", len(all))
	}
	b.module("px", "{package: {name: proxy}, attach: {pods: {podSelector: {matchLabels: {app: client}}}}}")
	client.await("px")
	reaches := func(what, want string) {
		t.Helper()
		b.Eventually(what, func() bool { return client.reach(address, 80) == want })
	}
	reaches("the ready endpoint answers", "first")
	for what, got := range map[string]string{"a pod without the proxy": plain.reach(address, 80),
		"a Service that is off": client.reach(off, 80), "one with too many ports": client.reach(many, 80)} {
		if got == "first" || got == "second" {
			t.Errorf("%s is served: %s", what, got)
		}
	}
	b.Eventually("the node reports what stays with kube-proxy", func() bool {
		for _, c := range b.status().Status.Conditions {
			if c.Type == "ServicesProxied" {
				return c.Status == "False" && strings.Contains(c.Message, "default/many: it has over 256 ports") &&
					!strings.Contains(c.Message, "default/web") && !strings.Contains(c.Message, "differs")
			}
		}
		return false
	})

	b.slice("web", "web-1", targetPort, at(first, "ready: false, serving: true, terminating: true"),
		at(second, "ready: true"))
	reaches("the connection moves to the other endpoint", "second")
	hint := func(h *netlab.Host, node string) string {
		return fmt.Sprintf("{addresses: [%s], hints: {forNodes: [{name: %s}]}}", h.Addr4(), node)
	}
	b.slice("web", "web-1", targetPort, hint(first, "n1"), hint(second, "n2"))
	reaches("the endpoint with a hint for the node answers", "first")
	for range 3 {
		if got := client.reach(address, 80); got != "first" {
			t.Errorf("an endpoint with a hint for another node answers: %s", got)
		}
	}
	b.slice("web", "web-1", targetPort, at(second, "ready: true"))
	reaches("the only endpoint answers", "second")
	b.serve(client.host, "itself", targetPort)
	b.slice("web", "web-1", targetPort, at(client.host, "ready: true"))
	reaches("a pod reaches itself by a cluster address", "itself")
	b.slice("web", "web-1", targetPort, at(second, "ready: true"))
	reaches("the only endpoint answers again", "second")
	met := map[string]bool{}
	b.Eventually("endpoints whose target ports differ are served, each on its own", func() bool {
		met[client.reach(differs, 80)] = true
		return met["first"] && met["third"]
	})

	// Nothing is lost while the API server and kerb-kube-node are down.
	b.stop(syscall.SIGKILL)
	b.api.Hang()
	b.start()
	reaches("without the API server", "second")
	b.api.Resume()
	b.slice("web", "web-1", targetPort, at(first, "ready: true"))
	reaches("with the API server again", "first")
	b.api.Must(http.MethodDelete, "/api/v1/namespaces/default/services/web", nil, nil)
	b.Eventually("the virtual service is deleted", func() bool {
		return b.Get("/v1/virtualservices/"+names.VirtualService("default", "web"), nil) != nil
	})
	b.api.Must(http.MethodDelete, modulesPath+"px", nil, nil)
	b.Eventually("without the proxy all are deleted", func() bool {
		b.Must(http.MethodGet, "/v1/virtualservices", nil, &all)
		return len(all) == 0
	})
}

// echo makes a host send back the data of TCP connections to a port.
func (b *bed) echo(h *netlab.Host, port uint16) {
	b.T.Helper()
	b.listen(h, port, func(c net.Conn) { _, _ = io.Copy(c, c) })
}

// open opens a connection from a pod, and returns a function that reports whether it is still answered.
func (p *pod) open(address string, port int) (answered func() error) {
	p.bed.T.Helper()
	var c net.Conn
	err := p.host.Do(func() (err error) {
		c, err = (&net.Dialer{Timeout: wait.Patience / 60}).Dial("tcp", net.JoinHostPort(address, fmt.Sprint(port)))
		return err
	})
	if err != nil {
		p.bed.T.Fatal(err)
	}
	p.bed.T.Cleanup(func() { c.Close() })
	return func() error {
		if err := c.SetDeadline(time.Now().Add(wait.Patience)); err != nil {
			return err
		}
		if _, err := c.Write([]byte("x")); err != nil {
			return err
		}
		_, err := io.ReadFull(c, make([]byte, 1))
		return err
	}
}

// Each port of a Service has the endpoints whose EndpointSlices contain it, in one virtual service. When the endpoints
// of one port change, connections to another continue.
func TestServiceWithEndpointsByPort(t *testing.T) {
	b := newBed(t)
	first, second := b.endpoint("first", targetPort), b.endpoint("second", targetPort)
	b.serve(first, "admin of first", targetPort+1)
	b.serve(second, "admin of second", targetPort+1)
	b.echo(second, targetPort+2)
	client := b.pod("client", map[string]string{"app": "client"})
	address := b.serviceWith("web", "ports: [{name: http, port: 80, targetPort: web}, "+
		"{name: admin, port: 81, targetPort: admin}, {name: echo, port: 82, targetPort: echo}]")
	ports := func(names ...string) string { // for sliceWith
		numbers := map[string]int{"http": targetPort, "admin": targetPort + 1, "echo": targetPort + 2}
		for i, name := range names {
			names[i] = fmt.Sprintf("name: %s, port: %d", name, numbers[name])
		}
		return strings.Join(names, ", protocol: TCP}, {")
	}
	b.sliceWith("web", "web-1", ports("http", "admin"), at(first, "ready: true"))
	b.sliceWith("web", "web-2", ports("http", "echo"), at(second, "ready: true"))
	b.module("px", "{package: {name: proxy}, attach: {pods: {podSelector: {matchLabels: {app: client}}}}}")
	client.await("px")
	meets := func(what string, port int, want ...string) {
		t.Helper()
		met := map[string]bool{}
		b.Eventually(what, func() bool {
			met[client.reach(address, port)] = true
			return !slices.ContainsFunc(want, func(name string) bool { return !met[name] })
		})
		for range 6 {
			if got := client.reach(address, port); !slices.Contains(want, got) {
				t.Errorf("%s: port %d leads to %q, want %v", what, port, got, want)
			}
		}
	}
	meets("both serve the port", 80, "first", "second")
	meets("one serves the port", 81, "admin of first")
	answered := client.open(address, 82)
	check := func(what string) {
		t.Helper()
		if err := answered(); err != nil {
			t.Errorf("%s: the connection to another port: %v", what, err)
		}
	}
	check("at first")

	b.sliceWith("web", "web-1", ports("admin"), at(first, "ready: true"))
	b.sliceWith("web", "web-2", ports("http", "admin", "echo"), at(second, "ready: true"))
	meets("both serve it now", 81, "admin of first", "admin of second")
	meets("one is left", 80, "second")
	check("when other ports have other endpoints")
	b.sliceWith("web", "web-1", ports("http", "admin", "echo"), at(first, "ready: true"))
	meets("both serve it again", 80, "first", "second")
	check("when all have all ports")

	var one v1.VirtualService
	b.Eventually("all conditions are True", func() bool { // after the last change, packets meet it a moment before
		one = v1.VirtualService{}
		b.Must(http.MethodGet, "/v1/virtualservices/"+names.VirtualService("default", "web"), nil, &one)
		return !slices.ContainsFunc(one.Status.Conditions, func(c v1.Condition) bool { return c.Status != "True" })
	})
	if one.Metadata.Owner != names.OwnerServices || len(one.Status.Conditions) == 0 {
		t.Errorf("%+v", one)
	}
	b.Eventually("the node serves all Services", func() bool {
		return slices.ContainsFunc(b.status().Status.Conditions, func(c api.Condition) bool {
			return c.Type == "ServicesProxied" && c.Status == "True"
		})
	})
}
