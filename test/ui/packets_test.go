// SPDX-License-Identifier: Apache-2.0

package ui

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/kerb-edge/kerb/internal/lab/node"
	"github.com/kerb-edge/kerb/internal/lab/node/nodetest"
)

// Of 300 traced packets, the document contains those near the visible part of the list. Scrolling, arrow keys and
// screen readers reach all of them, and an opened waterfall is shown again with its packet.
func TestManyPackets(t *testing.T) {
	b := openBrowser(t)
	n := nodetest.New(t)
	n.Start()
	web, db := n.Host("web"), n.Host("db")
	counter := node.Module("count", "counter", "*", nil)
	counter.Spec.Budget = slow
	n.Apply(node.Service(web, "app=web"), node.Service(db, "app=db"), counter, firewall("deny"))
	traffic(t, web, netip.AddrPortFrom(db.Addr4(), 5432))
	b.screen(1280, 860, "light")
	b.open(serveUI(t, n))
	b.shows(".live", "live")
	(&page{browser: b, t: t}).view("packets")
	b.enter("#trace input[name=port]", "5432")
	b.click("#trace button")
	const list, length = "#trace ~ .packets", 300
	b.settles("the list is full", list, func(r rows) bool { return r.Length == length })
	b.script("const b = document.querySelector('#trace button'); if (b.innerText.includes('Stop')) b.click()", nil)
	b.shows("#trace button", "Trace")
	first := b.settles("the newest packets", list, func(r rows) bool {
		return r.Length == length && len(r.Shown) > 2 && r.Shown[0] == 0
	})
	b.checkScrolling(list, first)

	row := func(i int) string { return fmt.Sprintf("%s > [data-row='%d'] ", list, i) }
	b.script(fmt.Sprintf("document.querySelector(%q).focus({preventScroll: true})", row(0)+"summary"), nil)
	b.press(enter)
	b.shows(row(0)+".waterfall", "in modules of 2 chains")
	for i := range mostRows + 10 { // past the initial rows
		b.press(arrowDown)
		b.settles("the arrow key leads to the next packet", list, func(r rows) bool { return r.Focus == i+1 })
	}
	at := b.rows(list).Focus
	b.scroll(list, 1)
	b.settles("the focus stays", list, func(r rows) bool { return r.Focus == at && r.atEnd() })
	var there bool
	if b.script(fmt.Sprintf("return document.querySelector(%q) !== null", row(0)), &there); there {
		t.Error("the document has the first packet while the last ones are on the screen")
	}
	b.scroll(list, 0)
	b.shows(row(0)+".waterfall", "in modules of 2 chains")
	if said := b.logEntries(); len(said) > 0 {
		t.Errorf("the browser complains: %v", strings.Join(said, "\n"))
	}
}
