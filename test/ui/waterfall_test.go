// SPDX-License-Identifier: Apache-2.0

package ui

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/kerb-edge/kerb/internal/lab/droptest"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/lab/node"
	"github.com/kerb-edge/kerb/internal/lab/node/nodetest"
)

// A traced packet is one row with all chains that it passed. With the keyboard alone, the user gets the time of each
// module: as text, and as bars of the same proportions.
func TestWaterfall(t *testing.T) {
	b := openBrowser(t)
	n := nodetest.New(t)
	n.Start()
	web, db := n.Host("web"), n.Host("db")
	counter, fw := node.Module("count", "counter", "*", nil), firewall("deny")
	counter.Spec.Budget = slow
	n.Apply(node.Service(web, "app=web"), node.Service(db, "app=db"), counter, fw)
	traffic(t, web, netip.AddrPortFrom(db.Addr4(), 5432))
	b.screen(1280, 860, "light")
	b.open(serveUI(t, n))
	b.shows(".live", "live")
	b.script("location.hash = '#/packets'", nil)
	b.enter("#trace input[name=port]", "5432")
	b.click("#trace button")
	const first = "#trace ~ .packets > li:first-child "
	b.shows(first, "web egress", "then db ingress", "drop (policy)")
	// The list is stable after the trace: stop it if it is still running.
	b.script("const b = document.querySelector('#trace button'); if (b.innerText.includes('Stop')) b.click()", nil)
	b.shows("#trace button", "Trace")

	b.script("document.querySelector('"+first+"summary').focus()", nil)
	b.press(arrowDown)
	second := "#trace ~ .packets > li:nth-child(2) "
	var focused bool
	if b.script("return document.activeElement === document.querySelector('"+second+"summary')", &focused); !focused {
		t.Error("the arrow key does not lead to the next packet")
	}
	b.press(enter)
	b.shows(second+".waterfall", "in modules of 2 chains", "web egress", "db ingress", "after web egress",
		"count", "fw", "drop (policy)")
	var rows []struct {
		Module, Time, Scope string
		From, Width         float64
	}
	b.script(fmt.Sprintf(`return [...document.querySelectorAll('%s.waterfall tr:has(rect)')].map(r => {
		const bar = r.querySelector('rect'), line = bar.ownerSVGElement.getBoundingClientRect(), at = bar.getBoundingClientRect();
		return {Module: r.querySelector('th').innerText, Scope: r.querySelector('th').scope, Time: r.querySelector('.num').innerText,
			From: (at.left - line.left) / line.width, Width: at.width / line.width}})`, second), &rows)
	total, from := 0.0, 0.0
	took := make([]float64, len(rows))
	for i, r := range rows {
		took[i] = nanoseconds(t, r.Time)
		total += took[i]
	}
	for i, r := range rows {
		if share := took[i] / total; r.Scope != "row" || took[i] <= 0 || r.Width < share-0.02 || r.Width > share+0.02 ||
			r.From < from-0.02 || r.From > from+0.02 {
			t.Errorf("row %d: %+v; want a share of %.3f from %.3f", i, r, share, from)
		}
		from += took[i] / total
	}
	if len(rows) != 3 { // count and fw at web, and fw at db, which drops
		t.Errorf("%d rows: %+v", len(rows), rows)
	}
	(&page{browser: b, t: t}).shot("ui-waterfall-light", "")
	kernelDrops(t, b, web, netip.AddrPortFrom(db.Addr4(), 5353))
	if said := b.logEntries(); len(said) > 0 {
		t.Errorf("the browser complains: %v", said)
	}
}

// kernelDrops checks a box that adds drops of the kernel rather than of a module, here for a port without a listener.
// Or the page shows why it cannot.
func kernelDrops(t *testing.T, b *browser, from *netlab.Host, to netip.AddrPort) {
	t.Helper()
	traffic(t, from, to)
	b.script("document.querySelector('#trace input[name=port]').value = ''", nil)
	b.enter("#trace input[name=port]", fmt.Sprint(to.Port()))
	b.click("#trace input[name=after]")
	b.click("#trace button")
	if err := droptest.Shown(); err != nil {
		b.shows("#trace ~ [role=alert]", "no drops of the kernel are shown")
	} else {
		b.shows("#trace ~ .packets", "db ingress", "then kernel", "dropped (NO_SOCKET)", "udp")
	}
}

const arrowDown = "\ue015"

// nanoseconds parses a time as the page shows it.
func nanoseconds(t *testing.T, text string) float64 {
	t.Helper()
	var n float64
	var unit string
	_, err := fmt.Sscan(text, &n, &unit)
	factor, known := map[string]float64{"ns": 1, "µs": 1e3, "ms": 1e6}[unit]
	if err != nil || !known {
		t.Fatalf("a time is shown as %q", text)
	}
	return n * factor
}
