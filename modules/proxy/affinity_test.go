// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/lab/wait"
	"github.com/kerb-edge/kerb/sdk"
)

// sticky is a data plane with its control plane, and a virtual service with affinity.
type sticky struct {
	*chooser
	vs sdk.VirtualService
}

const stickyTimeout = "3h"

func newSticky(t *testing.T, n int, ports ...uint16) *sticky {
	t.Helper()
	return newStickyWith(t, loadProxy(t, nil), "", n, ports...)
}

func newStickyWith(t *testing.T, data *kernel, config string, n int, ports ...uint16) *sticky {
	t.Helper()
	s := &sticky{&chooser{testControl: newTestControlOn(t, config, data.maps), data: data, port: 1024},
		webService(n, v1alpha1.PolicyRoundRobin)}
	for i := range s.vs.Spec.Addresses {
		s.vs.Spec.Addresses[i].AffinityTimeout = stickyTimeout
	}
	for _, p := range ports {
		s.vs.Spec.Ports = append(s.vs.Spec.Ports, v1alpha1.VirtualPort{Port: p},
			v1alpha1.VirtualPort{Port: p, Protocol: v1alpha1.ProtocolUDP})
	}
	s.changed(localInstance("client", testIfindex, clientsOf[0]+"/24"), true)
	s.put(s.vs)
	return s
}

// connect opens a new connection and returns its instance, or "".
func (s *sticky) connect(client string, proto int, dport uint16) string {
	s.t.Helper()
	s.port++
	to := "10.30.0.1"
	if netip.MustParseAddr(client).Is6() {
		to = "fdff:2000::1"
	}
	p := udp(client, s.port, to, dport)
	if proto == protoTCP {
		p = tcp(client, s.port, to, dport, tcpSYN)
	}
	s.data.out(p.bytes())
	key := flow{Src: addressOf(p.src), Dst: addressOf(p.dst), SPort: portOf(s.port), DPort: portOf(dport),
		Ifindex: testIfindex, Proto: uint8(proto)}
	var e session
	if err := s.data.maps[mapPending].Lookup(key, &e); err != nil {
		return ""
	}
	return s.nameOf(e.Instance)
}

// remembered returns the number of affinities.
func (s *sticky) remembered() map[flow]session {
	out := map[flow]session{}
	for k, e := range s.data.table() {
		if k.Hook == hookAffinity {
			out[k] = e
		}
	}
	return out
}

// age makes all affinities older, and marks them as answered.
func (s *sticky) age(by time.Duration) {
	s.t.Helper()
	for k, e := range s.remembered() {
		e.Seen, e.State = e.Seen-uint64(by), stateAnswered
		s.data.put(mapSessions, k, e)
	}
}

// stays checks that several new connections of a client go to the same instance.
func (s *sticky) stays(what, client string, proto int, dport uint16, want string) {
	s.t.Helper()
	for range 5 {
		if got := s.connect(client, proto, dport); got != want {
			s.t.Errorf("%s: %s port %d, protocol %d goes to %q, want %q", what, client, dport, proto, got, want)
		}
	}
}

// eachClient runs a test for both families and two protocols.
func eachClient(t *testing.T, test func(t *testing.T, client string, proto int)) {
	t.Helper()
	for _, client := range clientsOf {
		for name, proto := range map[string]int{"tcp": protoTCP, "udp": protoUDP} {
			t.Run(client+"/"+name, func(t *testing.T) { test(t, client, proto) })
		}
	}
}

// A client's new connections go to the instance of the previous one until its timeout has expired.
func TestAffinity(t *testing.T) {
	eachClient(t, func(t *testing.T, client string, proto int) {
		s := newSticky(t, 3, 80, 81)
		s.stays("first", client, proto, 80, "web-0")
		other := netip.MustParseAddr(client).Next().String()
		s.stays("another client", other, proto, 80, "web-1")
		s.stays("another port", client, proto, 81, "web-2")
		s.stays("another protocol", client, protoTCP+protoUDP-proto, 80, "web-0") // the fourth turn
		s.age(3*time.Hour - time.Minute)
		s.stays("just within the time-out", client, proto, 80, "web-0")
		s.age(2 * time.Minute)
		s.stays("each connection counts", client, proto, 80, "web-0")
		before := len(s.remembered())
		s.age(3 * time.Hour)
		turn := s.connect("10.18.9.200", protoTCP, 80) // of round robin, in which the next one follows
		next := fmt.Sprintf("web-%d", (turn[len(turn)-1]-'0'+1)%3)
		s.stays("after the time-out", client, proto, 80, next)
		if got := len(s.remembered()); got != before+1 {
			t.Errorf("%d entries, want %d", got, before+1)
		}
	})
}

