// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"testing"
	"time"

	"github.com/kerb-edge/kerb/internal/kerbabi"
	"github.com/kerb-edge/kerb/internal/netlab"
)

func TestTraceTellsWhoDropped(t *testing.T) {
	for name, c := range map[string]struct {
		side Side
		opts Options
		host func(*world) *netlab.Host
		dir  Direction
	}{
		"tc":     {OnTCIngress, Options{}, hostA, Egress},
		"clsact": {OnTCEgress, Options{NoTCX: true}, hostB, Ingress},
		"xdp":    {OnXDP, Options{}, hostA, Egress},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, c.opts)
			p := Point{Ifindex: c.host(w).OuterIndex(), Side: c.side}
			pass, drop := testModule(t, "pass", "count", nil), testModule(t, "drop", "dropper", map[string]any{"port": 53})
			spec := w.deploy(t, p, c.dir, pass, drop)
			trace, err := w.Trace(TraceFilter{Proto: 17, Port: 53, Addr: w.b.Addr4()}, map[Point]ChainSpec{p: spec}, map[string]Module{"count": pass, "dropper": drop})
			if err != nil {
				t.Fatal(err)
			}
			defer trace.Close()
			w.reach(t, 54)
			w.reach(t, 53)
			for position, verdict := range []kerbabi.Verdict{kerbabi.Next, kerbabi.Drop} {
				e, err := trace.Read(time.Now().Add(5 * time.Second))
				if err != nil {
					t.Fatal(err)
				}
				if int(e.Position) != position || kerbabi.Verdict(e.Verdict) != verdict || e.DestPort != 53 || e.Addr(e.SourceAddr) != w.a.Addr4() || e.Addr(e.DestAddr) != w.b.Addr4() {
					t.Errorf("event %d: %+v", position, e)
				}
			}
			if err := w.Attach(p, spec); err != nil {
				t.Fatal(err)
			}
		})
	}
}
