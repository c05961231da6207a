// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"errors"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/lab/node/nodetest"
)

// instance returns an instance that is found by the service of its name, or by its addresses.
func instance(h *netlab.Host, registered bool) v1.VirtualInstance {
	if registered {
		return v1.VirtualInstance{Name: h.Name(), Service: h.Name()}
	}
	return v1.VirtualInstance{Name: h.Name(), Addresses: []string{h.Addr4().String(), h.Addr6().String()}}
}

var bothPorts = []v1.VirtualPort{{Port: port, TargetPort: targetPort},
	{Port: port, TargetPort: targetPort, Protocol: v1.ProtocolUDP}}

// newMesh returns a node with a client and servers with the proxy, and one server without.
func newMesh(t *testing.T, config string,
	module map[string]any) (n *node, client *netlab.Host, servers []*netlab.Host) {
	t.Helper()
	n = &node{nodetest.New(t)}
	n.Configure(config)
	client = n.Host("client")
	servers = []*netlab.Host{n.Host("web0"), n.Host("web1"), n.Host("far")}
	for _, s := range servers {
		serve(t, s)
	}
	n.Start()
	n.Apply(service(client), service(servers[0]), service(servers[1]), proxyModule(module))
	return n, client, servers
}

func meshSpec(servers []*netlab.Host, policy v1.Policy) v1.VirtualServiceSpec {
	return v1.VirtualServiceSpec{Ports: bothPorts,
		Addresses: []v1.VirtualAddress{{Address: "10.30.0.2", Policy: policy}, {Address: "fdff:2000::2", Policy: policy},
			{Address: "10.30.1.1", Instance: servers[1].Name()}},
		Instances: []v1.VirtualInstance{instance(servers[0], true), instance(servers[1], true), instance(servers[2], false)}}
}

var virtual4, virtual6 = netip.MustParseAddr("10.30.0.2"), netip.MustParseAddr("fdff:2000::2")

// Every instance is reached, round-robin: on this node with the proxy on its interface, and without it; TCP, UDP and
// ICMP, both families, small and in fragments; by the short path and by the bridge.
func TestServices(t *testing.T) {
	for name, config := range map[string]map[string]any{"short path": nil, "bridge": {"shortPath": false}} {
		t.Run(name, func(t *testing.T) {
			n, client, servers := newMesh(t, "", config)
			n.Apply(virtualService("web", meshSpec(servers, v1.PolicyRoundRobin)))
			n.synced("web")
			for i, want := range []string{"ordinary", "peer", "peer"} { // by name: far, web0, web1
				if got := n.indices()[i]; got.Path != want && config == nil {
					t.Errorf("packets to %s take the path %s, want %s", got.Name, got.Path, want)
				}
			}
			for _, a := range []netip.Addr{virtual4, virtual6} {
				at := netip.AddrPortFrom(a, port)
				checkTurns(t, "TCP "+a.String(), func() (string, error) {
					c, err := dialTCP(client, at)
					if err != nil {
						return "", err
					}
					defer c.Close()
					return c.server, errors.Join(c.exchange("hello"), c.exchange(strings.Repeat(c.server, bulk/len(c.server))))
				})
				for _, size := range []int{1, 1900} {
					checkTurns(t, "UDP "+a.String(), func() (string, error) {
						c, err := dialUDP(client, at)
						if err != nil {
							return "", err
						}
						t.Cleanup(func() { c.Close() }) // later, since a socket that reuses its port would have the same flow
						return askUDP(c, string(make([]byte, size)), patience)
					})
				}
				for _, size := range []int{8, 4000} {
					if err := ping(client, a, size); err != nil {
						t.Errorf("%d bytes: %v", size, err)
					}
				}
			}
			for range 3 {
				c, err := dialTCP(client, netip.MustParseAddrPort("10.30.1.1:80"))
				if err != nil {
					t.Fatal(err)
				}
				if c.Close(); c.server != servers[1].Name() {
					t.Errorf("the address of %s leads to %s", servers[1].Name(), c.server)
				}
			}
			if c, err := dialTCP(client, netip.AddrPortFrom(virtual4, 81)); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("a port that is not served: %v, %v", c, err)
			}
		})
	}
}

