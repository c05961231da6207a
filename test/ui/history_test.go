// SPDX-License-Identifier: Apache-2.0

package ui

import (
	"net/netip"
	"testing"

	"github.com/kerb-edge/kerb/internal/lab/node"
	"github.com/kerb-edge/kerb/internal/lab/node/nodetest"
	"github.com/kerb-edge/kerb/internal/lab/wait"
)

// With the history disabled the page describes how to enable it; with it enabled, views have graphs of the last hour
// with the changes in that time.
func TestLastHour(t *testing.T) {
	b := openBrowser(t)
	n := nodetest.New(t)
	n.Start()
	web, db := n.Host("web"), n.Host("db")
	counter := node.Module("count", "counter", "*", nil)
	counter.Spec.Budget = slow
	n.Apply(node.Service(web, "app=web"), node.Service(db, "app=db"), counter)
	b.screen(1280, 860, "light")
	b.open(serveUI(t, n))
	b.shows("main", "Packets of services, last hour", "The history is off", "history: {}")
	p := &page{browser: b, t: t}
	p.view("services")
	b.shows("main", "No graphs of the last hour: the history is off")
	n.Kill()
	b.shows(".live", "agent down")
	n.Configure("history: {}\n")
	n.Start()
	b.shows(".live", "live")
	traffic(t, web, netip.AddrPortFrom(db.Addr4(), 5432))
	seen := func(what, script string) {
		t.Helper()
		wait.Until(t, what, func() (is bool) { b.script("return "+script, &is); return is },
			func() any { return b.text("main") })
	}
	seen("the last hour of db", "document.querySelectorAll('.hour .line[d*=M]').length === 2")
	seen("the change that made it", "document.querySelectorAll('.hour .mark[d^=M]').length === 2")
	for _, view := range []string{"health", "services/db", "modules/count"} {
		p.view(view)
		b.shows(".marks", "#1")
		seen("a graph in "+view, "document.querySelector('.chart:has(+ .marks) canvas') !== null")
		b.shows(".chart:has(+ .marks)", "packets", "/s")
	}
	p.view("changes")
	b.shows("main", "Events", "agent", "Agent Started, 2 times")
	b.screen(390, 844, "light")
	for _, view := range []string{"health", "services", "changes"} {
		p.view(view)
		var wide float64
		b.script("return document.documentElement.scrollWidth - innerWidth", &wide)
		if wide > 0 {
			t.Errorf("%s is %v pixels wider than a phone", view, wide)
		}
	}
	if said := b.logEntries(); len(said) > 0 {
		t.Errorf("the browser complains: %v", said)
	}
}
