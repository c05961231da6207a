// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/kerb-edge/kerb/api/v1alpha1"
)

// chooser is a data plane with the tables of the control plane.
type chooser struct {
	*testControl
	data *kernel
	port uint16
}

func newChooser(t *testing.T, n int, policy v1alpha1.Policy) (*chooser, func(edit func([]v1alpha1.VirtualInstance))) {
	t.Helper()
	data := loadProxy(t, nil)
	c := &chooser{testControl: newTestControlOn(t, "", data.maps), data: data, port: 1024}
	vs := webService(n, policy)
	put := func(edit func([]v1alpha1.VirtualInstance)) {
		t.Helper()
		edit(vs.Spec.Instances)
		c.put(vs)
	}
	put(func([]v1alpha1.VirtualInstance) {})
	return c, put
}

// choose opens a connection from a client and returns the name of its instance, or "".
func (c *chooser) choose(client string, port uint16) string {
	c.t.Helper()
	to := "10.30.0.1"
	if netip.MustParseAddr(client).Is6() {
		to = "fdff:2000::1"
	}
	c.data.out(tcp(client, port, to, 80, tcpSYN).bytes())
	for k, s := range c.data.table() {
		if s.Flags&sessionReverse == 0 && k.Src.addr() == netip.MustParseAddr(client) && k.SPort == portOf(port) {
			return c.nameOf(s.Instance)
		}
	}
	return ""
}

// shares opens n connections of one client per family, and counts them by instance.
func (c *chooser) shares(n int, client string) map[string]int {
	c.t.Helper()
	out := map[string]int{}
	for range n {
		c.port++
		out[c.choose(client, c.port)]++
	}
	return out
}

var clientsOf = []string{"10.18.9.9", "fd00:9::9"}

func TestRoundRobinIsChosen(t *testing.T) {
	c, put := newChooser(t, 4, v1alpha1.PolicyRoundRobin)
	for _, client := range clientsOf {
		c.same(client, c.shares(40, client), map[string]int{"web-0": 10, "web-1": 10, "web-2": 10, "web-3": 10})
	}
	put(func(all []v1alpha1.VirtualInstance) { all[1].Draining = true })
	c.same("while one drains", c.shares(30, clientsOf[0]), map[string]int{"web-0": 10, "web-2": 10, "web-3": 10})
	put(func(all []v1alpha1.VirtualInstance) {
		for i := range all {
			all[i].Draining = true
		}
	})
	c.same("while all drain", c.shares(5, clientsOf[0]), map[string]int{"": 5})
}

func TestWeightsAreChosenExactly(t *testing.T) {
	c, put := newChooser(t, 3, v1alpha1.PolicyWeighted)
	put(func(all []v1alpha1.VirtualInstance) { all[0].Weight, all[1].Weight, all[2].Weight = 7, 2, 1 })
	for _, client := range clientsOf {
		c.same(client, c.shares(50, client), map[string]int{"web-0": 35, "web-1": 10, "web-2": 5})
	}
}

func TestLeastConnectionsAreChosen(t *testing.T) {
	c, _ := newChooser(t, 3, v1alpha1.PolicyLeastConnections)
	for i, sessions := range []int64{20, 5, 0} {
		index, _ := c.entry(fmt.Sprintf("web-%d", i))
		c.w.maps.stats[index].addSessions(sessions)
	}
	c.same("filling up", c.shares(5, clientsOf[0]), map[string]int{"web-2": 5})
	c.same("filling up both", c.shares(30, clientsOf[1]), map[string]int{"web-1": 15, "web-2": 15})
	c.same("in turn", c.shares(30, clientsOf[0]), map[string]int{"web-0": 10, "web-1": 10, "web-2": 10})
	c.changed(localInstance("client", testIfindex, clientsOf[0]+"/24"), true)
	c.sweep()
	for i := range 3 {
		index, _ := c.entry(fmt.Sprintf("web-%d", i))
		opened, counted := c.w.maps.stats[index].opened(), c.w.maps.stats[index].sessions()
		if uint64(counted) != opened {
			t.Errorf("web-%d has opened %d sessions, and the sweep counts %d", i, opened, counted)
		}
	}
}

