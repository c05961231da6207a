// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/sdk"
)

func TestTimeouts(t *testing.T) {
	d := defaults().Timeouts
	for _, c := range []struct {
		name         string
		proto, state uint8
		want         time.Duration
	}{
		{"SYN", protoTCP, 0, 30 * time.Second},
		{"established", protoTCP, stateAnswered, 24 * time.Hour},
		{"one FIN", protoTCP, stateAnswered | stateClientFIN, time.Hour},
		{"other FIN", protoTCP, stateAnswered | stateServerFIN, time.Hour},
		{"both FINs", protoTCP, stateAnswered | stateClientFIN | stateServerFIN | stateClosed, time.Minute},
		{"reset", protoTCP, stateReset | stateClosed, time.Minute},
		{"UDP", protoUDP, 0, time.Minute},
		{"UDP answered", protoUDP, stateAnswered, 3 * time.Minute},
		{"SCTP", protoSCTP, 0, 24 * time.Hour},
		{"ICMP", protoICMP, stateAnswered, 30 * time.Second},
		{"ICMPv6", protoICMPv6, 0, 30 * time.Second},
		{"other", 47, 0, time.Minute},
	} {
		if got := time.Duration(d.timeout(c.proto, c.state)); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
		if d.shortest(c.proto) > d.timeout(c.proto, c.state) {
			t.Errorf("%s: shorter than the shortest", c.name)
		}
	}
}

// pairOf returns both entries of a session as the data plane creates them. The client is on interface 7, the instance
// on 8.
func pairOf(client, virtual, target string, proto uint8, sport uint16, instance uint32,
	hairpin bool) (k [2]flow, s [2]session) {
	c, v, i := addressOf(netip.MustParseAddr(client)), addressOf(netip.MustParseAddr(virtual)),
		addressOf(netip.MustParseAddr(target))
	k[0] = flow{Src: c, Dst: v, SPort: portOf(sport), DPort: portOf(80), Ifindex: 7, Proto: proto, Hook: hookEgress}
	s[0] = session{Addr: i, SPort: portOf(sport + 1), DPort: portOf(8080), Instance: instance, Other: 8}
	k[1] = flow{Src: i, Dst: c, SPort: portOf(8080), DPort: portOf(sport + 1), Ifindex: 8, Proto: proto, Hook: hookEgress}
	s[1] = session{Addr: v, SPort: portOf(80), DPort: portOf(sport), Instance: instance, Other: 7, Flags: sessionReverse}
	if hairpin {
		s[0].Flags, s[1].Flags = sessionHairpin, sessionHairpin|sessionReverse
		k[1].Dst, s[1].Addr = v, c
	}
	return
}

func TestForwardKey(t *testing.T) {
	for _, hairpin := range []bool{false, true} {
		k, s := pairOf("10.18.0.9", "10.30.0.1", "10.18.0.1", protoTCP, 5000, 1, hairpin)
		for i := range k {
			if got := forward(&k[i], &s[i], nil); got != k[0] {
				t.Errorf("hairpin %t, entry %d: %+v, want %+v", hairpin, i, got, k[0])
			}
		}
	}
}

