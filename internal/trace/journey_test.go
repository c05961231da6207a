// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/kerbabi"
)

// That the kernel dropped a packet is shown at its last chain. A drop before that was of a copy, and one behind a
// module that drops is that module's. Its reason can be asked for.
func TestKernelDropsOfPackets(t *testing.T) {
	at := func(trace, time uint64, e dataplane.TraceEvent) dataplane.TraceEvent {
		e.Trace, e.Time = trace, time
		return e
	}
	drop := func(trace, time, reason uint64) dataplane.TraceEvent {
		e := at(trace, time, event(3, 0, 0xfe, 0, 0))
		e.NoteWord, e.Bytes = reason, append([]byte("udp_rcv"), make([]byte, 57)...)
		return e
	}
	const unnamed, other = 60001, 60002
	events := []dataplane.TraceEvent{
		at(1, 10, event(0, 1, head, 0, 1)), at(1, 11, event(0, 1, 0, kerbabi.Next, 1)), drop(1, 12, unnamed),
		at(2, 20, event(0, 2, head, 0, 2)), at(2, 21, event(0, 2, 0, kerbabi.Drop, 2)), drop(2, 22, unnamed),
		at(3, 30, event(0, 3, head, 0, 3)), at(3, 31, event(0, 3, 0, kerbabi.Next, 3)), drop(3, 32, unnamed),
		at(3, 33, event(1, 4, head, 0, 3)), at(3, 34, event(1, 4, 0, kerbabi.Next, 3)),
		at(4, 40, event(0, 5, head, 0, 4)), at(4, 41, event(0, 5, 0, kerbabi.Next, 4)), drop(4, 42, unnamed),
		at(4, 43, event(1, 6, head, 0, 4)), at(4, 44, event(1, 6, 0, kerbabi.Next, 4)), drop(4, 45, other),
		drop(5, 50, unnamed), // of a packet whose events were lost
	}
	for reason, want := range map[string][]string{
		"":      {":1 60001", ":2", ":3 >", ":4 > 60002"},
		"60002": {":4 > 60002"},
		"60003": nil,
	} {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var got []string
		r := Reader{Source: &recorded{end: cancel, events: append([]dataplane.TraceEvent(nil), events...)}, Follow: true,
			Chains: []chain.Spec{{Side: chain.OnTCIngress, Members: []chain.Member{{Name: "a"}}}},
			Reason: func(string, int) string { return "" },
			Wanted: func(p v1.TracedPacket) bool { return Matches(v1.TraceRequest{Reason: reason}, p) },
			Show: func(l v1.TraceLine) error {
				text := l.Destination[len("10.0.0.2"):]
				for _, p := range append([]v1.TracedPacket{*l.TracedPacket}, l.Then...) {
					if p.Time != l.Time {
						text += " >"
					}
					if k := p.KernelDrop; k != nil {
						text += " " + k.Reason
						if k.Function != "udp_rcv" || !k.Time.After(p.Time) {
							t.Errorf("%+v", k)
						}
					}
				}
				got = append(got, text)
				return nil
			}}
		if err := r.Run(ctx); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("reason %q, want (-), got (+):\n%s", reason, diff)
		}
	}
}
