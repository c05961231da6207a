// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/vishvananda/netlink"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/kerbabi"
)

const tcRedirect = 7

// deciding is a module that gives every packet this verdict.
func deciding(t testing.TB, name string, verdict kerbabi.Verdict, constants map[string]any) Module {
	t.Helper()
	all := map[string]any{"verdict": uint64(verdict), "ifindex": loopback}
	for c, value := range constants {
		all[c] = value
	}
	m := testModule(t, "verdict", name, all)
	m.ID = chain.ShortHash([]byte(name), []byte(keyOf(all)))
	return m
}

// later is a module that redirects every packet after the last module.
func later(t testing.TB, name string, ifindex int) Module {
	m := deciding(t, name, kerbabi.Redirect, map[string]any{"ifindex": ifindex, "deferred": true})
	m.DeferredRedirect = true
	return m
}

// behind are modules behind one that has deferred a redirect, and the action of a chain of them on TC.
func behind(t *testing.T) []struct {
	name   string
	module Module
	want   int32
	passes bool // the packet reaches a third module
} {
	closed := deciding(t, "behind", 77, nil)
	closed.FailClosed = true
	return []struct {
		name   string
		module Module
		want   int32
		passes bool
	}{
		{"next", deciding(t, "behind", kerbabi.Next, nil), tcRedirect, true},
		{"drop", deciding(t, "behind", kerbabi.Drop, nil), tcShot, false},
		{"reply", deciding(t, "behind", kerbabi.Reply, nil), tcRedirect, false},
		{"redirect", deciding(t, "behind", kerbabi.Redirect, nil), tcRedirect, false},
		{"later", later(t, "behind", loopback), tcRedirect, true},
		{"undeclared", deciding(t, "behind", kerbabi.Redirect, map[string]any{"deferred": true}), tcRedirect, false},
		{"bad verdict, open", deciding(t, "behind", 77, nil), tcRedirect, true},
		{"bad verdict, closed", closed, tcShot, false},
	}
}

// A module that defers a redirect leaves the packet to those behind it. They see it once, and may drop it; drops count
// for them. On XDP it redirects at once.
func TestDeferredRedirect(t *testing.T) {
	for _, s := range sides {
		for _, c := range behind(t) {
			t.Run(fmt.Sprint(s.side, " ", c.name), func(t *testing.T) {
				l := load(t, s.side, s.dir, later(t, "first", loopback), testModule(t, "pass", "count", nil), c.module,
					testModule(t, "pass", "last", nil))
				got, _ := run(t, l.Program, udpPacket(t, 1, nil))
				count, _ := counted(t, l.Maps["count"]["totals"])
				last, _ := counted(t, l.Maps["last"]["totals"])
				if s.side == chain.OnXDP {
					if got != 4 || count != 0 {
						t.Errorf("action %d, %d packets behind; want a redirect and none", got, count)
					}
					return
				}
				if got != c.want || count != 1 || last != 1 != !c.passes {
					t.Errorf("action %d, %d packets behind, %d at the end; want %d", got, count, last, c.want)
				}
				first, _ := l.Drops("first")
				drops, _ := l.Drops("behind")
				if dropped := sum(drops); sum(first) != 0 || (c.want == tcShot) && dropped != 1 {
					t.Errorf("drops: %v of the first, %v of the one behind", first, drops)
				}
			})
		}
	}
}

func sum(all []uint64) (n uint64) {
	for _, one := range all {
		n += one
	}
	return n
}

// The same in a chain that is too large for one program: the target passes from part to part.
func TestDeferredRedirectInParts(t *testing.T) {
	if os.Getenv("KERB_MATRIX") != "" {
		t.Skip("millions of verified instructions take minutes in an emulated machine")
	}
	for name, c := range map[string]struct {
		first Module
		want  int32
	}{
		"redirected": {later(t, "first", loopback), tcRedirect},
		"not":        {deciding(t, "first", kerbabi.Next, nil), tcNext},
	} {
		c.first.DeferredRedirect = true
		l := load(t, chain.OnTCIngress, chain.Egress, c.first, testModule(t, "huge", "h1", nil),
			testModule(t, "huge", "h2", nil), testModule(t, "pass", "last", nil))
		got, _ := run(t, l.Program, udpPacket(t, 1, nil))
		last, _ := counted(t, l.Maps["last"]["totals"])
		if l.Parts < 2 || got != c.want || last != 1 {
			t.Errorf("%s: %d parts, action %d, %d packets at the end; want %d", name, l.Parts, got, last, c.want)
		}
	}
}