// A session lives until both of its entries have expired, and is removed as a whole.
func TestSweep(t *testing.T) {
	p := newTestControl(t, "")
	for _, i := range []sdk.Attachment{{Service: "client", Ifindex: 7}, {Service: "server", Ifindex: 8}} {
		p.w.instanceChanged(i, true, p.now)
	}
	p.put(webService(2, v1alpha1.PolicyLeastConnections))
	index, _ := p.entry("web-0")
	now := p.longAfterBoot()
	ago := func(d time.Duration) uint64 { return now - uint64(d) }
	put := func(sport uint16, proto uint8, edit func(forward, reverse *session)) [2]flow {
		k, s := pairOf("10.18.0.9", "10.30.0.1", "10.18.0.1", proto, sport, index, false)
		s[0].Seen, s[1].Seen = now, now
		edit(&s[0], &s[1])
		p.session(k[0], s[0])
		p.session(k[1], s[1])
		return k
	}
	type want struct {
		keys [2]flow
		left bool
		name string
	}
	var all []want
	check := func(name string, left bool, keys [2]flow) { all = append(all, want{keys, left, name}) }
	check("fresh", true, put(1000, protoTCP, func(f, r *session) {}))
	check("SYN without answer", false, put(1010, protoTCP, func(f, r *session) {
		f.Seen, r.Seen = ago(31*time.Second), ago(31*time.Second)
	}))
	check("established", true, put(1020, protoTCP, func(f, r *session) {
		f.State, r.State, f.Seen, r.Seen = stateAnswered, 0, ago(time.Hour), ago(time.Hour)
	}))
	check("closed", false, put(1030, protoTCP, func(f, r *session) {
		f.State, r.State = stateAnswered|stateClientFIN|stateServerFIN|stateClosed, stateAnswered
		f.Seen, r.Seen = ago(61*time.Second), ago(61*time.Second)
	}))
	check("half-closed", true, put(1035, protoTCP, func(f, r *session) {
		f.State, r.State = stateAnswered|stateClientFIN, stateAnswered|stateClientFIN
		f.Seen, r.Seen = ago(2*time.Minute), ago(2*time.Minute)
	}))
	check("UDP one way", true, put(1040, protoUDP, func(f, r *session) { r.Seen = ago(time.Hour) }))
	check("UDP the other way", true, put(1050, protoUDP, func(f, r *session) {
		f.Seen, f.State = ago(time.Hour), stateAnswered
	}))
	check("UDP", false, put(1060, protoUDP, func(f, r *session) {
		f.Seen, r.Seen = ago(61*time.Second), ago(2*time.Minute)
	}))
	check("client gone", false, put(1070, protoTCP, func(f, r *session) {}))
	last := &all[len(all)-1]
	for i := range last.keys { // the same with another client
		var s session
		if err := p.live.Maps[mapSessions].Lookup(last.keys[i], &s); err != nil {
			t.Fatal(err)
		}
		if err := p.live.Maps[mapSessions].Delete(last.keys[i]); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			last.keys[i].Ifindex = 99
		} else {
			s.Other = 99
		}
		p.session(last.keys[i], s)
	}
	p.w.maps.stats[index].addSessions(100)
	p.sweep()
	for _, w := range all {
		for i, k := range w.keys {
			if left := p.live.Maps[mapSessions].Lookup(k, &session{}) == nil; left != w.left {
				t.Errorf("%s: entry %d left: %t, want %t", w.name, i, left, w.left)
			}
		}
	}
	if got := p.w.maps.stats[index].sessions(); got != 5 {
		t.Errorf("the instance has %d sessions, want 5", got)
	}
	if got := p.w.tally; got.Entries != 10 || got.Sessions != 5 || got.Expired != 8 {
		t.Errorf("%+v", got)
	}
}

// A sweep corrects the interfaces' counts of sessions, and decrements them for removed ones.
func TestSweepCountsShares(t *testing.T) {
	p := newTestControl(t, "")
	p.w.instanceChanged(sdk.Attachment{Service: "client", Ifindex: 7}, true, p.now)
	p.w.instanceChanged(sdk.Attachment{Service: "server", Ifindex: 8}, true, p.now)
	p.put(webService(1, v1alpha1.PolicyRoundRobin))
	index, _ := p.entry("web-0")
	shares := func() [2]uint64 {
		return [2]uint64{p.w.maps.shares[0].sessions(), p.w.maps.shares[p.w.locals.byIfindex[7].index].sessions()}
	}
	now := p.longAfterBoot()
	put := func(sport uint16, age time.Duration) {
		k, s := pairOf("10.18.0.9", "10.30.0.1", "10.18.0.1", protoUDP, sport, index, false)
		for i := range k {
			s[i].Seen, s[i].State = now-uint64(age), stateAnswered
			p.session(k[i], s[i])
		}
	}
	put(1000, 0)
	put(1010, 0)
	p.sweep()
	p.same("of another version", shares(), [2]uint64{2, 2})
	put(1020, 200*time.Second)
	p.w.maps.shares[0].addSessions(1)
	p.w.maps.shares[p.w.locals.byIfindex[7].index].addSessions(1)
	p.sweep()
	p.same("one removed", shares(), [2]uint64{2, 2})
}

// longAfterBoot sweeps sessions with a clock two hours ahead, so that sessions can be old on a machine that has just
// booted.
func (p *testControl) longAfterBoot() uint64 {
	now := sdk.Monotonic() + uint64(2*time.Hour)
	p.w.sweeper.clock = func() uint64 { return now }
	return now
}