// Without ports, affinity applies to the whole virtual service.
func TestAffinityWithoutPorts(t *testing.T) {
	for _, client := range clientsOf {
		s := newSticky(t, 3)
		for _, port := range []uint16{80, 81, 443} {
			s.stays("any port", client, protoTCP, port, "web-0")
			s.stays("any port", client, protoUDP, port, "web-0")
		}
		if got := len(s.remembered()); got != 1 {
			t.Errorf("%d entries, want 1", got)
		}
	}
}

// An address without affinity stores none, and one that loses it discards them.
func TestNoAffinity(t *testing.T) {
	s := newSticky(t, 3, 80)
	s.connect(clientsOf[0], protoTCP, 80)
	for i := range s.vs.Spec.Addresses {
		s.vs.Spec.Addresses[i].AffinityTimeout = ""
	}
	s.put(s.vs)
	s.same("turns", s.shares(30, clientsOf[0]), map[string]int{"web-0": 10, "web-1": 10, "web-2": 10})
	s.longAfterBoot()
	s.sweep()
	if got := len(s.remembered()); got != 0 {
		t.Errorf("%d entries are left", got)
	}
}

// If an instance accepts no new sessions, the client moves to another one, which its affinity then refers to.
func TestAffinityEndsWithInstance(t *testing.T) {
	eachClient(t, func(t *testing.T, client string, proto int) {
		s := newSticky(t, 3, 80)
		s.stays("first", client, proto, 80, "web-0")
		instances := s.vs.Spec.Instances
		with := func(edit func([]v1alpha1.VirtualInstance) []v1alpha1.VirtualInstance) {
			t.Helper()
			s.vs.Spec.Instances = edit(slices.Clone(instances))
			s.put(s.vs)
		}
		with(func(all []v1alpha1.VirtualInstance) []v1alpha1.VirtualInstance { all[0].Draining = true; return all })
		next := s.connect(client, proto, 80)
		if next == "web-0" || next == "" {
			t.Fatalf("while web-0 drains, connections go to %q", next)
		}
		with(func(all []v1alpha1.VirtualInstance) []v1alpha1.VirtualInstance { return all })
		s.stays("when it is back", client, proto, 80, next)
		with(func(all []v1alpha1.VirtualInstance) []v1alpha1.VirtualInstance {
			return slices.DeleteFunc(all, func(i v1alpha1.VirtualInstance) bool { return i.Name == next })
		})
		last := s.connect(client, proto, 80)
		if last == next || last == "" {
			t.Fatalf("when %s is gone, connections go to %q", next, last)
		}
		with(func(all []v1alpha1.VirtualInstance) []v1alpha1.VirtualInstance { return all })
		s.stays("when all are back", client, proto, 80, last)
		with(func(all []v1alpha1.VirtualInstance) []v1alpha1.VirtualInstance {
			for i := range all {
				all[i] = webInstance(i, i+100)
			}
			return all
		})
		s.stays("when all are redeployed", client, proto, 80, last)
	})
}

// A client leaves an ejected instance, and does not return to it.
func TestAffinityEndsWithEjection(t *testing.T) {
	s := newSticky(t, 3, 80)
	s.stays("first", clientsOf[0], protoTCP, 80, "web-0")
	index, _ := s.entry("web-0")
	s.w.maps.stats[index].Failures += 5
	for range 2 { // also after the agent sends it again
		if err := s.w.ejectFailing(s.now); err != nil {
			t.Fatal(err)
		}
		if _, e := s.entry("web-0"); e.Flags != instanceEjected {
			t.Fatalf("flags %d", e.Flags)
		}
		s.put(s.vs)
	}
	next := s.connect(clientsOf[0], protoTCP, 80)
	if next == "web-0" {
		t.Fatal("the client goes to an instance that is ejected")
	}
	s.now = s.now.Add(time.Minute)
	if err := s.w.ejectFailing(s.now); err != nil {
		t.Fatal(err)
	}
	if _, e := s.entry("web-0"); e.Flags != 0 {
		t.Errorf("flags %d after the ejection", e.Flags)
	}
	s.stays("after the ejection", clientsOf[0], protoTCP, 80, next)
}

