// SPDX-License-Identifier: Apache-2.0

// Package soak runs 20 services on one node, one of them hostile, with all built-in modules on all of them. The hostile
// service sends floods, forged sources, malformed frames, and connection storms at a fixed rate from one CPU; the
// others communicate below saturation. No connection of theirs may be reset and no datagram lost, with all modules as
// with a counter alone, and the two are run alternately, so that their round trips can be compared. `make test-soak`
// runs it for half an hour; KERB_SOAK sets the time of one run, KERB_SOAK_PAIRS how many pairs.
package soak

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/lab/node"
	"github.com/kerb-edge/kerb/internal/lab/node/nodetest"
)

func TestMain(m *testing.M) { os.Exit(nodetest.Main(m)) }

const (
	services = 20
	echoPort = 9000 // TCP, at every honest service
	sinkPort = 9001 // UDP, at every honest service
	vipPort  = 80
	coapPort = 5683

	// Maximum ratio of round trips with all modules and with a counter alone, at p99. Checked only in the long run.
	maxSlowdown = 1.5
)

// length returns the time of one run and the number of pairs: a few seconds by default.
func length(t *testing.T) (run time.Duration, pairs int, soak bool) {
	t.Helper()
	run, pairs = 4*time.Second, 1
	text := os.Getenv("KERB_SOAK")
	if text == "" {
		return run, pairs, false
	}
	run, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("KERB_SOAK: %v", err)
	}
	pairs = 5
	if n, err := strconv.Atoi(os.Getenv("KERB_SOAK_PAIRS")); err == nil {
		pairs = n
	}
	return run, pairs, true
}

// place is the node with its services: the first is hostile.
type place struct {
	*nodetest.Node
	hosts []*netlab.Host
}

func newPlace(t *testing.T) *place {
	t.Helper()
	p := &place{Node: nodetest.New(t)}
	var resources []any
	for i := range services {
		h := p.Host(fmt.Sprintf("s%d", i))
		p.hosts = append(p.hosts, h)
		resources = append(resources, node.Service(h))
	}
	p.Start()
	p.Apply(resources...)
	return p
}

// vip returns the virtual address of an honest service.
func vip(i int) string { return fmt.Sprintf("10.30.0.%d", i+1) }

// modules returns all built-in modules.
func (p *place) modules() []any {
	allow := func(protocol string, port int) map[string]any {
		return map[string]any{"action": "allow", "direction": "ingress", "protocol": protocol, "dstPort": port}
	}
	resources := []any{
		node.Module("fw", "firewall", "*",
			map[string]any{"rules": []any{allow("tcp", echoPort), allow("udp", sinkPort), allow("udp", coapPort),
				allow("udp", 7000)}}),
		node.Module("px", "proxy", "*", map[string]any{"ranges": []string{"10.30.0.0/16"}}),
		node.Module("tun", "tunnel", "*",
			map[string]any{"nodes": []any{map[string]any{"address": "192.0.2.2", "subnets": []string{"10.18.0.64/26"}}}}),
		node.Module("resp", "responder", "*", map[string]any{"listeners": []any{
			map[string]any{"app": "echo", "port": 7000},
			map[string]any{"app": "coap", "port": coapPort,
				"resources": []any{map[string]any{"path": "a", "value": "a value"}}}}}),
		node.Module("icpt", "intercept", "*", map[string]any{"classes": []any{
			map[string]any{"name": "ctrl", "match": map[string]any{"protocol": "udp", "ports": []int{8080}}}}}),
		node.Module("accel", "accelerator", "*", nil),
		node.Module("cls", "classifier", "*", map[string]any{"extractor": "flow"}),
	}
	for i := 1; i < services; i++ {
		var v v1.VirtualService
		v.APIVersion, v.Kind, v.Metadata.Name = "kerb.dev/v1alpha1", "VirtualService", fmt.Sprintf("v%d", i)
		v.Spec.Addresses = []v1.VirtualAddress{{Address: vip(i), Policy: "roundRobin"}}
		v.Spec.Ports = []v1.VirtualPort{{Port: vipPort, TargetPort: echoPort}}
		v.Spec.Instances = []v1.VirtualInstance{{Name: "i", Service: p.hosts[i].Name()}}
		resources = append(resources, v)
	}
	return resources
}

func (p *place) delete(resources []any) {
	p.T.Helper()
	for _, r := range slices.Backward(resources) {
		switch r := r.(type) {
		case v1.Module:
			p.Must("DELETE", "/v1/modules/"+r.Metadata.Name, nil, nil)
		case v1.VirtualService:
			p.Must("DELETE", "/v1/virtualservices/"+r.Metadata.Name, nil, nil)
		}
	}
}

// TestHostileService alternates between a counter alone and all modules, and compares.
func TestHostileService(t *testing.T) {
	run, pairs, soak := length(t)
	p := newPlace(t)
	p.Apply(node.Module("count", "counter", "*", nil))
	var base, all []float64
	for i := range pairs {
		p.pair(i, run, &base, &all)
		if t.Failed() {
			return
		}
	}
	ratio := median(all) / median(base)
	t.Logf("p99 round trip, medians of %d pairs of %v: %.0f us with a counter, %.0f us with all modules, ratio %.2f",
		pairs, run, median(base), median(all), ratio)
	if soak && ratio > maxSlowdown {
		t.Errorf("p99 is %.2f times that of a counter alone, more than %.1f", ratio, maxSlowdown)
	}
}

// pair runs both configurations once, in alternating order.
func (p *place) pair(i int, run time.Duration, base, all *[]float64) {
	measure := func(virtual bool) {
		if !virtual {
			*base = append(*base, p.run(run, false))
			return
		}
		resources := p.modules()
		p.Apply(resources...)
		*all = append(*all, p.run(run, true))
		p.delete(resources)
	}
	measure(i%2 == 1)
	measure(i%2 == 0)
}

func median(x []float64) float64 {
	x = slices.Sorted(slices.Values(x))
	return x[len(x)/2]
}