// checkTurns calls a virtual service of three instances.
func checkTurns(t *testing.T, what string, call func() (string, error)) {
	t.Helper()
	got := map[string]int{}
	for range 9 {
		name, err := call()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		got[name]++
	}
	for _, name := range []string{"web0", "web1", "far"} {
		if got[name] != 3 {
			t.Errorf("%s: %v, want three each", what, got)
			return
		}
	}
}

// A service that calls its own virtual address reaches itself.
func TestHairpin(t *testing.T) {
	n, _, servers := newMesh(t, "", nil)
	spec := meshSpec(servers, v1.PolicyRoundRobin)
	spec.Instances = spec.Instances[:2]
	n.Apply(virtualService("web", spec))
	n.synced("web")
	seen := map[string]int{}
	for range 4 {
		c, err := dialTCP(servers[0], netip.AddrPortFrom(virtual4, port))
		if err != nil {
			t.Fatal(err)
		}
		if err := c.exchange("hello"); err != nil {
			t.Error(err)
		}
		seen[c.server]++
		c.Close()
	}
	if seen["web0"] != 2 || seen["web1"] != 2 {
		t.Error(seen)
	}
}

// Connections to unknown addresses and to services without instances are rejected immediately, also after a virtual
// service was deleted.
func TestUnknownIsRefused(t *testing.T) {
	n, client, servers := newMesh(t, "", map[string]any{"ranges": []string{"10.30.0.0/16", "fdff:2000::/21"}})
	spec := meshSpec(servers, v1.PolicyRoundRobin)
	n.Apply(virtualService("web", spec))
	n.synced("web")
	connects := func(a netip.Addr) error {
		c, err := dialTCP(client, netip.AddrPortFrom(a, port))
		if err == nil {
			c.Close()
		}
		return err
	}
	for _, a := range []netip.Addr{virtual4, virtual6} {
		if err := connects(a); err != nil {
			t.Fatal(err)
		}
		for range 2 { // looked up, and known not to exist
			if err := connects(a.Next()); !errors.Is(err, syscall.EHOSTUNREACH) {
				t.Errorf("%s, which is unknown: %v", a.Next(), err)
			}
		}
	}
	for i := range spec.Instances {
		spec.Instances[i].Draining = true
	}
	n.Apply(virtualService("web", spec))
	n.synced("web")
	if err := connects(virtual4); !errors.Is(err, syscall.EHOSTUNREACH) {
		t.Errorf("all instances drain: %v", err)
	}
	n.Must(http.MethodDelete, "/v1/virtualservices/web", nil, nil)
	n.Eventually("the address is unknown again", func() bool { return n.isUnknown(virtual4) })
	if err := connects(virtual4); !errors.Is(err, syscall.EHOSTUNREACH) {
		t.Errorf("no longer virtual: %v", err)
	}
	spec.Instances[0].Draining = false
	n.Apply(virtualService("web", spec))
	n.synced("web")
	if err := connects(virtual4); err != nil {
		t.Errorf("virtual again: %v", err)
	}
}

func (n *node) isUnknown(a netip.Addr) bool {
	var services []struct{ Addresses []struct{ Address string } }
	if n.Get("/v1/modules/px/services", &services) != nil {
		return false
	}
	for _, s := range services {
		for _, v := range s.Addresses {
			if v.Address == a.String() {
				return false
			}
		}
	}
	return true
}

// Connections continue while the agent is down and when it is back, whose updates then change nothing.
func TestAgentDies(t *testing.T) {
	n, client, servers := newMesh(t, "", nil)
	n.Apply(virtualService("web", meshSpec(servers, v1.PolicyConsistentHash)))
	n.synced("web")
	var open []*connection
	for range 12 {
		c, err := dialTCP(client, netip.AddrPortFrom(virtual4, port))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		open = append(open, c)
	}
	all := func(when string) {
		t.Helper()
		for _, c := range open {
			if err := c.exchange(when); err != nil {
				t.Errorf("%s: a connection to %s: %v", when, c.server, err)
			}
		}
		c, err := dialTCP(client, netip.AddrPortFrom(virtual6, port))
		if err != nil {
			t.Fatalf("%s: a new connection: %v", when, err)
		}
		c.Close()
	}
	before := n.indices()
	all("before")
	n.Kill()
	all("while the agent is dead")
	n.Start()
	n.synced("web")
	all("after its restart")
	if after := n.indices(); !slices.Equal(before, after) {
		t.Errorf("instances were %v, and are %v", before, after)
	}
}

