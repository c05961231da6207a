// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/kerbabi"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
)

func TestTraceTellsWhoDropped(t *testing.T) {
	for name, c := range map[string]struct {
		side chain.Side
		opts Options
		host func(*world) *netlab.Host
		dir  chain.Direction
	}{
		"tc":     {chain.OnTCIngress, Options{}, hostA, chain.Egress},
		"clsact": {chain.OnTCEgress, Options{NoTCX: true}, hostB, chain.Ingress},
		"xdp":    {chain.OnXDP, Options{}, hostA, chain.Egress},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, c.opts)
			p := chain.Point{Ifindex: c.host(w).OuterIndex(), Side: c.side}
			pass, drop := testModule(t, "pass", "count", nil), testModule(t, "drop", "dropper", map[string]any{"port": 53})
			spec := w.deploy(t, p, c.dir, pass, drop)
			trace, err := w.Trace(TraceFilter{Proto: 17, Port: 53, Addr: w.b.Addr4()}, map[chain.Point]chain.Spec{p: spec},
				map[string]Module{"count": pass, "dropper": drop})
			if err != nil {
				t.Fatal(err)
			}
			defer trace.Close()
			if !w.passes(t, 54) || !w.dropped(t, 53) {
				t.Error("the chain does not drop port 53 alone")
			}
			for i, want := range []struct {
				position uint8
				verdict  kerbabi.Verdict
			}{{traceHead, kerbabi.Next}, {0, kerbabi.Next}, {1, kerbabi.Drop}} {
				e, err := trace.Read(time.Now().Add(30 * time.Second))
				if err != nil {
					t.Fatal(err)
				}
				if e.Position != want.position || kerbabi.Verdict(e.Verdict) != want.verdict || e.Packet == 0 || e.DestPort != 53 ||
					e.Addr(e.SourceAddr) != w.a.Addr4() || e.Addr(e.DestAddr) != w.b.Addr4() {
					t.Errorf("event %d: %+v", i, e)
				}
			}
			if err := w.Attach(p, spec); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// A chain in several parts is traced in parts, which outlive the agent: their table is pinned until plain chains are
// back.
func TestTraceOfSplitChain(t *testing.T) {
	if os.Getenv("KERB_MATRIX") != "" {
		t.Skip("millions of verified instructions take minutes in an emulated machine")
	}
	w := newWorld(t, Options{})
	p := chain.Point{Ifindex: w.a.OuterIndex(), Side: chain.OnTCIngress}
	mods := map[string]Module{}
	var list []Module
	for _, name := range []string{"h1", "h2", "h3"} {
		mods[name] = testModule(t, "huge", name, nil)
		list = append(list, mods[name])
	}
	spec := w.deploy(t, p, chain.Egress, list...)
	trace, err := w.Trace(TraceFilter{Proto: 17, Port: 54}, map[chain.Point]chain.Spec{p: spec}, mods)
	if err != nil {
		t.Fatal(err)
	}
	defer trace.Close()
	if !w.passes(t, 54) {
		t.Error("a traced chain does not pass what the plain one passes")
	}
	var packet uint64
	for i, want := range []uint8{traceHead, 0, 1, 2} {
		e, err := trace.Read(time.Now().Add(30 * time.Second))
		if err != nil {
			t.Fatal(err)
		}
		if e.Head() {
			packet = e.Packet
		}
		if e.Position != want || kerbabi.Verdict(e.Verdict) != kerbabi.Next || e.DestPort != 54 || e.Packet != packet {
			t.Errorf("event %d: %+v", i, e)
		}
	}
	tables := func() []string {
		found, err := filepath.Glob(filepath.Join(w.layout.traces(), "*"))
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	if found := tables(); len(found) != 1 {
		t.Errorf("pinned while the trace runs: %v", found)
	}
	if err := w.Attach(p, spec); err != nil {
		t.Fatal(err)
	}
	if err := w.ForgetTraces(); err != nil || len(tables()) != 0 {
		t.Errorf("pinned after it: %v (%v)", tables(), err)
	}
}
