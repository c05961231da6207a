// SPDX-License-Identifier: Apache-2.0

package ui

import (
	"bufio"
	"flag"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/lab/node"
	"github.com/kerb-edge/kerb/internal/lab/node/nodetest"
	"github.com/kerb-edge/kerb/internal/lab/wait"
)

var figures = flag.Bool("figures", false, "write the screenshots in docs/figures")

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(nodetest.Main(m))
}

// serveUI runs `kerb ui` and returns the address that it prints.
func serveUI(t *testing.T, n *nodetest.Node, flags ...string) string {
	t.Helper()
	url, _ := startUI(t, n, flags...)
	return url
}

// startUI runs `kerb ui` and also returns its PID.
func startUI(t *testing.T, n *nodetest.Node, flags ...string) (url string, pid int) {
	t.Helper()
	cmd := exec.Command(nodetest.Kerb, append([]string{"ui", "--socket", n.Socket()}, flags...)...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		if err := cmd.Wait(); err != nil {
			t.Errorf("kerb ui ended with %v", err)
		}
	})
	url, err = bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(url), cmd.Process.Pid
}

// traffic sends datagrams from one service to a port of another, at about 400 per second, until the test ends.
func traffic(t *testing.T, from *netlab.Host, to netip.AddrPort) {
	t.Helper()
	keepSending(t, from.Do, to, make([]byte, 200), 8, 20*time.Millisecond)
}

// keepSending periodically sends some datagrams until the test ends; in runs a function in the sender's namespace.
func keepSending(t *testing.T, in func(func() error) error, to netip.AddrPort, payload []byte, some int,
	period time.Duration) {
	t.Helper()
	var c net.Conn
	if err := in(func() (err error) {
		c, err = net.Dial("udp", to.String())
		return err
	}); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() { close(done) })
	go func() {
		defer c.Close()
		tick := time.NewTicker(period)
		defer tick.Stop()
		for {
			for range some {
				_, _ = c.Write(payload)
			}
			select {
			case <-done:
				return
			case <-tick.C:
			}
		}
	}()
}

