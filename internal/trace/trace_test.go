// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/kerbabi"
	"github.com/kerb-edge/kerb/internal/plan"
	"github.com/kerb-edge/kerb/internal/service"
)

const head = 0xff // position of the event of a packet as it came in

// recorded is a source of events. When they are read, the trace ends.
type recorded struct {
	events []dataplane.TraceEvent
	lost   uint64
	end    context.CancelFunc
}

func (s *recorded) Lost() uint64 { return s.lost }

func (s *recorded) Read(time.Time) (dataplane.TraceEvent, error) {
	if len(s.events) == 0 {
		s.end()
		return dataplane.TraceEvent{}, os.ErrDeadlineExceeded
	}
	e := s.events[0]
	s.events = s.events[1:]
	return e, nil
}

// event is one of a UDP packet from 10.0.0.1:1000 to 10.0.0.2, on a CPU that counts its packets.
func event(cpu uint16, packet uint64, position uint8, verdict kerbabi.Verdict, port uint16) dataplane.TraceEvent {
	var e dataplane.TraceEvent
	e.CPU, e.Packet, e.Position, e.Verdict, e.Chain, e.Ifindex = cpu, packet, position, uint8(verdict), 1, 7
	e.Family, e.Proto, e.SourcePort, e.DestPort, e.Elapsed = 4, 17, 1000, port, 40+uint64(position)
	copy(e.SourceAddr[:], []byte{10, 0, 0, 1})
	copy(e.DestAddr[:], []byte{10, 0, 0, 2})
	return e
}

func read(t *testing.T, want v1.TraceRequest, lost uint64, events ...dataplane.TraceEvent) (out []v1.TracedPacket) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	c := chain.Spec{Side: chain.OnTCIngress, Direction: chain.Egress, Members: []chain.Member{{Name: "a"}, {Name: "b"}}}
	points := plan.Placements{
		{Ifindex: 7, Side: chain.OnTCIngress}: {Service: "web", Link: service.Link{Name: "veth7"}, Chain: c},
		{Ifindex: 8, Side: chain.OnTCIngress}: {Service: "db", Link: service.Link{Name: "veth8"}},
	}
	r := Reader{Source: &recorded{events, lost, cancel}, Chains: []chain.Spec{c}, Points: points, Count: want.Count,
		Reason: func(module string, _ int) string { return "reason of " + module },
		Note:   func(module string, n int) string { return fmt.Sprint("note ", n, " of ", module) },
		Name:   func(_, note string, value uint64) string { return fmt.Sprint(note, " is ", value) },
		Wanted: func(p v1.TracedPacket) bool { return Matches(want, p) },
		Show: func(line v1.TraceLine) error {
			if line.TracedPacket != nil {
				out = append(out, *line.TracedPacket)
			} else if line.Lost != lost {
				t.Errorf("lost %d, want %d", line.Lost, lost)
			}
			return nil
		}}
	if err := r.Run(ctx); err != nil {
		t.Fatal(err)
	}
	return out
}

func steps(all []v1.TracedPacket) (out [][]v1.TraceStep) {
	for _, p := range all {
		out = append(out, p.Steps)
	}
	return out
}

// A packet has the verdicts of all modules that it met, also when packets of another CPU come between.
func TestPackets(t *testing.T) {
	redirect := event(1, 5, 0, kerbabi.Redirect, 53)
	redirect.ToIfindex = 8
	noted := event(0, 1, 1, kerbabi.Drop, 8080)
	noted.NoteWord = 3<<48 | 1<<47
	deferred := redirect
	deferred.CPU, deferred.ToFlags = 2, kerbabi.ToDeferred
	got := read(t, v1.TraceRequest{}, 0,
		event(0, 1, head, 0, 80), event(1, 5, head, 0, 53),
		event(0, 1, 0, kerbabi.Next, 8080), redirect, noted,
		event(2, 5, head, 0, 53), deferred, event(2, 5, 1, kerbabi.Next, 53))
	want := [][]v1.TraceStep{
		{{Module: "a", Verdict: kerbabi.Redirect.String(), Nanoseconds: 40, Interface: "veth8", Service: "db"}},
		{{Module: "a", Verdict: kerbabi.Next.String(), Nanoseconds: 40, Protocol: "udp", Source: "10.0.0.1:1000",
			Destination: "10.0.0.2:8080"},
			{Module: "b", Verdict: kerbabi.Drop.String(), Nanoseconds: 41, Reason: "reason of b",
				Note: "note 3 of b", Value: 1 << 47, Name: "note 3 of b is 140737488355328"}},
		{{Module: "a", Verdict: kerbabi.Redirect.String(), Nanoseconds: 40, Interface: "veth8", Service: "db"},
			{Module: "b", Verdict: kerbabi.Next.String(), Nanoseconds: 41}},
	}
	if diff := cmp.Diff(want, steps(got)); diff != "" {
		t.Errorf("steps, want (-), got (+):\n%s", diff)
	}
	if p := got[1]; p.Service != "web" || p.Interface != "veth7" || p.Destination != "10.0.0.2:80" || p.Protocol != "udp" {
		t.Errorf("the packet as it came in: %+v", p)
	}
}

