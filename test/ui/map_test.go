// SPDX-License-Identifier: Apache-2.0

package ui

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/lab/node"
	"github.com/kerb-edge/kerb/internal/lab/node/nodetest"
	"github.com/kerb-edge/kerb/internal/lab/wait"
)

// datagrams sends a number of datagrams of 200 bytes from one service to a port of another. The socket stays open for
// replies, which would otherwise be refused.
func datagrams(t *testing.T, from *netlab.Host, to netip.AddrPort, count int) {
	t.Helper()
	err := from.Do(func() error {
		c, err := net.Dial("udp", to.String())
		if err != nil {
			return err
		}
		t.Cleanup(func() { c.Close() })
		for range count {
			if _, err := c.Write(make([]byte, 200)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// The map shows the communication between services: each packet once, although both services have recorded it, and
// drops with their module. Without a module that records flows it shows what to do.
func TestMap(t *testing.T) {
	b := openBrowser(t)
	n := nodetest.New(t)
	n.Start()
	web, api, db, phone := n.Host("web"), n.Host("api"), n.Host("db"), n.Host("phone") // phone is not a service
	n.Apply(node.Service(web, "app=web"), node.Service(api, "app=api"), node.Service(db, "app=db"), firewall("deny"))
	b.screen(1280, 860, "light")
	b.open(serveUI(t, n))
	p := &page{browser: b, t: t}
	b.shows(".live", "live")
	p.view("map")
	b.shows("main", "There is no map", "no module records flows", "package: flows")
	flows := node.Module("flows", "flows", "*", nil)
	flows.Spec.Budget = slow
	n.Apply(flows)
	wait.Until(t, "the module answers", func() bool { return !strings.Contains(b.text("main"), "There is no map") })
	answer(t, api, 5353)
	datagrams(t, web, netip.AddrPortFrom(api.Addr4(), 5353), 50)
	datagrams(t, web, netip.AddrPortFrom(db.Addr4(), 5432), 30)
	datagrams(t, phone, netip.AddrPortFrom(api.Addr4(), 5353), 10)
	b.shows("tbody", "web\tapi\tudp/5353\t50\t11.8 KiB\t50\t11.8 KiB",
		"web\tdb\tudp/5432\t30\t7.1 KiB\t0\t0 B\t30 by fw (policy)",
		phone.Addr4().String()+"\tapi\tudp/5353\t10\t2.4 KiB\t10\t2.4 KiB")
	b.drawn("text", "web", "api", "db", phone.Addr4().String())
	b.drawn("path.bad", "web to db: 7.1 KiB, 30 packets dropped")
	p.shot("ui-map-light", "map")
	b.byKeys()
	b.click("main input[type=checkbox]")
	b.shows("h2", "1 edge")
	b.shows("tbody", "web\tdb")
	p.screen(390, 844, "light")
	var wide float64
	if p.script("return document.documentElement.scrollWidth - innerWidth", &wide); wide > 0 {
		t.Errorf("the map is %v pixels wider than a phone", wide)
	}
	if said := b.logEntries(); len(said) > 0 {
		t.Errorf("the browser complains: %v", said)
	}
}

// drawn waits until elements of the drawing, which have no innerText, contain words.
func (b *browser) drawn(selector string, words ...string) {
	b.t.Helper()
	var text string
	for _, w := range words {
		wait.Until(b.t, w+" in "+selector, func() bool {
			b.script(fmt.Sprintf("return [...document.querySelectorAll('.map %s')].map(e => e.textContent).join('\\n')",
				selector), &text)
			return strings.Contains(text, w)
		}, func() any { return text })
	}
}

// byKeys checks that a key opens the map, and that a service in it is reached by Tab, named for screen readers, and
// opened by Enter.
func (b *browser) byKeys() {
	b.t.Helper()
	b.press("1")
	b.shows("h1", "Health")
	b.press("3")
	b.shows("h1", "Map")
	b.drawn("text", "web")
	b.script("document.querySelector('main input').focus()", nil)
	var name string
	for range 3 {
		b.press(tab)
		if b.script("return document.activeElement.getAttribute('aria-label')", &name); name == "db, service" {
			break
		}
	}
	if name != "db, service" {
		b.t.Errorf("the focus is on %q", name)
	}
	b.drawn("path.dim", "web to api")
	b.drawn("path.bad:not(.dim)", "web to db")
	b.press(enter)
	b.shows("h1", "db")
	b.script("location.hash = '#/map'", nil)
	b.shows("h1", "Map")
	b.shows("tbody", "web")
}