// answer makes a service echo datagrams to a port.
func answer(t *testing.T, at *netlab.Host, port uint16) {
	t.Helper()
	var c net.PacketConn
	if err := at.Do(func() (err error) {
		c, err = net.ListenPacket("udp", netip.AddrPortFrom(at.Addr4(), port).String())
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	go func() {
		data := make([]byte, 2048)
		for {
			n, from, err := c.ReadFrom(data)
			if err != nil {
				return
			}
			_, _ = c.WriteTo(data[:n], from)
		}
	}()
}

// slow is a budget for busy machines: this is not a test of budgets.
var slow = v1.Budget{Latency: "1ms"}

func firewall(action string) v1.Module {
	m := node.Module("fw", "firewall", "app in (web,api,db)", map[string]any{"rules": []any{
		map[string]any{"action": "allow", "protocol": "udp", "dstPort": 5353},
		map[string]any{"action": action, "direction": "ingress", "protocol": "udp", "dstPort": 5432},
		map[string]any{"action": "allow", "direction": "egress"}}})
	m.Spec.Budget = slow
	return m
}

// An operator opens the page, sees traffic and problems, reverts the change that caused one, and loses nothing when the
// agent is killed.
func TestPage(t *testing.T) {
	b := openBrowser(t)
	n := nodetest.New(t)
	n.Start()
	web, api, db := n.Host("web"), n.Host("api"), n.Host("db")
	n.Apply(node.Service(web, "app=web"), node.Service(api, "app=api"), node.Service(db, "app=db"))
	counter, proxy := node.Module("count", "counter", "*", nil), node.Module("px", "proxy", "app=web", nil)
	counter.Spec.Budget, proxy.Spec.Budget = slow, slow
	virtual := netip.MustParseAddr("10.30.0.9")
	n.Apply(firewall("allow"), counter, proxy,
		v1.VirtualService{TypeMeta: v1.TypeMeta{APIVersion: v1.APIVersion, Kind: v1.KindVirtualService},
			Metadata: v1.ObjectMeta{Name: "store"}, Spec: v1.VirtualServiceSpec{
				Addresses: []v1.VirtualAddress{{Address: virtual.String()}},
				Instances: []v1.VirtualInstance{{Name: "db-0", Service: "db"},
					{Name: "db-1", Addresses: []string{"10.30.9.9"}, Draining: true}}}})
	answer(t, db, 5432)
	answer(t, api, 5353)
	traffic(t, web, netip.AddrPortFrom(virtual, 5432))
	traffic(t, api, netip.AddrPortFrom(db.Addr4(), 5432))
	traffic(t, web, netip.AddrPortFrom(api.Addr4(), 5353))

	b.screen(1280, 860, "light")
	b.open(serveUI(t, n, "--write"))
	b.shows("#verdict", "Everything works")
	b.shows(".live", "live")
	p := &page{browser: b, t: t}
	p.shot("ui-services-light", "services")
	b.shows(".services > li:nth-child(3) .pipeline", "px", "fw", "count", "proxy", "/s")
	swapped(n, b, counter)
	drops(n, b)
	p.shot("ui-health-light", "health")
	packets(b, db)
	p.shot("ui-packets-light", "")
	b.open(strings.Split(p.url(), "#")[0] + "#/virtual")
	b.shows("main", "store", "10.30.0.9", "db-0", "takes connections", "draining", "Sessions")
	for view, words := range map[string][]string{"deadlines": {"No module has deadlines"}, "models": {"No models"},
		"packages": {"firewall", "builtin", "fw"}, "modules/fw": {"Conditions", "policy", "tc-egress"},
	} {
		p.view(view)
		b.shows("main", words...)
	}
	p.dark(n)
	reverted(b)
	killed(n, b)
	keyboard(b)
	if said := b.logEntries(); len(said) > 0 {
		t.Errorf("the browser complains: %v", said)
	}
}

// page takes screenshots of views.
type page struct {
	*browser
	t *testing.T
}

func (p *page) url() (url string) {
	p.t.Helper()
	p.call(http.MethodGet, "/url", nil, &url)
	return url
}

func (p *page) view(name string) {
	p.t.Helper()
	p.script("location.hash = '#/"+name+"'", nil)
}

// shot shows a view, if it exists, and writes the screenshot to its path in the documents.
func (p *page) shot(name, view string) {
	p.t.Helper()
	if view != "" {
		p.view(view)
		p.shows("h1", strings.ToUpper(view[:1]))
	}
	dir := os.Getenv("KERB_UI_SHOTS")
	if *figures {
		dir = "../../docs/figures"
	}
	if dir == "" {
		return
	}
	p.script("window.scrollTo(0, 0)", nil)
	if view == "health" || view == "services" { // with the history and the times that a user would see
		p.shows("main", "ns")
		wait.Until(p.t, "a history", func() (seen bool) {
			p.script("const l = document.querySelector('.tile .line'); return !l || l.getAttribute('d').length > 300", &seen)
			return seen
		})
	}
	p.screenshot(filepath.Join(dir, name+".png"))
}

// swapped checks that a module that is replaced under traffic continues counting, also on the page.
func swapped(n *nodetest.Node, b *browser, m v1.Module) {
	n.T.Helper()
	m.Spec.Order = v1.Order{Priority: 1}
	n.Apply(m)
	b.script("location.hash = '#/changes'", nil)
	b.shows("tbody tr:first-child", "#3", "update module/count", "done", "uid 0 pid")
	b.script("location.hash = '#/services/web'", nil)
	b.shows(".chain:last-of-type .pipeline", "count", "/s")
}

// drops checks that a rule that breaks a service is on the first page, with the change that caused it.
func drops(n *nodetest.Node, b *browser) {
	n.T.Helper()
	b.script("location.hash = '#/health'", nil)
	n.Apply(firewall("deny"))
	b.shows("#verdict", "packets per second are dropped", "of db, by fw (policy)", "change 4")
	b.shows("main", "Dropping now")
}

// packets checks that a trace shows which module drops, and so does an explained packet that is not sent.
func packets(b *browser, db *netlab.Host) {
	b.t.Helper()
	b.script("location.hash = '#/packets?service=db'", nil)
	b.shows("#kept", "db ingress", ":5432", "fw", "drop (policy)")
	b.click("#trace button")
	b.shows("#trace ~ .packets", "db ingress", ":5432", "drop (policy)", "fw")
	b.captured()
	b.click("#trace button") // stop; on a slow machine it has ended, and starts again
	b.enter("#whatif input", fmt.Sprintf("udp 198.51.100.7:4000 > %s:5432", db.Addr4()))
	b.click("#whatif button")
	b.shows("#explained", "The packet ends here", "drop (policy)", "by fw")
	b.script("const i = document.querySelector('#whatif input'); i.value = ''; i.focus()", nil)
	b.enter("#whatif input", fmt.Sprintf("udp 198.51.100.7:4000 > %s:5353", db.Addr4()))
	b.click("#whatif button")
	b.shows("#explained", "The packet passes")
}

// captured saves the shown packets: Wireshark's dissector shows module and reason.
func (b *browser) captured() {
	b.t.Helper()
	tshark, err := exec.LookPath("tshark")
	if err != nil {
		b.t.Fatal("tshark is not installed, which reads captures: make test-ui")
	}
	b.click("#capture")
	file := filepath.Join(b.downloads, "kerb.pcapng")
	wait.Until(b.t, "the capture is saved", func() bool { _, err := os.Stat(file); return err == nil })
	out, err := exec.Command(tshark, "-r", file, "-T", "fields", "-e", "frame.interface_description", "-e", "udp.dstport",
		"-e", "frame.comment").Output()
	dropped := regexp.MustCompile(
		`service db ingress at tc-egress\t5432\tkerb: .*fw:drop \(policy\) rule=rules\[1\] in \d+ ns`)
	if err != nil || !dropped.Match(out) {
		b.t.Errorf("tshark: %v\n%s", err, out)
	}
}

// dark takes screenshots with the colours that the system prefers, and at the width of a phone.
func (p *page) dark(n *nodetest.Node) {
	p.t.Helper()
	p.screen(1280, 860, "dark")
	p.shot("ui-services-dark", "services")
	p.view("changes/4")
	p.shows(".diff .minus", "action: allow")
	p.shows(".diff .plus", "action: deny")
	p.shot("ui-change-dark", "")
	p.screen(390, 844, "light")
	p.shot("ui-health-phone", "health")
	p.view("services/db")
	p.shows(".pipeline", "fw", "drop")
	for _, view := range []string{"services/db", "health", "changes", "changes/4", "packets", "virtual", "packages"} {
		p.view(view)
		var wide float64
		p.script("return document.documentElement.scrollWidth - innerWidth", &wide)
		if wide > 0 {
			p.t.Errorf("%s is %v pixels wider than a phone", view, wide)
		}
	}
	p.view("services/db")
	p.shot("ui-service-phone", "")
	p.screen(1280, 860, "light")
}

// reverted reverts a change after the page has shown the effect.
func reverted(b *browser) {
	b.t.Helper()
	b.script("location.hash = '#/changes/4'", nil)
	b.click("#dry-run")
	b.shows("#plan", "Nothing has changed yet", "set values")
	b.shows("#plan .plus", "action: allow")
	b.click("#revert")
	b.shows("#result", "Change 4 is reverted", "module/fw updated")
	b.script("location.hash = '#/changes'", nil)
	b.shows("tbody tr:first-child", "#5", "reverts #4")
	b.script("location.hash = '#/health'", nil)
	b.shows("#verdict", "Everything works")
}

// killed checks that the page reports that no agent responds, and what that means, and then shows the current state
// again.
func killed(n *nodetest.Node, b *browser) {
	n.T.Helper()
	n.Kill()
	b.shows(".live", "agent down")
	b.shows("#lost", "The agent does not answer", "Packets still pass the modules")
	n.Start()
	b.shows(".live", "live")
	b.shows("#verdict", "Everything works")
	if lost := b.text("#lost"); lost != "" {
		n.T.Errorf("the page still shows %q", lost)
	}
}

// keyboard opens every view with keys alone; the first tab stop skips the navigation.
func keyboard(b *browser) {
	b.t.Helper()
	b.press("2")
	b.shows("h1", "Services")
	b.script("document.activeElement.blur(); document.querySelector('.skip').focus()", nil)
	b.press(enter)
	var id string
	if b.script("return document.activeElement.id", &id); id != "main" {
		b.t.Errorf("the first stop leads to %q", id)
	}
	b.press(tab, enter)
	b.shows("nav a[aria-current]", "Services")
	b.press("1")
	b.shows("h1", "Health")
}

// Keys of WebDriver.
const tab, enter = "\ue004", "\ue007"
