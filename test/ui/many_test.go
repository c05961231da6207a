// SPDX-License-Identifier: Apache-2.0

package ui

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/lab/node"
	"github.com/kerb-edge/kerb/internal/lab/node/nodetest"
	"github.com/kerb-edge/kerb/internal/lab/wait"
)

const (
	manyServices = 1000
	mostRows     = 60 // of a list in the document, on any screen of these tests
)

// newLargeNode returns a node with 1,000 services, all with a counter.
func newLargeNode(t *testing.T) *nodetest.Node {
	t.Helper()
	n := nodetest.New(t)
	n.Start()
	hosts, err := n.Lab.Hosts(manyServices, netlab.HostOptions{})
	if err != nil {
		t.Fatal(err)
	}
	counter := node.Module("count", "counter", "*", nil)
	counter.Spec.Budget = slow
	resources := []any{counter}
	for _, h := range hosts {
		resources = append(resources, node.Service(h, "app=web"))
	}
	n.Apply(resources...)
	return n
}

// rows are the items of a list in the document, and its attributes for screen readers.
type rows struct {
	Indexes []int // from 0
	Shown   []int // those that are at least partly visible
	Length  int   // of the list, for screen readers
	Focus   int   // the focused row, or -1
	Height  float64
}

func (r rows) atEnd() bool { return len(r.Shown) > 0 && r.Shown[len(r.Shown)-1] == r.Length-1 }

func (b *browser) rows(list string) (r rows) {
	b.t.Helper()
	b.script(fmt.Sprintf(`
		const list = document.querySelector(%q), all = list ? [...list.querySelectorAll('[data-row]')] : [];
		const index = (e) => Number(e.ariaPosInSet ?? e.ariaRowIndex - 1) - 1;
		const own = list && getComputedStyle(list).overflowY === 'auto', page = own ? list : document.documentElement;
		const [top, bottom] = own ? [list.getBoundingClientRect().top, list.getBoundingClientRect().bottom] : [0, innerHeight];
		const seen = (e) => { const box = e.getBoundingClientRect(); return box.bottom > top && box.top < bottom; };
		const focus = all.find((e) => e.contains(document.activeElement));
		return {Indexes: all.map(index), Shown: all.filter(seen).map(index), Focus: focus ? index(focus) : -1,
			Length: Number(all[0]?.ariaSetSize ?? list?.closest('table')?.ariaRowCount - 1) || 0,
			Height: page.scrollHeight}`, list), &r)
	return r
}

// settles waits until right accepts the rows of a list, and requires that there are few at any time.
func (b *browser) settles(what, list string, right func(rows) bool) (r rows) {
	b.t.Helper()
	wait.Until(b.t, what, func() bool {
		r = b.rows(list)
		if len(r.Indexes) > mostRows {
			b.t.Fatalf("%s: the document has %d rows of %s", what, len(r.Indexes), list)
		}
		return right(r)
	}, func() any { return r })
	return r
}

// With 1,000 services, the document has a limited number of rows. Scrolling, keys, search and screen readers reach all
// of them.
func TestManyServices(t *testing.T) {
	b := openBrowser(t)
	n := newLargeNode(t)
	b.screen(1280, 860, "light")
	b.open(serveUI(t, n))
	b.shows(".live", "live")
	p := &page{browser: b, t: t}
	p.view("services")
	b.shows("h1", "Services")
	b.shows("main", "1000 workloads")
	const cards, points = ".services", "main section:last-of-type tbody"
	first := b.settles("the first services", cards, func(r rows) bool { return len(r.Shown) > 2 && r.Shown[0] == 0 })
	b.checkScrolling(cards, first)
	b.checkKeys(cards)
	b.checkSearch(cards)

	p.view("modules/count")
	b.shows("h1", "count")
	const all = 2 * manyServices // each has a chain for either direction
	first = b.settles("the first attach points", points, func(r rows) bool { return r.Length == all })
	b.checkScrolling(points, first)

	p.view("packets") // the service selection has a search, too
	b.enter("#trace input[name=service]", "h999")
	var options int
	wait.Until(t, "few services to choose from", func() bool {
		b.script("return document.querySelectorAll('#any-service option').length", &options)
		return options > 0 && options <= 60
	}, func() any { return options })
	p.view("health")
	b.shows("#verdict", "Everything works", "on 1000 services")
	var elements int
	if b.script("return document.querySelectorAll('*').length", &elements); elements > 1000 {
		t.Errorf("the view Health has %d elements", elements)
	}
	if said := b.logEntries(); len(said) > 0 {
		t.Errorf("the browser complains: %v", said)
	}
}

