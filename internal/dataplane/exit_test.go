// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/kerbabi"
	"github.com/kerb-edge/kerb/sdk"
)

// exitCall is struct exits of the test module.
type exitCall struct {
	Packets, Calls                            uint64
	Verdict, Module, Seen, Side, Reason, Port uint32
}

// exitCase is what the modules between two that record do with a packet, and what these learn.
type exitCase struct {
	modules []Module
	decides int             // index in the chain of the one whose decision is reported; 0: none
	verdict kerbabi.Verdict // its
	reason  kerbabi.DropReason
	passes  bool // the packet reaches the last module
}

const exitPort = 5353

func exitCases(t *testing.T, side chain.Side) map[string]exitCase {
	pass := testModule(t, "pass", "count", nil)
	drop := func(reason int) []Module {
		return []Module{pass, deciding(t, "middle", kerbabi.Drop, map[string]any{"reason": reason})}
	}
	one := func(v kerbabi.Verdict, failClosed bool) []Module {
		m := deciding(t, "middle", v, nil)
		m.FailClosed = failClosed
		return []Module{pass, m}
	}
	all := map[string]exitCase{
		"next":                 {one(kerbabi.Next, false), 0, 0, 0, true},
		"drop":                 {drop(int(kerbabi.DropPolicy)), 2, kerbabi.Drop, kerbabi.DropPolicy, false},
		"drop, own reason":     {drop(63), 2, kerbabi.Drop, 63, false},
		"drop, no such reason": {drop(64), 2, kerbabi.Drop, kerbabi.DropUnspec, false},
		"reply":                {one(kerbabi.Reply, false), 2, kerbabi.Reply, 0, false},
		"redirect":             {one(kerbabi.Redirect, false), 2, kerbabi.Redirect, 0, false},
		"bad, open":            {one(77, false), 0, 0, 0, true},
		"bad, closed":          {one(77, true), 2, 77, kerbabi.DropBadVerdict, false},
	}
	if side != chain.OnXDP { // where all redirects are performed at once
		deferred := later(t, "later", loopback)
		all["deferred"] = exitCase{[]Module{deferred, pass}, 0, 0, 0, true}
		all["deferred, dropped"] = exitCase{append([]Module{deferred}, drop(int(kerbabi.DropRate))...), 3, kerbabi.Drop,
			kerbabi.DropRate, false}
	}
	return all
}

// want is what the recording module at a place of the chain has after a packet.
func (c *exitCase) want(place int, name string, dir chain.Direction) (e exitCall) {
	if place == 0 || c.passes {
		e.Packets = 1
	}
	if c.decides == 0 {
		return e
	}
	e.Calls, e.Verdict, e.Module, e.Reason = 1, uint32(c.verdict), sdk.ModuleNumber(name), uint32(c.reason)
	e.Port = exitPort
	if place < c.decides {
		e.Seen = 1
	}
	if dir == chain.Ingress {
		e.Side = 1
	}
	return e
}

// inParts returns the chain of l with a program for each module.
func inParts(t *testing.T, l *Loaded) *Loaded {
	t.Helper()
	linker, err := newLinker(l.chain.spec, l.mapSets)
	if err != nil {
		t.Fatal(err)
	}
	linker.parts = len(l.mapSets)
	c, err := linker.chain()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	if len(c.progs) != len(l.mapSets) {
		t.Fatalf("%d programs of %d modules", len(c.progs), len(l.mapSets))
	}
	return &Loaded{Program: c.entry(), Parts: len(c.progs), Maps: l.Maps, chain: c, mapSets: l.mapSets}
}

// Modules that record learn once of each packet that another one decides about, in whichever way the chain is linked:
// as one program or several, in the timed copy, and while it is traced.
func TestExit(t *testing.T) {
	ways := map[string]func(*testing.T, *Loaded){
		"plain": func(t *testing.T, l *Loaded) { run(t, l.Program, udpPacket(t, exitPort, nil)) },
		"timed": func(t *testing.T, l *Loaded) {
			needsSampling(t)
			if err := l.Time(never); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { l.measures.latency.Close() })
			sampleNext(t, l, true)
			run(t, l.Program, udpPacket(t, exitPort, nil))
			if n := measured(t, l)[0]; n != 1 {
				t.Errorf("%d packets ran in the timed copy", n)
			}
		},
		"traced": func(t *testing.T, l *Loaded) {
			trace, err := NewTrace(TraceFilter{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(trace.Close)
			c, err := trace.link(l.chain.spec, l.mapSets, l.Parts, l.chain)
			if err != nil {
				t.Fatal(err)
			}
			run(t, c.entry(), udpPacket(t, exitPort, nil))
			for range 2 { // the head, and the module that records
				e, err := trace.Read(time.Now().Add(30 * time.Second))
				if key, _ := e.Note(); err != nil || key != 0 || e.DestPort != exitPort {
					t.Errorf("%+v, %v", e, err)
				}
			}
		},
	}
	for _, s := range sides {
		for name, c := range exitCases(t, s.side) {
			if os.Getenv("KERB_MATRIX") != "" && c.decides == 0 {
				continue // hundreds of chains take minutes in an emulated machine
			}
			for way, send := range ways {
				for _, parts := range []bool{false, true} {
					t.Run(fmt.Sprint(s.side, " ", name, " ", way, " parts ", parts), func(t *testing.T) {
						mods := slices.Concat([]Module{testModule(t, "exits", "first", nil)}, c.modules,
							[]Module{testModule(t, "exits", "last", nil)})
						l := load(t, s.side, s.dir, mods...)
						for range 2 { // the second packet finds what the first has left
							resetExits(t, l)
							if parts {
								send(t, inParts(t, l))
							} else {
								send(t, load1(l))
							}
							c.check(t, l, mods, s.dir)
						}
					})
				}
			}
		}
	}
}

// load1 is l, without what was added to it before.
func load1(l *Loaded) *Loaded {
	return &Loaded{Program: l.Program, Parts: l.Parts, Maps: l.Maps, chain: l.chain, mapSets: l.mapSets}
}

func resetExits(t *testing.T, l *Loaded) {
	t.Helper()
	for _, recorder := range []string{"first", "last"} {
		if err := l.Maps[recorder]["exits"].Put(uint32(0), exitCall{}); err != nil {
			t.Fatal(err)
		}
	}
}

func (c *exitCase) check(t *testing.T, l *Loaded, mods []Module, dir chain.Direction) {
	t.Helper()
	for _, place := range []int{0, len(mods) - 1} {
		var got exitCall
		if err := l.Maps[mods[place].Name]["exits"].Lookup(uint32(0), &got); err != nil {
			t.Fatal(err)
		}
		if want := c.want(place, mods[c.decides].Name, dir); got != want {
			t.Errorf("%s has %+v, want %+v", mods[place].Name, got, want)
		}
	}
}

// A chain that does not count its packets knows no numbers of modules.
func TestExitOfUncountedChain(t *testing.T) {
	needsRoot(t)
	l, err := LoadUncounted(chain.OnTCIngress, chain.Egress, testModule(t, "exits", "first", nil),
		deciding(t, "middle", kerbabi.Drop, nil))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	run(t, l.Program, udpPacket(t, exitPort, nil))
	var got exitCall
	if err := l.Maps["first"]["exits"].Lookup(uint32(0), &got); err != nil || got.Calls != 1 || got.Module != 0 {
		t.Errorf("%+v, %v", got, err)
	}
}
