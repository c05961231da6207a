// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/lab/classbench"
	"github.com/kerb-edge/kerb/internal/lab/wait"
)

// overlapping are 600 rules of which every second one allows. Searches for UDP from web to db visit up to 61 nodes of
// their trees: more than programs for shallow rule sets do.
func overlapping(t *testing.T) []classbench.Rule {
	t.Helper()
	rules, err := classbench.Rules("fw", 600, true)
	if err != nil {
		t.Fatal(err)
	}
	for i := range rules {
		rules[i].Allow = i%2 == 0
	}
	return rules
}

// judge returns what the rules say of a datagram; known is false if none does.
func judge(rules []classbench.Rule, from, to netip.AddrPort) (allow, known bool) {
	in := func(p netip.Prefix, a netip.Addr) bool { return !p.IsValid() || p.Contains(a) }
	within := func(p classbench.Ports, port uint16) bool { return p.Low <= port && port <= p.High }
	for _, r := range rules {
		if in(r.Src, from.Addr()) && in(r.Dst, to.Addr()) && within(r.SrcPort, from.Port()) &&
			within(r.DstPort, to.Port()) && (r.Protocol == classbench.Any || r.Protocol == classbench.UDP) {
			return r.Allow, true
		}
	}
	return false, false
}

// stateless is a firewall that judges each packet of services by the rules alone.
func stateless(rules []any) v1.Module {
	return module("fw", "firewall", "*", map[string]any{"rules": rules, "state": map[string]any{"enabled": false},
		"antiSpoof": false, "defaultPolicy": map[string]any{"egress": "deny", "ingress": "allow"}})
}

func deepRules(rules []classbench.Rule) (out []any) {
	for _, r := range rules {
		one := map[string]any{"action": "deny", "direction": "egress",
			"srcPort": fmt.Sprintf("%d-%d", r.SrcPort.Low, r.SrcPort.High),
			"dstPort": fmt.Sprintf("%d-%d", r.DstPort.Low, r.DstPort.High)}
		if r.Allow {
			one["action"] = "allow"
		}
		if r.Protocol != classbench.Any {
			one["protocol"] = r.Protocol
		}
		if r.Protocol != classbench.TCP && r.Protocol != classbench.UDP {
			delete(one, "srcPort")
			delete(one, "dstPort")
		}
		for field, p := range map[string]netip.Prefix{"src": r.Src, "dst": r.Dst} {
			if p.IsValid() {
				one[field] = p.String()
			}
		}
		out = append(out, one)
	}
	return out
}

// Rules change between shallow and deep searches, whose programs differ, while datagrams flow: both rule sets judge
// them alike, and each is judged so.
func TestRulesBecomeDeepUnderTraffic(t *testing.T) {
	n := newNode(t)
	all := overlapping(t)
	var sent, got [1 << 16]atomic.Uint64
	var allowed, ports []uint16
	from := netip.AddrPortFrom(n.web.Addr4(), 4001)
	for p := 1000; p < 30000; p += 97 {
		allow, known := judge(all, from, netip.AddrPortFrom(n.db.Addr4(), uint16(p)))
		if denied := len(ports) - len(allowed); !known || allow && len(allowed) == 20 || !allow && denied == 20 {
			continue
		}
		if ports = append(ports, uint16(p)); allow {
			allowed = append(allowed, uint16(p))
		}
	}
	if len(ports) != 40 {
		t.Fatalf("%d ports, of which %d are allowed", len(ports), len(allowed))
	}
	var few []any
	for _, p := range allowed {
		few = append(few, map[string]any{"action": "allow", "direction": "egress", "protocol": "udp", "dstPort": p})
	}
	n.apply(t, n.both(), stateless(few))
	shallow := n.chainsOn(t, n.web)
	for _, p := range ports {
		receive(t, n, p, &got[p])
	}
	stop, sender := make(chan struct{}), sync.WaitGroup{}
	var failed error
	sender.Go(func() { failed = send(n, from, ports, stop, &sent) })
	for range 3 {
		n.apply(t, nil, stateless(deepRules(all)))
		if sameChains(shallow, n.chainsOn(t, n.web)) {
			t.Error("deep rules have the program of shallow ones")
		}
		time.Sleep(200 * time.Millisecond) // of traffic
		n.apply(t, nil, stateless(few))
		time.Sleep(200 * time.Millisecond) // of traffic
	}
	close(stop)
	sender.Wait()
	if failed != nil {
		t.Fatal(failed)
	}
	passes := map[uint16]bool{}
	for _, p := range allowed {
		passes[p] = true
	}
	sum := uint64(0)
	for _, p := range allowed {
		wait.Until(t, fmt.Sprintf("what port %d was sent is read", p), func() bool { return got[p].Load() >= sent[p].Load() },
			func() any { return fmt.Sprintf("%d of %d", got[p].Load(), sent[p].Load()) })
	}
	for _, p := range ports { // what was sent before to denied ones is read, too
		want := sent[p].Load()
		if sum += want; !passes[p] {
			want = 0
		}
		if n := got[p].Load(); n != want {
			t.Errorf("port %d, allowed %t: %d of %d datagrams arrived", p, passes[p], n, sent[p].Load())
		}
	}
	t.Logf("%d datagrams", sum)
}

// receive counts the datagrams that come to a port of db.
func receive(t *testing.T, n *node, port uint16, got *atomic.Uint64) {
	t.Helper()
	var c net.PacketConn
	err := n.db.Do(func() (err error) {
		c, err = net.ListenPacket("udp4", fmt.Sprint(":", port))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	go func() {
		data := make([]byte, 64)
		for {
			if _, _, err := c.ReadFrom(data); err != nil {
				return
			}
			got.Add(1)
		}
	}()
}

// send sends datagrams from web to the ports in turn.
func send(n *node, from netip.AddrPort, ports []uint16, stop chan struct{}, sent *[1 << 16]atomic.Uint64) error {
	var c net.PacketConn
	err := n.web.Do(func() (err error) {
		c, err = net.ListenPacket("udp4", fmt.Sprint(":", from.Port()))
		return err
	})
	if err != nil {
		return err
	}
	defer c.Close()
	for {
		for _, p := range ports {
			to := net.UDPAddrFromAddrPort(netip.AddrPortFrom(n.db.Addr4(), p))
			if _, err := c.WriteTo([]byte("kerb"), to); err != nil && !errors.Is(err, os.ErrPermission) {
				return err
			}
			sent[p].Add(1)
			time.Sleep(10 * time.Microsecond) // the rate
		}
		select {
		case <-stop:
			return nil
		default:
		}
	}
}