// A packet is shown once, with all chains that it met, in the order in which it met them, and not before it can meet no
// other one. What was asked for may have happened at any of them.
func TestFollowedPackets(t *testing.T) {
	c := chain.Spec{Side: chain.OnTCIngress, Members: []chain.Member{{Name: "a"}}}
	at := func(trace uint64, e dataplane.TraceEvent) dataplane.TraceEvent {
		e.Trace, e.Time = trace, e.Packet
		return e
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	source := &recorded{end: cancel, events: []dataplane.TraceEvent{
		at(7, event(0, 1, head, 0, 80)), at(7, event(0, 1, 0, kerbabi.Next, 8080)),
		at(9, event(0, 2, head, 0, 53)), at(7, event(1, 3, head, 0, 8080)), at(9, event(0, 2, 0, kerbabi.Drop, 53)),
		at(7, event(1, 3, 0, kerbabi.Drop, 8080)), at(1<<48|5, event(0, 4, head, 0, 54)), at(1<<48|5, event(0, 4, 0, 0, 54))}}
	var got []string
	r := Reader{Source: source, Chains: []chain.Spec{c}, Follow: true, Count: 2,
		Reason: func(string, int) string { return "" },
		Wanted: func(p v1.TracedPacket) bool { return Matches(v1.TraceRequest{Verdict: "drop"}, p) },
		Show: func(l v1.TraceLine) error {
			text := l.ID + " " + l.Destination
			for _, then := range l.Then {
				text += " > " + then.Destination + " " + then.Steps[0].Verdict
			}
			got = append(got, text)
			return nil
		}}
	if err := r.Run(ctx); err != nil {
		t.Fatal(err)
	}
	want := []string{"0-7 10.0.0.2:80 > 10.0.0.2:8080 drop", "0-9 10.0.0.2:53"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("want (-), got (+):\n%s", diff)
	}
}

// A packet whose first event is missing is not shown. One whose last verdict is missing is, unless events were lost.
func TestIncompletePackets(t *testing.T) {
	headless := event(0, 2, 0, kerbabi.Next, 80)
	cut := []dataplane.TraceEvent{headless, event(0, 3, head, 0, 80), event(0, 3, 0, kerbabi.Next, 80)}
	if got := read(t, v1.TraceRequest{}, 0, slices.Clone(cut)...); len(got) != 1 || len(got[0].Steps) != 1 {
		t.Errorf("nothing lost: %+v", got)
	}
	if got := read(t, v1.TraceRequest{}, 1, slices.Clone(cut)...); len(got) != 0 {
		t.Errorf("an event is lost: %+v", got)
	}
}

func TestCount(t *testing.T) {
	var all []dataplane.TraceEvent
	for n := range uint64(4) {
		all = append(all, event(0, n, head, 0, 80), event(0, n, 0, kerbabi.Drop, 80))
	}
	if got := read(t, v1.TraceRequest{Count: 3}, 0, all...); len(got) != 3 {
		t.Errorf("%d packets, want 3", len(got))
	}
}

// A request for a module, verdict or reason shows the packets of which one step has all of them.
func TestMatches(t *testing.T) {
	p := v1.TracedPacket{Steps: []v1.TraceStep{{Module: "a", Verdict: "next"},
		{Module: "b", Verdict: "drop", Reason: "policy"}}}
	for _, c := range []struct {
		r    v1.TraceRequest
		want bool
	}{
		{v1.TraceRequest{}, true}, {v1.TraceRequest{Module: "a"}, true}, {v1.TraceRequest{Module: "c"}, false},
		{v1.TraceRequest{Verdict: "drop"}, true}, {v1.TraceRequest{Verdict: "reply"}, false},
		{v1.TraceRequest{Module: "a", Verdict: "drop"}, false}, {v1.TraceRequest{Module: "b", Reason: "policy"}, true},
		{v1.TraceRequest{Reason: "state"}, false},
	} {
		if got := Matches(c.r, p); got != c.want {
			t.Errorf("%+v: %v", c.r, got)
		}
	}
	var all []dataplane.TraceEvent
	for n := range uint64(4) { // the second and fourth are dropped
		all = append(all, event(0, n, head, 0, 80), event(0, n, 0, []kerbabi.Verdict{kerbabi.Reply, kerbabi.Drop}[n%2], 80))
	}
	got := read(t, v1.TraceRequest{Verdict: "drop", Count: 1}, 0, all...)
	if len(got) != 1 || got[0].Steps[0].Verdict != "drop" {
		t.Errorf("shown: %+v", got)
	}
}

func TestFilter(t *testing.T) {
	f, err := Filter(v1.TraceRequest{Protocol: "TCP", Host: "::ffff:10.0.0.1", Port: 80})
	if err != nil || f.Proto != 6 || f.Addr.String() != "10.0.0.1/32" || f.Port != 80 {
		t.Errorf("%+v, %v", f, err)
	}
	f, err = Filter(v1.TraceRequest{Host: "2001:db8::/32", Bytes: 96})
	if err != nil || f.Addr.String() != "2001:db8::/32" || f.Bytes != 96 {
		t.Errorf("%+v, %v", f, err)
	}
	f, err = Filter(v1.TraceRequest{Program: "2,40 0 0 12,6 0 0 262144"})
	if err != nil || len(f.Expression) != 2 {
		t.Errorf("%+v, %v", f, err)
	}
	f, err = Filter(v1.TraceRequest{Slower: "50us"})
	if err != nil || f.SlowerThan != 50*time.Microsecond {
		t.Errorf("%+v, %v", f, err)
	}
	for field, r := range map[string]v1.TraceRequest{"protocol": {Protocol: "256"}, "host": {Host: "web"},
		"slowerThan": {Slower: "50"}, "slowerThan/": {Slower: "-1ms"},
		"host/": {Host: "10.0.0.0/33"}, "program": {Program: "1,6 0 0"}} {
		var invalid *apierrors.Invalid
		if _, err := Filter(r); !errors.As(err, &invalid) || invalid.Field != strings.TrimSuffix(field, "/") {
			t.Errorf("%s: %v", field, err)
		}
	}
}
