// SPDX-License-Identifier: Apache-2.0

package combinations

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/lab/cgrouptest"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
	kerbnode "github.com/kerb-edge/kerb/internal/lab/node"
	"github.com/kerb-edge/kerb/internal/lab/node/nodetest"
)

func TestMain(m *testing.M) { os.Exit(nodetest.Main(m)) }

// UDP ports of the servers. Denied ports are open: only the firewall blocks their packets.
const (
	livePort      = 7000 // a process answers, on TCP too
	deniedPort    = 7001 // a process answers; denied
	echoPort      = 7100 // the responder answers
	echoDenied    = 7101 // the responder would answer; denied
	deliverPort   = 7200 // intercept delivers
	deliverDenied = 7201 // intercept would deliver; denied
)

// notFirewall are packages that the accelerator's redirected data may bypass; firewalls process all of it.
var notFirewall = []string{"classifier", "counter", "flows", "intercept", "nat", "proxy", "responder", "tunnel"}

// plans are the networks of services by node.
var plans = [2][2]netip.Prefix{
	{netip.MustParsePrefix("10.81.0.0/16"), netip.MustParsePrefix("fd81::/64")},
	{netip.MustParsePrefix("10.82.0.0/16"), netip.MustParsePrefix("fd82::/64")},
}

// field is two nodes that route to each other, with a client and a server on the first and a server on the second.
type field struct {
	t           *testing.T // of the current subtest
	root        *testing.T
	nodes       [2]*nodetest.Node
	wire        *netlab.Wire
	client      *netlab.Host
	servers     [2]*server // by node
	virtualNext byte
}

// server is a service that answers, with its virtual addresses.
type server struct {
	*netlab.Host
	node    int
	virtual []netip.Addr
}

// addresses returns the addresses by which the client reaches the server: its own, and with a proxy the virtual ones.
func (s *server) addresses(proxied bool) []netip.Addr {
	own := []netip.Addr{s.Addr4(), s.Addr6()}
	if !proxied {
		return own
	}
	return append(own, s.virtual...)
}

// newField creates the nodes and starts agents without modules. Sockets of the test are in a separate cgroup, by which
// the accelerator finds services' sockets. config is added to the configuration of each agent.
func newField(t *testing.T, config ...string) *field {
	t.Helper()
	f := &field{t: t, root: t}
	cgroup := cgrouptest.New(t, "", "kerb-combinations")
	cgrouptest.Enter(t, cgroup)
	for i := range f.nodes {
		f.nodes[i] = nodetest.Open(t, netlab.Options{Gateway: true, Plan4: plans[i][0], Plan6: plans[i][1]})
		f.nodes[i].Configure("cgroup: " + cgroup + "\n" + strings.Join(config, ""))
	}
	var err error
	if f.wire, err = netlab.Connect(f.nodes[0].Lab, f.nodes[1].Lab, 1500); err != nil {
		t.Fatal(err)
	}
	f.client = f.nodes[0].Host("client")
	f.servers = [2]*server{f.server(0, "near"), f.server(1, "far")}
	for i, n := range f.nodes {
		if err := n.Lab.Node().Do(func() error { return f.route(i) }); err != nil {
			t.Fatal(err)
		}
		n.Start()
		resources := []any{f.servers[0].resource(f), f.servers[1].resource(f), kerbnode.Service(f.servers[i].Host)}
		if i == 0 {
			resources = append(resources, kerbnode.Service(f.client))
		}
		n.Apply(resources...)
	}
	return f
}

// server adds a host that answers on the live port and on the denied one.
func (f *field) server(node int, name string) *server {
	f.t.Helper()
	f.virtualNext++
	s := &server{Host: f.nodes[node].Host(name), node: node, virtual: []netip.Addr{
		netip.AddrFrom4([4]byte{10, 30, 0, f.virtualNext}),
		netip.MustParseAddr(fmt.Sprintf("fdff:2000::%d", f.virtualNext))}}
	for _, addr := range []netip.Addr{s.Addr4(), s.Addr6()} {
		if err := s.Do(func() error { return f.serve(addr) }); err != nil {
			f.t.Fatal(err)
		}
	}
	return s
}

// serve echoes each datagram and each TCP message.
func (f *field) serve(addr netip.Addr) error {
	for _, port := range []uint16{livePort, deniedPort} {
		c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, port)))
		if err != nil {
			return err
		}
		f.t.Cleanup(func() { c.Close() })
		go echoDatagrams(c)
	}
	l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(addr, livePort)))
	if err != nil {
		return err
	}
	f.t.Cleanup(func() { l.Close() })
	go echoStreams(l)
	return nil
}

func echoDatagrams(c *net.UDPConn) {
	data := make([]byte, 2000)
	for {
		n, from, err := c.ReadFromUDPAddrPort(data)
		if err != nil {
			return // closed
		}
		_, _ = c.WriteToUDPAddrPort(data[:n], from)
	}
}

