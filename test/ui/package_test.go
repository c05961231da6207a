// SPDX-License-Identifier: Apache-2.0

package ui

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kerb-edge/kerb/internal/lab/node"
	"github.com/kerb-edge/kerb/internal/lab/node/nodetest"
	"github.com/kerb-edge/kerb/internal/lab/wait"
)

// views are the views in the manifest of TestViewsOfPackage, instead of those that kerb package new writes.
const views = `
queries:
  packets: "packets by port"
  state/all: "what else there is"
views:
  - title: Ports <b>of theirs</b>
    query: packets
    kind: table
    rows: packets
    fields:
      - {field: port, name: Port}
      - {field: packets, name: "<img src=x onerror=alert(1)>"}
      - {field: size.bytes, name: Size, unit: bytes}
  - {title: Their state, query: state/all, kind: values, fields: [{field: slowest, name: Slowest, unit: nanoseconds}, {field: said}]}
  - {title: Their rate, query: state/all, kind: series, fields: [{field: total, name: Packets, rate: true}]}
`

const routes = `
        self.routes = {"/packets": self.packets, "/state/all": self.state}

    def state(self, query):
        return {"slowest": 1500, "said": "<script>alert(2)</script>", "total": sum(self._counts().values())}

    def packets(self, query):
        return {"packets": [{"port": port, "packets": n, "size": {"bytes": 2048}} for port, n in sorted(self._counts().items())]}
`

// A package that is built outside of this repository appears on the page without JavaScript of its own, and its texts
// are not interpreted as HTML.
func TestViewsOfPackage(t *testing.T) {
	b := openBrowser(t)
	n := nodetest.New(t)
	n.Start()
	web, db := n.Host("web"), n.Host("db")
	dir := filepath.Join(t.TempDir(), "theirs")
	kerb := func(args ...string) {
		t.Helper()
		cmd := n.Command(context.Background(), args...)
		cmd.Dir = filepath.Dir(dir)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("kerb %v: %v\n%s", args, err, out)
		}
	}
	kerb("package", "new", "theirs", "--control", "python")
	edit(t, filepath.Join(dir, "kerb.yaml"), func(text string) string {
		before, after, _ := strings.Cut(text, "\nqueries:")
		_, after, _ = strings.Cut(after, "\nconfigSchema:")
		return before + views + "configSchema:" + after
	})
	edit(t, filepath.Join(dir, "control.py"), func(text string) string {
		text = strings.Replace(text, `        self.routes = {"/packets": self.packets}`, routes, 1)
		before, after, _ := strings.Cut(text, "    def packets(self, query):\n        \"\"\"")
		_, after, _ = strings.Cut(after, "    def _counts")
		return before + "    def _counts" + after
	})
	kerb("package", "build", "theirs")
	module := node.Module("extra", dir, "app=db", map[string]any{"ports": []any{9999}})
	module.Spec.Budget = slow
	n.Apply(node.Service(web, "app=web"), node.Service(db, "app=db"), module)
	traffic(t, web, netip.AddrPortFrom(db.Addr4(), 9999))

	b.screen(1280, 860, "light")
	b.open(serveUI(t, n))
	b.shows(".live", "live")
	b.script("location.hash = '#/modules/extra'", nil)
	b.shows("main", "Ports <b>of theirs</b>", "<img src=x onerror=alert(1)>", "9999", "Size", "2 KiB", "Their state",
		"Slowest", "1.5 µs", "<script>alert(2)</script>", "Their rate")
	b.shows(".chart", "Packets", "/s")
	wait.Until(t, "a rate", func() bool {
		var rate string
		b.script("return document.querySelector('.chart figcaption b').innerText", &rate)
		return rate != "0/s"
	})
	var elements int
	b.script("return document.querySelectorAll('main img, main script, main h2 b').length", &elements)
	if elements > 0 {
		t.Errorf("%d elements come from the package", elements)
	}
	(&page{browser: b, t: t}).shot("ui-views-light", "")
	if said := b.logEntries(); len(said) > 0 {
		t.Errorf("the browser complains: %v", said)
	}
}

func edit(t *testing.T, file string, change func(string) string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err == nil {
		err = os.WriteFile(file, []byte(change(string(text))), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}
