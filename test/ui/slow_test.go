// SPDX-License-Identifier: Apache-2.0

package ui

import (
	"net"
	"net/netip"
	"path/filepath"
	"testing"

	"github.com/kerb-edge/kerb/internal/lab/node"
	"github.com/kerb-edge/kerb/internal/lab/node/nodetest"
	"github.com/kerb-edge/kerb/internal/lab/wait"
)

// Of the packets that chains keep without a trace, a box selects the slow ones: each with the time of its modules.
func TestOnlySlow(t *testing.T) {
	b := openBrowser(t)
	n := nodetest.New(t)
	n.Configure("slowPackets: 1us\n")
	n.Start()
	web, db := n.Host("web"), n.Host("db")
	spin, err := filepath.Abs("../../internal/dataplane/testdata/spin") // which takes microseconds
	if err != nil {
		t.Fatal(err)
	}
	late := node.Module("late", spin, "app=web", nil)
	late.Spec.Budget = slow
	n.Apply(node.Service(web, "app=web"), node.Service(db, "app=db"), late, firewall("deny"))
	traffic(t, web, netip.AddrPortFrom(db.Addr4(), 5432)) // dropped
	var c net.Conn
	if err := web.Do(func() (err error) {
		c, err = net.Dial("udp", netip.AddrPortFrom(db.Addr4(), 5353).String())
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	b.open(serveUI(t, n))
	b.shows(".live", "live")
	b.script("location.hash = '#/packets'", nil)
	b.shows("#dropped", "only slow")
	var rows struct{ All, Timed, Late int } // any packet is slow if its CPU was interrupted
	count := func() {
		b.script(`const all = [...document.querySelectorAll('#kept > li')];
			const timed = all.filter((row) => row.querySelector('summary'));
			const late = timed.filter((row) => row.querySelector('a[href="#/modules/late"]')); // others have a rule "related"
			late.forEach((row) => { row.dataset.late = true; });
			return {All: all.length, Timed: timed.length, Late: late.length}`, &rows)
	}
	wait.Until(t, "one is measured", func() bool { // one of 4,096 on a CPU
		for range 4096 {
			_, _ = c.Write([]byte("kerb")) // refused, as nothing listens
		}
		b.click("#dropped button")
		count()
		return rows.Late > 0 && rows.All > rows.Timed
	}, func() any { return rows })
	shows := func(what string, right func() bool) {
		t.Helper()
		b.click("#dropped input")
		wait.Until(t, what, func() bool { count(); return right() }, func() any { return rows })
	}
	shows("only slow ones", func() bool { return rows.Timed > 0 && rows.All == rows.Timed })
	b.click("#kept [data-late] summary")
	b.shows("#kept [data-late] .waterfall", "late")
	shows("all of them again", func() bool { return rows.All > rows.Timed })
}