// An address that moves to another virtual service is not served by instances of the previous one.
func TestAffinityOfAnotherService(t *testing.T) {
	s := newSticky(t, 3, 80)
	s.stays("first", clientsOf[0], protoTCP, 80, "web-0")
	other := s.vs
	other.Name, other.Spec.Instances = "other", []v1alpha1.VirtualInstance{
		{Name: "other-0", Addresses: []string{"10.18.7.7", "fd00:7::7"}}}
	s.vs.Spec.Addresses = []v1alpha1.VirtualAddress{{Address: "10.30.0.99"}}
	s.put(other, s.vs)
	s.stays("moved", clientsOf[0], protoTCP, 80, "other-0")
}

// A client does not return to an index that was reused for another instance.
func TestAffinityAndReusedIndices(t *testing.T) {
	s := newSticky(t, 2, 80)
	s.stays("first", clientsOf[0], protoTCP, 80, "web-0")
	index, _ := s.entry("web-0")
	s.vs.Spec.Instances = s.vs.Spec.Instances[1:]
	s.put(s.vs)
	for k := range s.data.table() {
		if k.Hook != hookAffinity {
			s.data.forget(k)
		}
	}
	sweepAfter := func(d time.Duration) {
		s.now = s.now.Add(d)
		s.sweep()
	}
	sweepAfter(2 * restFor)
	if s.w.byIndex[index] == nil {
		t.Fatal("the index is given away while an affinity refers to it")
	}
	sweepAfter(goneFor)
	if n := len(s.remembered()); n != 0 || s.w.byIndex[index] != nil {
		t.Fatalf("%d affinities of an instance that is gone for good, index in use: %t", n, s.w.byIndex[index] != nil)
	}
	s.now = s.now.Add(2 * restFor)
	s.vs.Spec.Instances = append(s.vs.Spec.Instances, webInstance(7, 7))
	s.put(s.vs)
	if again, _ := s.entry("web-7"); again != index {
		t.Fatalf("web-7 has index %d, want %d", again, index)
	}
}

// The sweep removes expired affinities and those of removed clients, and releases their quota.
func TestAffinitiesAge(t *testing.T) {
	s := newSticky(t, 3, 80)
	for i := range 6 {
		s.connect(fmt.Sprintf("10.18.5.%d", i), protoTCP, 80)
	}
	shareIs := func(what string, want uint64) {
		t.Helper()
		for _, i := range []uint32{0, s.w.locals.byIfindex[testIfindex].index} {
			if got := s.w.maps.shares[i].sessions(); got != want {
				t.Errorf("%s: share %d of %d sessions, want %d", what, i, got, want)
			}
		}
		if got := len(s.remembered()); got != int(want) {
			t.Errorf("%s: %d entries, want %d", what, got, want)
		}
	}
	shareIs("remembered", 6)
	s.sweep()
	shareIs("swept at once", 6)
	if s.w.tally.Affinities != 6 || s.w.tally.Entries != 0 {
		t.Errorf("the sweep found %+v", s.w.tally)
	}
	for i := range s.vs.Spec.Addresses {
		s.vs.Spec.Addresses[i].AffinityTimeout = "1h"
	}
	s.put(s.vs)
	now := s.longAfterBoot()
	for k, e := range s.remembered() {
		e.Seen, e.State = now-uint64(61*time.Minute), stateAnswered
		if k.Src.addr().String() == "10.18.5.0" {
			e.Seen = now - uint64(59*time.Minute)
		}
		s.session(k, e)
	}
	s.sweep()
	shareIs("after an hour", 1)
	s.w.maps.shares[0].addSessions(40) // counted by another version
	s.w.maps.shares[s.w.locals.byIfindex[testIfindex].index].addSessions(40)
	s.sweep()
	shareIs("corrected", 1)
	s.changed(localInstance("client", testIfindex), false)
	s.now = s.now.Add(absentFor)
	s.sweep()
	if got := len(s.remembered()); got != 0 || s.w.maps.shares[0].sessions() != 0 {
		t.Errorf("%d entries of a client that is gone, %d sessions", got, s.w.maps.shares[0].sessions())
	}
}