type indexed struct {
	Name              string
	Index, Generation int
	Path              string
}

func (n *node) indices() (out []indexed) {
	n.T.Helper()
	n.Must(http.MethodGet, "/v1/modules/px/instances", nil, &out)
	return out
}

// After a redeployment, an instance is a different one for TCP and the same for UDP.
func TestRedeployed(t *testing.T) {
	n, client, servers := newMesh(t, "", nil)
	spec := v1.VirtualServiceSpec{Ports: bothPorts, Addresses: []v1.VirtualAddress{{Address: virtual4.String()}},
		Instances: []v1.VirtualInstance{{Name: "only", Service: servers[0].Name()}}}
	n.Apply(virtualService("web", spec))
	n.synced("web")
	at := netip.AddrPortFrom(virtual4, port)
	c, err := dialTCP(client, at)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	u, err := dialUDP(client, at)
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	if name, err := askUDP(u, "x", patience); err != nil || name != "web0" {
		t.Fatal(name, err)
	}
	spec.Instances[0].Service = servers[1].Name()
	n.Apply(virtualService("web", spec))
	n.synced("web")
	if err := c.exchange("x"); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a connection to the process that is gone: %v, want a reset", err)
	}
	if name, err := askUDP(u, "x", patience); err != nil || name != "web1" {
		t.Errorf("UDP reaches %q, %v", name, err)
	}
	begin := time.Now()
	again, err := dialTCP(client, at)
	if err != nil || again.server != "web1" {
		t.Fatalf("a new connection: %v", err)
	}
	again.Close()
	t.Logf("connected in %v", time.Since(begin))
}

// A server that has ended gets no new connections, and the operator can read the reason; when it listens again it gets
// its share.
func TestEjected(t *testing.T) {
	n := &node{nodetest.New(t)}
	client, web, ended := n.Host("client"), n.Host("web0"), n.Host("web1")
	serve(t, web)
	n.Start()
	n.Apply(service(client), service(web), service(ended),
		proxyModule(map[string]any{"passiveHealth": map[string]any{"ejectFor": "3s"}}),
		virtualService("web",
			v1.VirtualServiceSpec{Ports: bothPorts, Addresses: []v1.VirtualAddress{{Address: virtual4.String()}},
				Instances: []v1.VirtualInstance{instance(web, true), instance(ended, true)}}))
	n.synced("web")
	connects := func() map[string]int {
		got := map[string]int{}
		for range 12 {
			c, err := dialTCP(client, netip.AddrPortFrom(virtual4, port))
			if errors.Is(err, syscall.ECONNREFUSED) {
				got["refused"]++
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			got[c.server]++
			c.Close()
		}
		return got
	}
	if got := connects(); got["refused"] != 6 {
		t.Fatalf("before: %v", got)
	}
	var status *v1.VirtualServiceStatus
	n.Eventually("the status names the ejected instance", func() bool {
		connects()
		var s v1.VirtualService
		n.Must(http.MethodGet, "/v1/virtualservices/web", nil, &s)
		status = s.Status
		return status.Instances[1].Ejected != ""
	})
	if text := status.Instances[1].Ejected; !strings.HasPrefix(text, "module px: ") ||
		!strings.Contains(text, "connects failed in a row; until ") {
		t.Errorf("why: %q", text)
	}
	if ready := status.Conditions[0]; ready.Message != "1 of 2 instances take connections; 1 ejected" {
		t.Errorf("%+v", ready)
	}
	n.Eventually("all connections succeed", func() bool { return connects()["web0"] == 12 })
	serve(t, ended)
	n.Eventually("the instance has returned", func() bool { return connects()["web1"] == 6 })
}