// checkScrolling scrolls through a list, to its middle, end and beginning: rows are visible at each position, in their
// order, and the length of the list does not change by more than the differences in height of rows.
func (b *browser) checkScrolling(list string, first rows) {
	b.t.Helper()
	for _, to := range []float64{0.5, 1, 0.25, 0} {
		b.scroll(list, to)
		r := b.settles(fmt.Sprintf("scroll to %g", to), list, func(r rows) bool {
			share := 0.0
			if len(r.Shown) > 0 {
				share = float64(r.Shown[0]) / float64(r.Length)
			}
			return len(r.Shown) > 1 && r.Shown[len(r.Shown)-1]-r.Shown[0] == len(r.Shown)-1 &&
				share > to-0.05 && share < to+0.05 && (to != 1 || r.atEnd())
		})
		if r.Length != first.Length || r.Height < 0.7*first.Height || r.Height > 1.4*first.Height {
			b.t.Errorf("%s, scrolled to %g: %+v; at first %+v", list, to, r, first)
		}
	}
}

// scroll scrolls a list, or the page that contains it, to a fraction of its length.
func (b *browser) scroll(list string, to float64) {
	b.t.Helper()
	b.script(fmt.Sprintf(`const list = document.querySelector(%q), own = getComputedStyle(list).overflowY === 'auto';
		const of = own ? list : document.documentElement;
		of.scrollTo(0, %g * (of.scrollHeight - of.clientHeight))`, list, to), nil)
}

// checkKeys checks that Tab moves beyond the initial rows, that the focused row stays in the document while others are
// visible, and that Enter opens it.
func (b *browser) checkKeys(list string) {
	b.t.Helper()
	b.script(fmt.Sprintf("document.querySelector('%s [data-row] h2 a').focus({preventScroll: true})", list), nil)
	steps := 0
	for last := -1; last < mostRows+10; steps++ { // past the initial rows
		r := b.settles("the focus moves", list, func(r rows) bool { return r.Focus >= max(0, last) })
		if r.Focus > last+1 {
			b.t.Fatalf("Tab has left out rows between %d and %d", last, r.Focus)
		}
		last = r.Focus
		b.press(tab)
		if steps > 20*mostRows {
			b.t.Fatalf("Tab stays at %+v", r)
		}
	}
	at := b.rows(list).Focus
	b.scroll(list, 1)
	b.settles("the focus stays", list, func(r rows) bool { return r.Focus == at && r.atEnd() })
	b.script("document.activeElement.closest('[data-row]').querySelector('h2 a').focus()", nil)
	name := b.text(list + " [data-row]:focus-within h2 a")
	b.press(enter)
	b.shows("h1", name)
	b.script("history.back()", nil)
	b.shows("h1", "Services")
}

// checkSearch checks that a key focuses the search, which finds services that are not in the document, and that the URL
// restores it.
func (b *browser) checkSearch(list string) {
	b.t.Helper()
	b.settles("rows", list, func(r rows) bool { return r.Length == manyServices })
	if strings.Contains(b.text(list), "h777") {
		b.t.Error("the document has service h777 already")
	}
	b.press("/")
	b.press(strings.Split("h777", "")...)
	found := func() {
		b.t.Helper()
		r := b.settles("the service is found", list, func(r rows) bool { return r.Length == 1 })
		if text := b.text(list + " h2"); len(r.Indexes) != 1 || !strings.Contains(text, "h777") {
			b.t.Errorf("h777 was searched: %+v %q", r, text)
		}
		b.shows(".search [role=status]", "1 of 1,000")
	}
	found()
	b.call("POST", "/refresh", map[string]any{}, nil)
	found()
	b.script("location.hash = '#/services'", nil)
	b.settles("all again", list, func(r rows) bool { return r.Length == manyServices })
	b.script("location.hash = '#/services?search=no+such'", nil)
	b.shows("main", "No service has all of these words")
}
