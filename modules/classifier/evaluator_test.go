// SPDX-License-Identifier: Apache-2.0

package classifier

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

const inUser = `{"model": "m", "shadow": "s", "evaluate": {"where": "user"}, "action": {"do": "drop"}, "events": "all", "hysteresis": {"hits": 2, "of": 3},
	"fuse": {"sources": 4, "sourceShare": 60}, "allow": ["fe80::a"]}`

// see passes a window with numbers of DIS and DIO messages to the control plane, as the data plane does.
func (p *testControl) see(s source, number uint64, dis, dio int32) {
	p.Helper()
	win := window{Time: number * uint64(5*time.Second)}
	names := Features["rpl"]
	win.Values[slices.Index(names, "dis")], win.Values[slices.Index(names, "dio")] = dis, dio
	if err := p.live.Maps.Put(mapWindows, s, win); err != nil {
		p.Fatal(err)
	}
	if err := p.evaluateAll(); err != nil {
		p.Fatal(err)
	}
}

func (p *testControl) blockedNames() string {
	p.Helper()
	var names []string
	for _, b := range get[[]Blocked](p, "/blocked") {
		names = append(names, b.Source)
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

func newEvaluated(t *testing.T, changes ...string) *testControl {
	t.Helper()
	p := newTestControl(t, strings.NewReplacer(changes...).Replace(inUser))
	if a := p.all(modelOf("m", document(1, "dis", 2)), modelOf("s", document(2, "dio", 2))); len(a.Using) != 2 {
		t.Fatalf("%+v", a)
	}
	p.expect(0, 0) // the data plane has none
	return p
}

// In user mode a source is blocked after two windows of three, and remains blocked while it continues. After three
// quiet windows it is cleared; its block lasts until it expires.
func TestUserMode(t *testing.T) {
	p := newEvaluated(t)
	l := p.stream.Open()
	for n, step := range []struct {
		dis     int32
		blocked string
		kind    string
	}{{5, "", "evaluated"}, {0, "", "evaluated"}, {5, "fe80::1", "suspicious"}, {0, "fe80::1", "evaluated"},
		{0, "fe80::1", "evaluated"},
		{0, "fe80::1", "cleared"}, {5, "fe80::1", "evaluated"}} {
		for quiet := byte(10); quiet < 20; quiet++ {
			p.see(nodeSource(quiet), uint64(n+1), 0, 0)
			<-l.Values
		}
		p.see(nodeSource(1), uint64(n+1), step.dis, 9)
		v := <-l.Values
		if got := p.blockedNames(); got != step.blocked || v.Kind != step.kind || v.Source != "fe80::1" || v.Version != 1 ||
			v.Features["dis"] != step.dis {
			t.Errorf("window %d: blocked %q, want %q; %+v, want %s", n+1, got, step.blocked, v, step.kind)
		}
	}
	a := get[Agreement](p, "/agreement")
	if want := (Agreement{BothHarmless: 70, BothPositive: 3, OnlyShadow: 4, SameClass: 73, Share: 73.0 / 77}); a != want {
		t.Errorf("%+v, want %+v", a, want)
	}
	if got := get[map[string]uint64](p, "/stats"); got["evaluated"] != 77 || got["positive"] != 3 {
		t.Errorf("%v", got)
	}
}

// A source on the allow-list is evaluated and reported, but not blocked.
func TestUserModeAllows(t *testing.T) {
	p := newEvaluated(t)
	l := p.stream.Open()
	for n := range uint64(3) {
		p.see(nodeSource(10), n, 50, 0)
	}
	<-l.Values
	if v := <-l.Values; v.Kind != "suspicious" || !v.Allowed || v.Action != "event" || p.blockedNames() != "" {
		t.Errorf("%+v, blocked %q", v, p.blockedNames())
	}
}

// A model that classifies most sources, or too many, as attackers trips the fuse; nothing more is blocked until it is
// reset.
func TestUserModeBlowsTheFuse(t *testing.T) {
	for cause, limits := range map[string]string{"sourceShare": `"sources": 64, "sourceShare": 30`,
		"sources": `"sources": 4, "sourceShare": 60`} {
		t.Run(cause, func(t *testing.T) {
			const benign = 4
			p := newEvaluated(t, `"sources": 4, "sourceShare": 60`, limits)
			for number := range uint64(4) {
				for n := range benign {
					p.see(nodeSource(byte(100+n)), number+1, 0, 0)
				}
				for n := range byte(8) {
					p.see(nodeSource(n+1), number+1, 9, 0)
				}
			}
			r := get[FuseReport](p, "/fuse")
			if r.State != "blown" || r.Cause != cause || r.Blocked > 4 {
				t.Errorf("%+v", r)
			}
			if err := p.resetFuse(); err != nil || p.blockedNames() != "" {
				t.Errorf("%v, blocked %q", err, p.blockedNames())
			}
			for n := range benign {
				p.see(nodeSource(byte(100+n)), 6, 0, 0)
			}
			p.see(nodeSource(1), 6, 9, 0)
			p.see(nodeSource(1), 7, 9, 0)
			if p.blockedNames() != "fe80::1" {
				t.Errorf("blocked %q after it was mended", p.blockedNames())
			}
		})
	}
}

// The number of stored states is limited to the data plane's number of sources.
func TestUserModeForgets(t *testing.T) {
	p := newTestControl(t, strings.Replace(inUser, "{", `{"sources": 64, `, 1))
	p.all(modelOf("m", document(1, "dis", 2)))
	for n := range 200 {
		s := nodeSource(byte(n))
		s.Pan = uint16(n)
		p.see(s, 1, 0, 0)
	}
	if n := len(p.evaluator.sources); n != 64 {
		t.Errorf("%d are known", n)
	}
}

// largeForest returns a forest with more leaves with vectors than fit into the data plane. All trees classify sources
// with more than two DIS as attackers.
func largeForest() string {
	const trees, leaves, classes = 60, 64, 16
	var forest []string
	for t := range trees {
		nodes := make([]string, 0, 2*leaves-1)
		for at := range leaves - 1 {
			threshold := 2
			if at > 0 {
				threshold = 1000 + at
			}
			nodes = append(nodes, fmt.Sprintf(`{"feature": 0, "threshold": %d, "left": %d, "right": %d}`, threshold,
				2*at+1, 2*at+2))
		}
		for leaf := range leaves {
			odd := float64(t*leaves+leaf) / (1 << 20)
			benign, flood := 0.75, 0.25-odd
			if leaf >= leaves/2 {
				benign, flood = 0.25, 0.75-odd
			}
			nodes = append(nodes, fmt.Sprintf(`{"value": [%v, %v, %v%s]}`, benign, flood, odd, strings.Repeat(", 0", classes-3)))
		}
		forest = append(forest, "["+strings.Join(nodes, ", ")+"]")
	}
	names := `"benign", "flood"`
	for c := range classes - 2 {
		names += fmt.Sprintf(`, "other%d"`, c)
	}
	return fmt.Sprintf(
		`{"format": "kerb-model/1", "name": "m", "version": 1, "extractor": "rpl", "kind": "forest", "features": ["dis"], "classes": [%s],
		"trees": [%s]}`, names, strings.Join(forest, ", "))
}

// A model that is too large for the data plane runs in the control plane.
func TestUserModeLargeModel(t *testing.T) {
	large := largeForest()
	p := newTestControl(t, `{"model": "m"}`)
	if a := p.all(modelOf("m", large)); !strings.Contains(a.Refused["m"], "evaluate.where: user") {
		t.Fatalf("%+v", a)
	}
	p = newTestControl(t, inUser)
	if a := p.all(modelOf("m", large)); len(a.Using) != 1 {
		t.Fatalf("%+v", a)
	}
	for n := range uint64(2) {
		p.see(nodeSource(1), n+1, 9, 0)
		p.see(nodeSource(2), n+1, 1, 0)
	}
	if p.blockedNames() != "fe80::1" {
		t.Errorf("blocked %q", p.blockedNames())
	}
}