func echoStreams(l *net.TCPListener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return // closed
		}
		go func() {
			defer c.Close()
			data := make([]byte, 4096)
			for {
				n, err := c.Read(data)
				if err != nil {
					return
				}
				if _, err := c.Write(data[:n]); err != nil {
					return
				}
			}
		}()
	}
}

// resource returns the virtual service with the server as its instance.
func (s *server) resource(f *field) v1.VirtualService {
	var addresses []v1.VirtualAddress
	for _, a := range s.virtual {
		addresses = append(addresses, v1.VirtualAddress{Address: a.String()})
	}
	return v1.VirtualService{
		TypeMeta: v1.TypeMeta{APIVersion: v1.APIVersion, Kind: v1.KindVirtualService},
		Metadata: v1.ObjectMeta{Name: s.Name()},
		Spec: v1.VirtualServiceSpec{Addresses: addresses, Instances: []v1.VirtualInstance{{Name: s.Name(),
			Addresses: []string{s.Addr4().String(), s.Addr6().String()},
			Node:      f.wire.Addr4(f.nodes[s.node].Lab).String()}}},
	}
}

// route adds routes by the wire to the services of the other node, for packets that no tunnel encapsulates.
func (f *field) route(node int) error {
	lab, other := f.nodes[node].Lab, f.nodes[1-node].Lab
	for i, gateway := range []netip.Addr{f.wire.Addr4(other), f.wire.Addr6(other)} {
		plan := plans[1-node][i]
		err := netlink.RouteAdd(&netlink.Route{LinkIndex: f.wire.Index(lab), Gw: gateway.AsSlice(),
			Dst: &net.IPNet{IP: plan.Addr().AsSlice(), Mask: net.CIDRMask(plan.Bits(), plan.Addr().BitLen())}})
		if err != nil {
			return fmt.Errorf("route to %s: %w", plan, err)
		}
	}
	return nil
}

// deploy makes the modules of both nodes exactly these packages, each under its own name.
func (f *field) deploy(packages []string) {
	f.t.Helper()
	for i, n := range f.nodes {
		modules := make([]v1.Module, 0, len(packages))
		for _, p := range packages {
			modules = append(modules, f.module(i, p))
		}
		if err := n.Call(http.MethodPost, "/v1/apply?owner=combinations&prune=true", modules, nil); err != nil {
			f.t.Fatal(err)
		}
	}
	for _, p := range []string{"proxy", "tunnel"} {
		for _, n := range f.nodes {
			if slices.Contains(packages, p) {
				n.Eventually(p+" knows the virtual services", func() bool { return knows(n, p, "near") && knows(n, p, "far") })
			}
		}
	}
}

func knows(n *nodetest.Node, module, service string) bool {
	var vs v1.VirtualService
	return n.Get("/v1/virtualservices/"+service, &vs) == nil && vs.Status != nil &&
		slices.Contains(vs.Status.Modules, module)
}

// module returns a package with a config for these tests, which affects only the ports of its tests.
func (f *field) module(node int, pkg string) v1.Module {
	m := kerbnode.Module(pkg, pkg, "*", f.config(pkg))
	if pkg == "nat" {
		m.Spec.Attach.Services = "app=client"
	}
	if pkg == "tunnel" {
		m.Spec.Attach.Interfaces = []string{f.wire.Interface(f.nodes[node].Lab)}
	}
	return m
}

func (f *field) config(pkg string) map[string]any {
	switch pkg {
	case "firewall":
		rules := []any{
			map[string]any{"name": "ping", "action": "allow", "direction": "ingress", "protocol": "icmp", "icmpType": 8},
			map[string]any{"name": "tcp", "action": "allow", "direction": "ingress", "protocol": "tcp", "dstPort": livePort},
		}
		for _, port := range []int{livePort, echoPort, deliverPort} {
			rules = append(rules,
				map[string]any{"action": "allow", "direction": "ingress", "protocol": "udp", "dstPort": port})
		}
		return map[string]any{"rules": rules}
	case "tunnel":
		var nodes []any
		for i, n := range f.nodes {
			nodes = append(nodes, map[string]any{"address": f.wire.Addr4(n.Lab).String(),
				"subnets": []any{plans[i][0].String(), plans[i][1].String()}})
		}
		return map[string]any{"nodes": nodes}
	case "responder":
		var listeners []any
		for _, port := range []int{echoPort, echoDenied} {
			listeners = append(listeners, map[string]any{"app": "echo", "port": port, "sourceRate": 0})
		}
		return map[string]any{"listeners": listeners}
	case "intercept":
		return map[string]any{"classes": []any{map[string]any{"name": "taken", "action": "steal",
			"match": map[string]any{"protocol": "udp", "ports": []int{deliverPort, deliverDenied}}}}}
	case "nat":
		return natConfig()
	case "classifier":
		return map[string]any{"extractor": "flow"}
	case "accelerator":
		return map[string]any{"mode": "redirect-all", "past": notFirewall,
			"programs": map[string]any{"allow": []any{filepath.Base(os.Args[0])}}}
	}
	return nil
}