// Affinities are not listed as sessions.
func TestAffinitiesAreNotListed(t *testing.T) {
	s := newSticky(t, 3, 80)
	s.connect(clientsOf[0], protoTCP, 80)
	s.sweep()
	got, err := s.w.listSessions(nil)
	if err != nil || len(got.Sessions) != 1 {
		t.Errorf("%+v, %v", got, err)
	}
	stats, err := s.w.stats()
	if err != nil || stats.Tables["sessions"].Used != 1 || stats.Sessions.Sessions != 1 {
		t.Errorf("%+v, %v", stats, err)
	}
	if got := s.w.listServices("web")[0].Addresses[0].Affinity; got != "3h0m0s" {
		t.Errorf("affinity %q", got)
	}
}

// A restart of the control plane, and a table of another size, keep affinities.
func TestAffinityIsCarriedOver(t *testing.T) {
	s := newSticky(t, 3, 80)
	s.connect("10.18.9.8", protoTCP, 80)
	s.stays("first", clientsOf[0], protoTCP, 80, "web-1")
	s.locals = []sdk.Attachment{localInstance("client", testIfindex, clientsOf[0]+"/24")}
	s.restart("")
	s.all(s.vs)
	s.sweep()
	s.stays("after a restart", clientsOf[0], protoTCP, 80, "web-1")

	const n = 100
	for i := range n { // sessions come first
		k, e := pairOf("10.18.0.9", "10.30.0.1", "10.18.0.1", protoTCP, uint16(1000+2*i), 1, false)
		e[0].State, e[1].State = stateAnswered, stateAnswered
		s.session(k[0], e[0])
		s.session(k[1], e[1])
	}
	client := addressOf(addr(clientsOf[0])) // the last one to connect
	for size, want := range map[uint32]int{1024: 2, 2*n + 8: 2, 2*n + 7: 1, 2*n + 4: 1, 2 * n: 0} {
		spec := &ebpf.MapSpec{Type: ebpf.Hash, KeySize: 44, ValueSize: 64, MaxEntries: size, Flags: 1}
		to, err := ebpf.NewMap(spec)
		if err != nil {
			t.Fatal(err)
		}
		defer to.Close()
		maps := sdk.Maps{mapSessions: to, mapPending: s.data.maps[mapPending]}
		if err := carryOver(s.data.maps[mapSessions], maps); err != nil {
			t.Fatal(err)
		}
		sessions, affinities := 0, 0
		if err := each(to, mapSessions, func(keys []flow, values []session) {
			for i, k := range keys {
				if k.Hook != hookAffinity {
					sessions++
				} else if affinities++; values[i] != s.remembered()[k] || want == 1 && k.Src != client {
					t.Errorf("%d entries: %v %+v became %+v", size, k.Src.addr(), s.remembered()[k], values[i])
				}
			}
		}); err != nil {
			t.Fatal(err)
		}
		if sessions != 2*n || affinities != want {
			t.Errorf("%d entries: %d of sessions, %d affinities, want %d and %d", size, sessions, affinities, 2*n, want)
		}
	}
}

// The condition names only the service whose new clients get no affinity: it follows the data plane at the limit, and
// lasts until there is some room.
func TestAffinityCondition(t *testing.T) {
	for config, remedy := range map[string]string{`{"tables": {"sessions": 128}}`: "tables.sessions",
		`{"tables": {"sessions": 128, "sessionsPerService": 83}}`: "tables.sessionsPerService"} {
		data := loadConfigured(t, config)
		s := newStickyWith(t, data, config, 3, 80)
		data.change(s.config)
		state := func() (affinity string) {
			s.sweep()
			all, err := s.w.Conditions()
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range all {
				if c.Type == "AffinityKept" {
					affinity = c.Status + c.Message
				}
			}
			return affinity
		}
		share := func() *share { return &s.w.maps.shares[s.w.locals.byIfindex[testIfindex].index] }
		s.changed(localInstance("other", 7, "10.18.77.7/24"), true)
		s.kept(100)
		if said := state(); said != "True" {
			t.Errorf("%s: with many sessions of clients to other addresses: %q", config, said)
		}
		for k := range s.data.table() {
			s.data.forget(k)
		}
		for i := range s.w.maps.shares {
			s.w.maps.shares[i].addSessions(-int64(s.w.maps.shares[i].sessions()))
		}
		client, met := netip.MustParseAddr("10.18.5.1"), 0
		for range 100 {
			before, said := len(s.remembered()), state()
			s.data.renewQuotas()
			s.connect(client.String(), protoTCP, 80)
			kept := len(s.remembered()) > before
			if kept != (said == "True") {
				t.Fatalf("%s: with %d affinities another one is remembered: %t; the condition is %q", config, before, kept,
					said)
			}
			if !kept {
				met++
				if !strings.Contains(said, "service client") || !strings.HasSuffix(said, "raise "+remedy) {
					t.Fatalf("%s: %q", config, said)
				}
			}
			client = client.Next()
		}
		if met == 0 || met == 100 {
			t.Errorf("%s: %d of 100 clients are not remembered", config, met)
		}
		full := share().sessions()
		for used := full; state() != "True"; used-- {
			if used < full*4/5 {
				t.Fatalf("%s: %d of %d, and %q", config, used, full, state())
			}
			for k := range s.remembered() {
				s.data.forget(k)
				s.w.returnShare(testIfindex)
				break
			}
		}
		if used := share().sessions(); used > full-full/20 {
			t.Errorf("%s: said no more with %d of %d", config, used, full)
		}
		for i := range s.vs.Spec.Addresses {
			s.vs.Spec.Addresses[i].AffinityTimeout = ""
		}
		s.put(s.vs)
		if said := state(); said != "" {
			t.Errorf("without affinity: %q", said)
		}
	}
}

