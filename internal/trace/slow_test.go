// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"fmt"
	"testing"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/kerbabi"
	"github.com/kerb-edge/kerb/internal/plan"
	"github.com/kerb-edge/kerb/internal/service"
)

// A packet that was kept reads as one of a trace, with the time of the chain.
func TestSlowPacket(t *testing.T) {
	c := chain.Spec{Side: chain.OnTCIngress, Direction: chain.Egress, Members: []chain.Member{{Name: "a"}, {Name: "b"}}}
	first := event(0, 1, head, 0, 80)
	first.Bytes = make([]byte, 100)
	whole := []dataplane.TraceEvent{first, event(0, 1, 0, kerbabi.Next, 8080), event(0, 1, 1, kerbabi.Drop, 8080)}
	elsewhere := event(0, 1, head, 0, 80)
	elsewhere.Ifindex = 9
	closed := event(0, 1, 0, 77, 80)
	for _, test := range []struct {
		name   string
		events []dataplane.TraceEvent
		filter v1.TraceRequest
		want   string
	}{
		{"whole", whole, v1.TraceRequest{}, "web veth7 udp 10.0.0.1:1000 10.0.0.2:80 60000 " +
			"[a next  40 10.0.0.2:8080][b drop reason of b 41 ]"},
		{"long enough", whole, v1.TraceRequest{Slower: "59us"}, "web veth7 udp 10.0.0.1:1000 10.0.0.2:80 60000 " +
			"[a next  40 10.0.0.2:8080][b drop reason of b 41 ]"},
		{"too fast", whole, v1.TraceRequest{Slower: "60us"}, ""},
		{"another port", whole, v1.TraceRequest{Port: 81}, ""},
		{"another host", whole, v1.TraceRequest{Host: "10.0.1.0/24"}, ""},
		{"interface removed", append([]dataplane.TraceEvent{elsewhere}, whole[1:]...), v1.TraceRequest{},
			" ifindex 9, removed udp 10.0.0.1:1000 10.0.0.2:80 60000 [a next  40 10.0.0.2:8080][b drop reason of b 41 ]"},
		{"overwritten", whole[:2], v1.TraceRequest{}, ""},
		{"no verdict", []dataplane.TraceEvent{first, closed}, v1.TraceRequest{},
			"web veth7 udp 10.0.0.1:1000 10.0.0.2:80 60000 [a invalid  40 ]"},
	} {
		f, err := Filter(test.filter)
		if err != nil {
			t.Fatal(err)
		}
		f.Bytes = 20
		s := Slow{Filter: f, Reader: Reader{
			Points: plan.Placements{{Ifindex: 7, Side: chain.OnTCIngress}: {Service: "web", Link: service.Link{Name: "veth7"}}},
			Reason: func(module string, _ int) string { return "reason of " + module }}}
		p, ok := s.Of(dataplane.SlowPacket{Chain: c, Took: 60 * time.Microsecond, Events: test.events})
		if ok != (test.want != "") {
			t.Errorf("%s: %v", test.name, ok)
		}
		if !ok {
			continue
		}
		got := fmt.Sprint(p.Service, " ", p.Interface, " ", p.Protocol, " ", p.Source, " ", p.Destination, " ",
			p.Nanoseconds, " ")
		for _, step := range p.Steps {
			got += fmt.Sprintf("[%s %s %s %d %s]", step.Module, step.Verdict, step.Reason, step.Nanoseconds, step.Destination)
		}
		if got != test.want || len(p.Frame) > 20 || test.name == "whole" && len(p.Frame) != 20 {
			t.Errorf("%s: %q\nwant %q, %d bytes", test.name, got, test.want, len(p.Frame))
		}
	}
}