// The packet goes where the module has said, and not where it would go without it. Its trace shows the modules behind.
func TestDeferredRedirectArrives(t *testing.T) {
	for name, dropped := range map[string]int{"passed": 1, "dropped": 53} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, Options{})
			p := chain.Point{Ifindex: w.a.OuterIndex(), Side: chain.OnTCIngress}
			mods := map[string]Module{"later": later(t, "later", w.b.OuterIndex()),
				"dropper": testModule(t, "drop", "dropper", map[string]any{"port": dropped})}
			back := chain.Point{Ifindex: w.b.OuterIndex(), Side: chain.OnTCIngress}
			w.deploy(t, back, chain.Egress, later(t, "back", w.a.OuterIndex()), testModule(t, "pass", "count", nil))
			spec := w.deploy(t, p, chain.Egress, mods["later"], mods["dropper"])
			w.leaveBridge(t)
			if !w.passes(t, 54) || w.dropped(t, 53) != (dropped == 53) {
				t.Error("the module behind does not decide")
			}
			trace, err := w.Trace(TraceFilter{Proto: 17, Port: 53}, map[chain.Point]chain.Spec{p: spec}, mods)
			if err != nil {
				t.Fatal(err)
			}
			defer trace.Close()
			w.send(t, 53, 1)
			verdicts := []kerbabi.Verdict{kerbabi.Next, kerbabi.Redirect, kerbabi.Next}
			if dropped == 53 {
				verdicts[2] = kerbabi.Drop
			}
			for i, want := range verdicts {
				e, err := trace.Read(time.Now().Add(30 * time.Second))
				if err != nil {
					t.Fatal(err)
				}
				if kerbabi.Verdict(e.Verdict) != want || e.Deferred() != (i == 1) ||
					i > 0 && e.ToIfindex != uint32(w.b.OuterIndex()) {
					t.Errorf("event %d: %+v", i, e)
				}
			}
			if err := w.Attach(p, spec); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// A redirect of a module whose package lacks deferredRedirect ends the trace of the packet.
func TestTraceOfUndeclaredRedirect(t *testing.T) {
	l := load(t, chain.OnTCIngress, chain.Egress,
		deciding(t, "undeclared", kerbabi.Redirect, map[string]any{"deferred": true}), testModule(t, "pass", "count", nil))
	trace, err := NewTrace(TraceFilter{})
	if err != nil {
		t.Fatal(err)
	}
	defer trace.Close()
	prog, err := l.Trace(trace, l.chain.spec)
	if err != nil {
		t.Fatal(err)
	}
	defer prog.Close()
	run(t, prog, udpPacket(t, 1, nil))
	for _, want := range []kerbabi.Verdict{kerbabi.Next, kerbabi.Redirect} {
		e, err := trace.Read(time.Now().Add(30 * time.Second))
		if err != nil {
			t.Fatal(err)
		}
		if kerbabi.Verdict(e.Verdict) != want || e.Deferred() {
			t.Errorf("%+v, want %s", e, want)
		}
	}
}

// leaveBridge takes both hosts off the bridge: nothing but redirects connects them then.
func (w *world) leaveBridge(t *testing.T) {
	t.Helper()
	for _, ifindex := range []int{w.a.OuterIndex(), w.b.OuterIndex()} {
		link, err := netlink.LinkByIndex(ifindex)
		if err != nil {
			t.Fatal(err)
		}
		if err := netlink.LinkSetNoMaster(link); err != nil {
			t.Fatal(err)
		}
	}
}

// Chains in which no module defers a redirect to another one do not change by a single instruction.
func TestDeferredRedirectCostsOthersNothing(t *testing.T) {
	link := func(deferred bool) asm.Instructions {
		mods := []Module{testModule(t, "pass", "count", nil), later(t, "later", loopback)}
		mods[1].DeferredRedirect = deferred
		l, err := Load(chain.OnTCIngress, chain.Egress, mods...)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		linker, err := newLinker(l.chain.spec, l.mapSets)
		if err != nil {
			t.Fatal(err)
		}
		linker.maps[outcomesMap], linker.maps[countsMap] = l.chain.outcomes, l.chain.counts
		code, err := linker.link(0, len(mods), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		return code
	}
	with, without := link(true), link(false)
	if a, b := shape(with), shape(without); a != b {
		t.Errorf("the last module defers: %d instructions, else %d", len(with), len(without))
	}
}

// shape is what instructions do, apart from the maps that they load.
func shape(code asm.Instructions) (text string) {
	for _, ins := range code {
		if ins.IsLoadFromMap() {
			ins.Constant = 0
		}
		text += fmt.Sprintln(ins.OpCode, ins.Dst, ins.Src, ins.Offset, ins.Constant, ins.Symbol(), ins.Reference(),
			btf.FuncMetadata(&ins) != nil)
	}
	return text
}