// kept creates live sessions of clients of interface 7 with an address that is not virtual.
func (s *sticky) kept(n int) {
	s.t.Helper()
	for i := range n {
		k, e := pairOf("10.18.77.7", "10.30.9.9", "10.18.0.1", protoTCP, uint16(1000+2*i), 1, false)
		for j := range k {
			e[j].State, e[j].Seen = stateAnswered, s.w.sweeper.clock()
			s.session(k[j], e[j])
		}
		for _, index := range []uint32{0, s.w.locals.byIfindex[k[0].Ifindex].index} {
			s.w.maps.shares[index].addSessions(1)
		}
	}
}

// spoof sends first packets from n addresses to a virtual address.
func (n *neighbours) spoof(count int, first, to string) {
	from := netip.MustParseAddr(first)
	for range count {
		n.out(udp(from.String(), 4000, to, 53).bytes())
		from = from.Next()
	}
}

// renewQuotas renews the interfaces' quotas of new sessions.
func (k *kernel) renewQuotas() {
	k.t.Helper()
	shares, err := readArray[share](k.maps[mapShares], mapShares)
	if err != nil {
		k.t.Fatal(err)
	}
	for i := range shares[:k.locals+8] {
		shares[i].Opened = 0
		k.put(mapShares, uint32(i), shares[i])
	}
}

func (n *neighbours) affinitiesOf(ifindex uint32, to string) (count int) {
	for k := range n.table() {
		if k.Hook == hookAffinity && k.Ifindex == ifindex && k.Dst.addr().String() == to {
			count++
		}
	}
	return count
}

// A flood from spoofed addresses does not affect others: existing affinities stay, new ones find room, on the same
// interface sessions do, and the instance of another interface's client does not change.
func TestFloodsTakeNoAffinityOfOthers(t *testing.T) {
	n := newNeighbours(t, `{"tables": {"sessions": 4096}}`)
	other := n.addInstance(0, "10.19.0.4")
	setVIP := func(a string) {
		term := affinityTerm(3*time.Hour, a)
		n.put(mapVIPs, addressOf(addr(a)), vip{Expires: term, ID: n.vips, First: n.slots, Count: 2, Policy: policyTurns,
			Flags: vipAffinity})
		n.put(mapSlots, n.slots, n.farI)
		n.put(mapSlots, n.slots+1, other)
		n.slots, n.vips = n.slots+2, n.vips+1
	}
	setVIP(n.farVIP)
	setVIP("10.30.0.44")
	n.spoof(50, "10.18.100.0", n.farVIP)
	before := n.table()
	n.attack(func() {
		n.spoof(1, "10.18.100.0", n.farVIP) // a client of the other interface
		n.spoof(1, "10.18.100.0", n.farVIP)
		n.spoof(20, "10.18.200.0", "10.30.0.44")
		for i := range 9 {
			n.renewQuotas()
			n.spoof(1000, fmt.Sprintf("11.%d.0.0", i), n.farVIP)
		}
	})
	evil, all := n.affinitiesOf(n.evil, n.farVIP), 4096
	if evil < all/2-100 || evil > all/2 {
		t.Errorf("one interface has %d of %d", evil, all)
	}
	after := n.table()
	for k, e := range before {
		if got := after[k]; k.Hook == hookAffinity && (got.Instance != e.Instance || got.Seen != e.Seen) {
			t.Fatalf("the affinity of %v is %+v after the flood, %+v before", k.Src.addr(), got, e)
		}
	}
	if got := n.affinitiesOf(n.evil, "10.30.0.44"); got != 20 {
		t.Errorf("20 affinities of another address became %d", got)
	}
	n.spoof(500, "10.18.110.0", n.farVIP)
	if got := n.affinitiesOf(testIfindex, n.farVIP); got != 550 {
		t.Errorf("%d affinities of another service, want 550", got)
	}
	window := askWindow(t)
	wait.Until(t, "the flood's quota of new sessions is renewed", func() bool { return askWindow(t) != window })
	n.attack(func() { n.flood(200, 2, true) })
	kept := 0
	for k, e := range n.table() {
		if k.Ifindex == n.evil && k.Hook == hookEgress && e.live() {
			kept++
		}
	}
	// Either instance answers, since the client on the flood's interface has no affinity.
	if crowded := n.count(countCrowded); kept != 100 || crowded != 0 {
		t.Errorf("of 100 sessions behind the interface %d live, %d may be evicted", kept, crowded)
	}
}