// An upgrade keeps sessions: live ones in the table without eviction, and others next to it.
func TestSessionsAreCarriedOver(t *testing.T) {
	p := compileConfig(t, "")
	maps := newMaps(t, p)
	before, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.LRUHash, KeySize: maps[mapSessions].KeySize(),
		ValueSize: maps[mapSessions].ValueSize(), MaxEntries: 1024})
	if err != nil {
		t.Fatal(err)
	}
	defer before.Close()
	for state, sport := range map[uint8]uint16{0: 1000, stateAnswered: 1010, stateAnswered | stateClientFIN: 1020,
		stateAnswered | stateReset | stateClosed: 1030} {
		k, s := pairOf("10.18.0.9", "10.30.0.1", "10.18.0.1", protoTCP, sport, 1, false)
		for i := range k {
			s[i].State = state
			if err := before.Put(&k[i], &s[i]); err != nil {
				t.Fatal(err)
			}
		}
	}
	maps[previousSessions] = before
	if err := p.Fill(maps); err != nil {
		t.Fatal(err)
	}
	for sport, name := range map[uint16]string{1000: mapPending, 1010: mapSessions, 1020: mapSessions, 1030: mapPending} {
		k, _ := pairOf("10.18.0.9", "10.30.0.1", "10.18.0.1", protoTCP, sport, 1, false)
		for i := range k {
			if err := maps[name].Lookup(&k[i], &session{}); err != nil {
				t.Errorf("port %d, entry %d in %s: %v", sport, i, name, err)
			}
		}
	}
}

// The session count of an instance is not corrected if it may have been correct at some time of the sweep.
func TestCorrectLeavesWhatMayBeRight(t *testing.T) {
	p := newTestControl(t, "")
	p.put(webService(1, v1alpha1.PolicyLeastConnections))
	index, _ := p.entry("web-0")
	stats := &p.w.maps.stats[index]
	for _, c := range []struct{ before, found, after, want int64 }{
		{5, 5, 5, 5}, {5, 6, 7, 7}, {7, 6, 5, 5}, // opened or closed while the table was read
		{5, 3, 5, 3}, {5, 3, 6, 4}, {5, 9, 6, 9}, {-2, 0, -2, 0},
	} {
		stats.begin()
		stats.addSessions(c.after)
		before := p.w.sessionCounts()
		before.open[index], p.w.sweeper.open[index] = c.before, c.found
		p.w.correct(before)
		if got := stats.sessions(); got != c.want {
			t.Errorf("%d before, %d found, %d after: %d, want %d", c.before, c.found, c.after, got, c.want)
		}
	}
}

// Unused dynamic virtual services are released, periodically.
func TestIdle(t *testing.T) {
	p := newTestControl(t, "")
	vs := webService(1, v1alpha1.PolicyRoundRobin)
	vs.Dynamic = true
	p.put(vs)
	p.sweep()
	p.same("at once", p.idle, []string(nil))
	p.now = p.now.Add(idleFor + time.Second)
	p.sweep()
	p.sweep()
	p.same("later", p.idle, []string{"web"})
	p.same("not in use", len(p.wanted), 0)
	p.w.instanceChanged(sdk.Attachment{Service: "client", Ifindex: 7}, true, p.now)
	fillSessions(p, 1)
	p.sweep()
	p.sweep()
	address := vs.Spec.Addresses[0].Address
	p.same("in use again, without an answer", fmt.Sprint(p.wanted), "["+address+" "+address+"]")
	p.put(vs)
	p.sweep()
	p.same("answered", len(p.wanted), 2)
}

// The agent may remove a released service before it reads that it is in use again. It is asked until it answers.
func TestForgottenBeforeTheAnswer(t *testing.T) {
	for _, other := range []bool{false, true} {
		p := newTestControl(t, "")
		vs := webService(1, v1alpha1.PolicyRoundRobin)
		vs.Dynamic = true
		p.put(vs)
		p.now = p.now.Add(idleFor + time.Second)
		p.sweep()
		p.same("released", p.idle, []string{"web"})
		p.put(vs) // a change, no answer
		stats := &p.w.maps.stats[p.w.services["web"].targets[0].index]
		stats.addSessions(1)
		if err := p.w.idle(p.now); err != nil {
			t.Fatal(err)
		}
		address := vs.Spec.Addresses[0].Address
		p.same("in use again", fmt.Sprint(p.wanted), "["+address+"]")
		p.update(sdk.VirtualServiceUpdate{Remove: []string{"web"}})
		p.same("serves", p.served(address), []string{"web-0"})
		stats.addSessions(-1)
		p.wanted = nil
		p.sweep()
		p.same("no answer", fmt.Sprint(p.wanted), "["+address+"]")
		if !other {
			p.put(vs)
			p.sweep()
			p.same("asked after the answer", len(p.wanted), 1)
			continue
		}
		vs.Name = "shop" // now has the addresses
		p.put(vs)
		p.sweep()
		if p.w.services["web"] != nil || len(p.w.services) != 1 {
			t.Errorf("%d services", len(p.w.services))
		}
	}
}