func TestSourceAffinityIsChosen(t *testing.T) {
	c, _ := newChooser(t, 5, v1alpha1.PolicySourceAffinity)
	seen := map[string]bool{}
	for i := range 30 {
		for _, client := range []string{fmt.Sprintf("10.18.3.%d", i), fmt.Sprintf("fd00:3::%x", i)} {
			got := c.shares(4, client)
			for name := range got {
				seen[name] = true
			}
			if len(got) != 1 {
				t.Errorf("%s goes to %v", client, got)
			}
		}
	}
	if len(seen) != 5 {
		t.Errorf("60 clients meet only %v", seen)
	}
}

// When an instance is removed, its connections move, and few others.
func TestConsistentHashIsChosen(t *testing.T) {
	c, put := newChooser(t, 5, v1alpha1.PolicyConsistentHash)
	const n = 300
	where := func() map[uint16]string {
		out := map[uint16]string{}
		for port := range uint16(n) {
			out[port] = c.choose(clientsOf[port%2], 2000+port)
		}
		return out
	}
	forget := func() {
		t.Helper()
		for k := range c.data.table() {
			c.data.forget(k)
		}
	}
	before := where()
	forget()
	c.same("the same again", where(), before)
	forget()
	put(func(all []v1alpha1.VirtualInstance) { all[2].Draining = true })
	moved := 0
	for port, name := range where() {
		if name == "web-2" || name == "" {
			t.Fatalf("chose %q", name)
		}
		if before[port] != "web-2" && name != before[port] {
			moved++
		}
	}
	if moved > n/15 {
		t.Errorf("%d of %d connections of others moved", moved, n)
	}
}

func TestClosestIsChosen(t *testing.T) {
	c, put := newChooser(t, 3, v1alpha1.PolicyClosest)
	put(func(all []v1alpha1.VirtualInstance) { all[0].Distance, all[1].Distance, all[2].Distance = 3, 2, 9 })
	c.same("stated", c.shares(9, clientsOf[0]), map[string]int{"web-1": 9})
	put(func(all []v1alpha1.VirtualInstance) {
		for i := range all {
			all[i].Distance = 0
		}
	})
	c.same("not measured", c.shares(9, clientsOf[0]), map[string]int{"web-0": 3, "web-1": 3, "web-2": 3})
	for i, rtt := range []time.Duration{900, 800, 300} {
		index, _ := c.entry(fmt.Sprintf("web-%d", i))
		c.w.maps.stats[index].RTT = uint64(rtt * time.Microsecond)
	}
	if err := c.w.rankAgain(c.now); err != nil {
		t.Fatal(err)
	}
	c.same("measured", c.shares(9, clientsOf[1]), map[string]int{"web-2": 9})
}

// A packet to an unknown address is passed to the control plane whole, and continues when the answer is in the maps.
func TestUnknownAppearsAndExpires(t *testing.T) {
	data := loadProxy(t, nil)
	config := `{"ranges": ["10.30.0.0/16", "fdff:2000::/21"]}`
	p := newTestControlOn(t, config, data.maps)
	data.change(p.config)
	asked := make(chan netip.Addr, 1)
	p.w.live.Resolve = func(a netip.Addr) { asked <- a }
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- p.w.follow(ctx) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	for i, frame := range [][]byte{tcp("10.18.9.9", 1000, "10.30.0.1", 80, tcpSYN).bytes(),
		udp("fd00:9::9", 1000, "fdff:2000::2", 80).bytes()} {
		p.data(data, frame, tcShot)
		select {
		case <-asked:
		case <-time.After(30 * time.Second):
			t.Fatal("the control plane heard nothing")
		}
		vs := webService(1, v1alpha1.PolicyRoundRobin, v1alpha1.PolicyRoundRobin)
		vs.Name, vs.Spec.Addresses = fmt.Sprintf("web%d", i), vs.Spec.Addresses[3*i:3*i+1]
		p.put(vs)
		if len(p.sent) != 1 || string(p.sent[0].frame) != string(frame) || p.sent[0].ifindex != testIfindex {
			t.Fatalf("%d packets went on", len(p.sent))
		}
		p.data(data, p.sent[0].frame, tcNext)
		p.sent = nil
	}
	if _, err := p.w.deny(netip.MustParseAddr("10.30.9.9"), p.now); err != nil {
		t.Fatal(err)
	}
	p.data(data, tcp("10.18.9.9", 1000, "10.30.9.9", 80, tcpSYN).bytes(), tcRedirect) // an ICMP error, back to the sender
}

func (p *testControl) data(k *kernel, frame []byte, action int32) {
	p.t.Helper()
	if got := k.out(frame); got.action != action {
		p.t.Errorf("action %d, want %d", got.action, action)
	}
}
