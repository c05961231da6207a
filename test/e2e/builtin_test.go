// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
)

// counter counts on every service, before or after the firewall.
func counter(round int) v1.Module {
	m := module("traffic", "counter", "*", nil)
	m.Spec.Order.Priority = 50 + 100*(round%2)
	return m
}

// firewall permits only the traffic of these tests to web; each round has different additional rules.
func firewall(round int) v1.Module {
	rule := func(name, protocol string, port int) map[string]any {
		return map[string]any{"name": name, "action": "allow", "direction": "ingress", "protocol": protocol, "dstPort": port}
	}
	rules := []any{rule("web", "tcp", webPort), rule("stream", "udp", streamPort)}
	for i := range round % 3 * 100 {
		rules = append([]any{rule(fmt.Sprintf("other-%d", i), "udp", 20000+i)}, rules...)
	}
	return module("fw", "firewall", "app=web", map[string]any{"rules": rules})
}

// The built-in modules under traffic, while rules and order change and the agent is killed: permitted packets pass
// without loss, denied ones never pass, and the counter has counted every packet once.
func TestBuiltinsUnderTraffic(t *testing.T) {
	n := newRunningNode(t)
	n.apply(counter(0), firewall(0), n.stamp(1))
	udp, web := startStream(t, n.db, n.web), startRequests(t, n.db, n.web)
	denied := n.sendDenied()
	for round := 1; round <= 6; round++ {
		n.apply(counter(round), firewall(round), n.stamp(round))
		if round%2 == 0 {
			n.Kill()
			time.Sleep(100 * time.Millisecond) // traffic without an agent
			n.start()
			n.settled(map[string]int{"traffic": 4, "fw": 2, "stamp": 2})
		}
		want := []string{"traffic,fw,stamp", "fw,stamp,traffic"}[round%2]
		n.Eventually("web runs "+want, func() bool { return n.runs(n.web, want) })
	}
	udp.finish(1, 2, 3, 4, 5, 6)
	web.finish()
	sent := denied()
	n.Eventually("packets to a closed port are dropped", func() bool {
		drops := get[v1.Module](n, "module", "fw").Status.Drops
		return len(drops) == 1 && drops[0].Packets >= sent
	})
	var arrived uint64
	for _, times := range udp.got {
		arrived += uint64(times)
	}
	if got := n.counted("db", "egress", "udp"); got != arrived+sent {
		t.Errorf("the counter has %d UDP packets from db, %d were sent", got, arrived+sent)
	}
	n.checkPins()
}

// counted returns the counts of module traffic for a protocol over IPv4.
func (n *node) counted(service, direction, protocol string) uint64 {
	n.T.Helper()
	var report struct {
		Counts []struct {
			Service, Direction, Family, Protocol string
			Packets                              uint64
		}
	}
	if err := json.Unmarshal([]byte(n.must("module", "query", "traffic", "counts", "-o", "json")), &report); err != nil {
		n.T.Fatal(err)
	}
	for _, c := range report.Counts {
		if c.Service == service && c.Direction == direction && c.Family == "ipv4" && c.Protocol == protocol {
			return c.Packets
		}
	}
	return 0
}

// sendDenied sends datagrams to a port of web that no rule permits, until the returned function is called, which
// returns their number; none of them may arrive.
func (n *node) sendDenied() func() uint64 {
	n.T.Helper()
	at := net.UDPAddrFromAddrPort(netip.AddrPortFrom(n.web.Addr4(), 9))
	var in, out *net.UDPConn
	err := n.web.Do(func() (err error) { in, err = net.ListenUDP("udp4", at); return err })
	if err == nil {
		err = n.db.Do(func() (err error) { out, err = net.DialUDP("udp4", nil, at); return err })
	}
	if err != nil {
		n.T.Fatal(err)
	}
	n.T.Cleanup(func() { in.Close(); out.Close() })
	stop, sent := make(chan struct{}), make(chan uint64)
	go func() {
		var count uint64
		for {
			select {
			case <-stop:
				sent <- count
				return
			case <-time.After(2 * time.Millisecond):
			}
			if _, err := out.Write([]byte("closed")); err == nil {
				count++
			}
		}
	}()
	return func() uint64 {
		n.T.Helper()
		close(stop)
		count := <-sent
		_ = in.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		if _, err := in.Read(make([]byte, 16)); err == nil {
			n.T.Error("a packet to a closed port has arrived")
		}
		return count
	}
}