// A session that starts while the sweep reads the tables keeps its service.
func TestNotIdleSinceTheSweep(t *testing.T) {
	p := newTestControl(t, "")
	vs, other := webService(1, v1alpha1.PolicyRoundRobin), standsAlone("other", 9, "")
	vs.Dynamic = true
	p.all(other, vs)
	p.w.instanceChanged(sdk.Attachment{Service: "client", Ifindex: 7}, true, p.now)
	k, s := pairOf("10.18.0.9", "10.30.7.9", "10.18.0.9", protoTCP, 0, p.w.services["other"].targets[0].index, false)
	s[0].Seen = sdk.Monotonic()
	p.session(k[0], s[0])
	begun := false
	p.w.pause = func(time.Duration) {
		if !begun {
			begun = true
			p.w.maps.stats[p.w.services["web"].targets[0].index].addSessions(1)
		}
	}
	p.now = p.now.Add(idleFor + time.Second)
	p.sweep()
	p.same("in use", p.idle, []string(nil))
	p.same("a session has begun", begun, true)
}

// The agent may remove a released service after sessions have started: it is requested again, and serves them
// meanwhile.
func TestForgottenInUse(t *testing.T) {
	for _, known := range []bool{true, false} {
		p := newTestControl(t, "")
		vs := webService(1, v1alpha1.PolicyRoundRobin)
		vs.Dynamic = true
		p.put(vs)
		p.now = p.now.Add(idleFor + time.Second)
		p.sweep()
		p.same("released", p.idle, []string{"web"})
		address := netip.MustParseAddr(vs.Spec.Addresses[0].Address)
		index := p.w.services["web"].targets[0].index
		p.w.maps.stats[index].addSessions(1)
		p.update(sdk.VirtualServiceUpdate{Remove: []string{"web"}})
		p.same("asked again", fmt.Sprint(p.wanted), "["+address.String()+"]")
		p.same("serves", p.served(address.String()), []string{"web-0"})
		if known {
			p.put(vs)
			p.same("found again", p.served(address.String()), []string{"web-0"})
		} else {
			p.update(sdk.VirtualServiceUpdate{Unknown: []netip.Addr{address}})
			p.same("does not exist", len(p.w.services), 0)
			continue
		}
		p.update(sdk.VirtualServiceUpdate{Remove: []string{"web"}}) // by the cluster
		p.same("removed", len(p.w.services), 0)
	}
}

// BenchmarkSweep reads a full table of 65,536 sessions, of which few end.
func BenchmarkSweep(b *testing.B) {
	p := newTestControl(b, "")
	p.w.instanceChanged(sdk.Attachment{Service: "client", Ifindex: 7}, true, p.now)
	fillSessions(p, 65536)
	p.sweep()
	b.ReportMetric(float64(p.w.tally.Entries), "entries")
	for b.Loop() {
		p.sweep()
	}
}

func fillSessions(p *testControl, n int) {
	now := sdk.Monotonic()
	var keys []flow
	var values []session
	for i := range n {
		k, s := pairOf("10.18.0.9", "10.30.0.1", "10.18.0.1", protoTCP, 0, uint32(1+i%1000), false)
		k[0].Src[12], k[1].Dst[12] = byte(i>>16), byte(i>>16)
		k[0].SPort, s[1].DPort = portOf(uint16(i)), portOf(uint16(i))
		k[1].DPort, s[0].SPort = portOf(uint16(i)), portOf(uint16(i))
		for side := range s {
			s[side].Seen, s[side].State = now-uint64(time.Minute), stateAnswered // idle ones are the most expensive
			keys, values = append(keys, k[side]), append(values, s[side])
		}
	}
	if _, err := p.live.Maps[mapSessions].BatchUpdate(keys, values, nil); err != nil {
		p.t.Fatal(err)
	}
}
