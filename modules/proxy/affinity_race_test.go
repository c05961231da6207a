// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"net/netip"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/kerb-edge/kerb/api/v1alpha1"
)

// A connection of the same client that another CPU has just recorded may be newer than the packet.
func TestAffinityThatIsLater(t *testing.T) {
	eachClient(t, func(t *testing.T, client string, proto int) {
		s := newSticky(t, 3, 80)
		want := s.connect(client, proto, 80)
		s.age(-time.Minute)
		before := s.remembered()
		s.stays("a minute earlier", client, proto, 80, want)
		for k, e := range s.remembered() {
			if e != before[k] {
				t.Errorf("%+v became %+v", before[k], e)
			}
		}
	})
}

// A client's first connections, on two CPUs concurrently, go to one instance.
func TestFirstConnectionsAtOnce(t *testing.T) {
	if runtime.NumCPU() < 2 {
		t.Skip("one CPU")
	}
	s := newSticky(t, 3, 80)
	from := netip.MustParseAddr("10.18.64.0")
	const each = 2
	clients := 16000                    // about one pair in 10,000 races
	if os.Getenv("KERB_MATRIX") != "" { // emulated machines are slow
		clients = 1000
	}
	for n := range clients {
		if n%1000 == 0 {
			s.data.renewQuotas()
		}
		var ready, done sync.WaitGroup
		ready.Add(each)
		for i := range uint16(each) {
			frame := tcp(from.String(), 2000+i, "10.30.0.1", 80, tcpSYN).bytes()
			done.Go(func() {
				ready.Done()
				ready.Wait()
				if _, err := s.data.egress.Run(&ebpf.RunOptions{Data: frame}); err != nil {
					t.Error(err)
				}
			})
		}
		done.Wait()
		var got [each]session
		for i := range uint16(each) {
			key := flow{Src: addressOf(from), Dst: addressOf(addr("10.30.0.1")), SPort: portOf(2000 + i), DPort: portOf(80),
				Ifindex: testIfindex, Proto: protoTCP}
			if err := s.data.maps[mapPending].Lookup(key, &got[i]); err != nil {
				t.Fatal(from, err)
			}
		}
		if got[0].Instance != got[1].Instance {
			t.Fatalf("connections of %s go to instances %d and %d", from, got[0].Instance, got[1].Instance)
		}
		from = from.Next()
	}
}

// Packets that create no session, because of the interface's limit, create no affinity.
func TestNoAffinityWithoutSession(t *testing.T) {
	s := newStickyWith(t, loadConfigured(t, `{"tables": {"sessions": 128}}`), "", 3, 80)
	from := netip.MustParseAddr("10.18.5.1")
	for range 100 {
		s.connect(from.String(), protoUDP, 80)
		from = from.Next()
	}
	if s.data.count(countOverQuota) == 0 {
		t.Fatal("all packets begin sessions")
	}
	clients := map[address]bool{}
	for k := range s.data.table() {
		clients[k.Src] = clients[k.Src] || k.Hook == hookEgress
	}
	for k := range s.remembered() {
		if !clients[k.Src] {
			t.Errorf("%s is remembered, without a session", k.Src.addr())
		}
	}
}

// A connection with an unknown session continues at the client's instance, and does not count as new.
func TestAffinityAmidConnections(t *testing.T) {
	s := newSticky(t, 3, 80)
	for i := range s.vs.Spec.Addresses {
		s.vs.Spec.Addresses[i].Policy = v1alpha1.PolicySourceAffinity
	}
	s.put(s.vs)
	amid := func(client string) string {
		t.Helper()
		s.port++
		s.data.out(tcp(client, s.port, "10.30.0.1", 80, tcpACK).bytes())
		var e session
		key := flow{Src: addressOf(addr(client)), Dst: addressOf(addr("10.30.0.1")), SPort: portOf(s.port),
			DPort: portOf(80), Ifindex: testIfindex, Proto: protoTCP}
		if err := s.data.maps[mapPending].Lookup(key, &e); err != nil {
			t.Fatal(err)
		}
		return s.nameOf(e.Instance)
	}
	chosen := amid(clientsOf[0])
	if n := len(s.remembered()); n != 0 {
		t.Errorf("%d affinities of a connection that was there before", n)
	}
	if got := s.connect(clientsOf[0], protoTCP, 80); got != chosen {
		t.Errorf("%s, then %s", chosen, got)
	}
	next, _ := s.entry(map[string]string{"web-0": "web-1", "web-1": "web-2", "web-2": "web-0"}[chosen])
	for k, e := range s.remembered() {
		e.Instance, e.Seen = next, e.Seen-uint64(time.Minute)
		s.data.put(mapSessions, k, e)
	}
	before := s.remembered()
	if got := amid(clientsOf[0]); got != s.nameOf(next) {
		t.Errorf("goes to %s, want %s", got, s.nameOf(next))
	}
	for k, e := range s.remembered() {
		if e != before[k] {
			t.Errorf("%+v became %+v", before[k], e)
		}
	}
}

// A virtual service with affinities of clients but without sessions is unused.
func TestAffinityIsNoUse(t *testing.T) {
	s := newSticky(t, 2, 80)
	s.vs.Dynamic = true
	s.put(s.vs)
	s.connect(clientsOf[0], protoTCP, 80)
	for range 2 {
		s.now = s.now.Add(idleFor + time.Second)
		s.sweep()
		s.same("with a session", s.idle, []string(nil))
	}
	for k := range s.data.table() {
		if k.Hook != hookAffinity {
			s.data.forget(k)
		}
	}
	s.sweep() // corrects the session counts of instances
	s.now = s.now.Add(idleFor + time.Second)
	s.sweep()
	s.same("with an affinity", s.idle, []string{"web"})
	s.same("affinities", len(s.remembered()), 1)
}

// Without an answered session, an affinity lasts a minute, to limit the room for floods from spoofed addresses.
func TestUnansweredAffinities(t *testing.T) {
	eachClient(t, func(t *testing.T, client string, proto int) {
		s := newSticky(t, 3, 80)
		for i := range s.vs.Spec.Addresses {
			s.vs.Spec.Addresses[i].AffinityTimeout = "1h"
		}
		s.put(s.vs)
		older := func(by time.Duration) {
			t.Helper()
			now := s.longAfterBoot()
			for k, e := range s.remembered() {
				e.Seen = now - uint64(by)
				s.data.put(mapSessions, k, e)
			}
			s.sweep()
		}
		s.connect(client, proto, 80)
		older(59 * time.Second)
		s.same("within a minute", len(s.remembered()), 1)
		older(61 * time.Second)
		s.same("after a minute", len(s.remembered()), 0)

		_, at := s.entry(s.connect(client, proto, 80))
		place := at.Place[at.Generation&1]
		from := addressOf(netip.AddrFrom4(place.Addr4))
		if netip.MustParseAddr(client).Is6() {
			from = place.Addr6
		}
		answer := udp(from.addr().String(), 80, client, s.port)
		if proto == protoTCP {
			answer = tcp(from.addr().String(), 80, client, s.port, tcpSYN|tcpACK)
		}
		s.data.in(answer.bytes())
		older(59 * time.Minute)
		s.same("answered", len(s.remembered()), 1)
		older(61 * time.Minute)
		s.same("after the time-out", len(s.remembered()), 0)
	})
}
