// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"errors"
	"os"
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
			if !w.passes(t, 54) || !w.dropped(t, 53) {
				t.Error("the chain does not drop port 53 alone")
			}
			for position, verdict := range []kerbabi.Verdict{kerbabi.Next, kerbabi.Drop} {
				e, err := trace.Read(time.Now().Add(30 * time.Second))
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

// A chain in several parts is not traced: its table would be lost with the agent.
func TestTraceRefusesSplitChain(t *testing.T) {
	if os.Getenv("KERB_MATRIX") != "" {
		t.Skip("millions of verified instructions take minutes in an emulated machine")
	}
	w := newWorld(t, Options{})
	p := Point{Ifindex: w.a.OuterIndex(), Side: OnTCIngress}
	mods := map[string]Module{}
	var list []Module
	for _, name := range []string{"h1", "h2", "h3"} {
		mods[name] = testModule(t, "huge", name, nil)
		list = append(list, mods[name])
	}
	spec := w.deploy(t, p, Egress, list...)
	if _, err := w.Trace(TraceFilter{}, map[Point]ChainSpec{p: spec}, mods); !errors.Is(err, ErrSplit) {
		t.Errorf("trace of a split chain: %v, want ErrSplit", err)
	}
	if state, err := w.Observe(); err != nil || state.Points[0].Program != state.Chains[0].Program {
		t.Errorf("the plain chain does not run any more: %+v (%v)", state, err)
	}
}
