// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"context"
	"errors"
	"os"
	"slices"
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
	e := dataplane.TraceEvent{CPU: cpu, Packet: packet, Position: position, Verdict: uint8(verdict), Chain: 1, Ifindex: 7,
		Family: 4, Proto: 17, SourcePort: 1000, DestPort: port}
	copy(e.SourceAddr[:], []byte{10, 0, 0, 1})
	copy(e.DestAddr[:], []byte{10, 0, 0, 2})
	return e
}

func read(t *testing.T, count int, lost uint64, events ...dataplane.TraceEvent) (out []v1.TracedPacket) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	c := chain.Spec{Side: chain.OnTCIngress, Direction: chain.Egress, Members: []chain.Member{{Name: "a"}, {Name: "b"}}}
	points := plan.Placements{
		{Ifindex: 7, Side: chain.OnTCIngress}: {Service: "web", Link: service.Link{Name: "veth7"}, Chain: c},
		{Ifindex: 8, Side: chain.OnTCIngress}: {Service: "db", Link: service.Link{Name: "veth8"}},
	}
	r := Reader{Source: &recorded{events, lost, cancel}, Chains: []chain.Spec{c}, Points: points, Count: count,
		Reason: func(module string, _ int) string { return "reason of " + module },
		Show:   func(p v1.TracedPacket) error { out = append(out, p); return nil }}
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
	deferred := redirect
	deferred.CPU, deferred.ToFlags = 2, kerbabi.ToDeferred
	got := read(t, 0, 0,
		event(0, 1, head, 0, 80), event(1, 5, head, 0, 53),
		event(0, 1, 0, kerbabi.Next, 8080), redirect, event(0, 1, 1, kerbabi.Drop, 8080),
		event(2, 5, head, 0, 53), deferred, event(2, 5, 1, kerbabi.Next, 53))
	want := [][]v1.TraceStep{
		{{Module: "a", Verdict: kerbabi.Redirect.String(), Interface: "veth8", Service: "db"}},
		{{Module: "a", Verdict: kerbabi.Next.String(), Protocol: "udp", Source: "10.0.0.1:1000",
			Destination: "10.0.0.2:8080"},
			{Module: "b", Verdict: kerbabi.Drop.String(), Reason: "reason of b"}},
		{{Module: "a", Verdict: kerbabi.Redirect.String(), Interface: "veth8", Service: "db"},
			{Module: "b", Verdict: kerbabi.Next.String()}},
	}
	if diff := cmp.Diff(want, steps(got)); diff != "" {
		t.Errorf("steps, want (-), got (+):\n%s", diff)
	}
	if p := got[1]; p.Service != "web" || p.Interface != "veth7" || p.Destination != "10.0.0.2:80" || p.Protocol != "udp" {
		t.Errorf("the packet as it came in: %+v", p)
	}
}

// A packet whose first event is missing is not shown. One whose last verdict is missing is, unless events were lost.
func TestIncompletePackets(t *testing.T) {
	headless := event(0, 2, 0, kerbabi.Next, 80)
	cut := []dataplane.TraceEvent{headless, event(0, 3, head, 0, 80), event(0, 3, 0, kerbabi.Next, 80)}
	if got := read(t, 0, 0, slices.Clone(cut)...); len(got) != 1 || len(got[0].Steps) != 1 {
		t.Errorf("nothing lost: %+v", got)
	}
	if got := read(t, 0, 1, slices.Clone(cut)...); len(got) != 0 {
		t.Errorf("an event is lost: %+v", got)
	}
}

func TestCount(t *testing.T) {
	var all []dataplane.TraceEvent
	for n := range uint64(4) {
		all = append(all, event(0, n, head, 0, 80), event(0, n, 0, kerbabi.Drop, 80))
	}
	if got := read(t, 3, 0, all...); len(got) != 3 {
		t.Errorf("%d packets, want 3", len(got))
	}
}

func TestFilter(t *testing.T) {
	f, err := Filter(v1.TraceRequest{Protocol: "TCP", Host: "::ffff:10.0.0.1", Port: 80})
	if err != nil || f.Proto != 6 || f.Addr.String() != "10.0.0.1" || f.Port != 80 {
		t.Errorf("%+v, %v", f, err)
	}
	for field, r := range map[string]v1.TraceRequest{"protocol": {Protocol: "256"}, "host": {Host: "web"}} {
		var invalid *apierrors.Invalid
		if _, err := Filter(r); !errors.As(err, &invalid) || invalid.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
}