// affinityModel is the affinity in plain Go: the instance and time of clients, by the test's clock.
type affinityModel map[string]struct {
	instance string
	at       time.Duration
}

// Random connections, while instances are added, drained, removed and return, addresses lose and get affinity, time
// advances, and the control plane sweeps and restarts.
func TestAffinityAgainstModel(t *testing.T) {
	steps := 3000
	if os.Getenv("KERB_MATRIX") != "" { // emulated machines are slow
		steps = 300
	}
	const small = `{"tables": {"instances": 4096, "slots": 65536}}` // a restart reads them all
	for seed := range uint64(3) {
		r := rand.New(rand.NewPCG(seed, 9))
		s := newStickyWith(t, loadConfigured(t, small), small, 6, 80, 81)
		s.vs.Spec.Addresses[0].Policy = v1alpha1.PolicySourceAffinity
		s.locals = []sdk.Attachment{localInstance("client", testIfindex, clientsOf[0]+"/24")}
		all := slices.Clone(s.vs.Spec.Instances)
		able := map[string]bool{}
		change := func() {
			clear(able)
			s.vs.Spec.Instances = nil
			for _, i := range all {
				i.Draining = r.IntN(4) == 0
				if r.IntN(3) > 0 {
					s.vs.Spec.Instances = append(s.vs.Spec.Instances, i)
					able[i.Name] = !i.Draining
				}
			}
			s.put(s.vs)
		}
		change()
		m, clock, hits := affinityModel{}, time.Duration(0), 0
		for step := range steps {
			switch n := r.IntN(100); {
			case n < 4:
				change()
			case n < 7:
				d := time.Duration(r.IntN(120)) * time.Minute
				clock += d
				s.age(d)
			case n < 8:
				s.sweep()
			case n < 9:
				s.restart(small)
				s.all(s.vs)
			}
			client := []string{"10.18.4.", "fd00:4::"}[r.IntN(2)] + fmt.Sprint(1+r.IntN(8))
			proto, port := []int{protoTCP, protoUDP}[r.IntN(2)], uint16(80+r.IntN(2))
			who := fmt.Sprint(client, proto, port)
			got := s.connect(client, proto, port)
			had, known := m[who]
			if known && clock-had.at < 3*time.Hour && able[had.instance] {
				hits++
				if got != had.instance {
					t.Fatalf("seed %d, step %d: %s goes to %q, want %q as %v ago", seed, step, who, got, had.instance,
						clock-had.at)
				}
			} else if (got == "") == slices.Contains(ableOf(able), true) || got != "" && !able[got] {
				t.Fatalf("seed %d, step %d: %s goes to %q, able are %v", seed, step, who, got, able)
			}
			if got != "" {
				had.instance, had.at = got, clock
				m[who] = had
			}
		}
		if hits < steps/3 {
			t.Errorf("only %d of %d connections were remembered", hits, steps)
		}
		if strings.Contains(fmt.Sprint(s.w.Health()), "no room") {
			t.Error(s.w.Health())
		}
	}
}

func ableOf(able map[string]bool) (out []bool) {
	for _, a := range able {
		out = append(out, a)
	}
	return out
}
