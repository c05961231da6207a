// SPDX-License-Identifier: Apache-2.0

package ui

import (
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/lab/node"
	"github.com/kerb-edge/kerb/internal/lab/node/nodetest"
)

// length returns how long each state is measured: KERB_PAGE=10m. Without it the test is skipped, since figures need an
// idle machine.
func length(t *testing.T) time.Duration {
	t.Helper()
	d, err := time.ParseDuration(os.Getenv("KERB_PAGE"))
	if err != nil {
		t.Skip("make page-costs measures, on a machine at rest")
	}
	return d
}

// figure prints a measurement, and fails the test if it exceeds its goal. A goal of 0 is only for comparison.
func figure(t *testing.T, what string, got float64, unit string, goal float64) {
	t.Helper()
	text := fmt.Sprintf("figure: %-58s %8.2f %s", what, got, unit)
	switch {
	case goal == 0:
	case got <= goal:
		text += fmt.Sprintf(" (goal %g)", goal)
	default:
		text += fmt.Sprintf(" (goal %g): missed", goal)
		t.Fail()
	}
	fmt.Println(text)
}

// Costs of lists, history and page for the agent and its control planes, on a node with 100 services of two modules, of
// which one drops, and costs of the page for the browser and the network.
func TestCost(t *testing.T) {
	length := length(t)
	n := nodetest.New(t)
	n.Start()
	addHundredServices(t, n)
	lists(t, n)
	measure := func() float64 {
		t.Helper()
		return percent(t, length, n.CPU)
	}
	off := measure()
	figure(t, "agent, history off, no page", off, "% of a CPU", 0)
	n.Stop()
	n.Configure("history: {}\n")
	n.Start()
	on := measure()
	figure(t, "agent, history on, no page", on, "% of a CPU", 0.1)
	figure(t, "of which the history", max(0, on-off), "% of a CPU", 0)

	b := openBrowser(t)
	b.screen(1280, 860, "light")
	address := serveUI(t, n)
	b.open(address)
	b.shows(".live", "live")
	before, sent := resident(t, n.PID()), b.sent(t, address)
	var of struct{ agent, browser float64 }
	done := make(chan bool)
	go func() {
		defer close(done)
		of.browser = percent(t, length, func() (time.Duration, error) { return cpuOf(b.pid) })
	}()
	began := time.Now()
	of.agent = measure()
	<-done
	seconds := time.Since(began).Seconds()
	figure(t, "agent, history on, page open", of.agent, "% of a CPU", 0.5)
	figure(t, "browser, view Health", of.browser, "% of a CPU", 5)
	figure(t, "to the browser, view Health", float64(b.sent(t, address)-sent)/1e3/seconds, "KB/s", 40)
	figure(t, "growth of the agent with the page open", float64(resident(t, n.PID())-before)/1024, "MiB", 1)
	b.script("location.hash = '#/services'", nil)
	b.shows("h1", "Services")
	sent, began = b.sent(t, address), time.Now()
	figure(t, "browser, view Services", percent(t, length, func() (time.Duration, error) { return cpuOf(b.pid) }),
		"% of a CPU", 5)
	seconds = time.Since(began).Seconds()
	figure(t, "to the browser, view Services", float64(b.sent(t, address)-sent)/1e3/seconds, "KB/s", 40)
	b.observe()
	figure(t, "first paint", b.opened("first-contentful-paint"), "ms", 150)
}

// addHundredServices adds 100 services of two modules to a node, of which one drops packets to one of them.
func addHundredServices(t *testing.T, n *nodetest.Node) {
	t.Helper()
	counter, fw := node.Module("count", "counter", "*", nil), firewall("deny")
	counter.Spec.Budget = slow
	resources := []any{counter, fw}
	web, db := n.Host("web"), n.Host("db")
	resources = append(resources, node.Service(web, "app=web"), node.Service(db, "app=db"))
	for i := range 98 {
		resources = append(resources, node.Service(n.Host(fmt.Sprint("s", i)), "app=api"))
	}
	n.Apply(resources...)
	traffic(t, web, netip.AddrPortFrom(db.Addr4(), 5432))
}

// Time until the page shows a node with 1,000 services.
func TestCostOfManyServices(t *testing.T) {
	length(t)
	n := newLargeNode(t)
	b := openBrowser(t)
	b.screen(1280, 860, "light")
	b.open(serveUI(t, n))
	b.shows(".live", "live")
	b.script("location.hash = '#/services'", nil)
	b.shows("h1", "Services")
	b.observe()
	figure(t, "1,000 services open", b.opened("services"), "ms", 1000)
}

// lists measures the lists of the API.
func lists(t *testing.T, n *nodetest.Node) {
	t.Helper()
	for _, path := range []string{"counts", "status", "chains", "services", "modules"} {
		const times = 50
		before, err := n.CPU()
		for range times {
			n.Must(http.MethodGet, "/v1/"+path, nil, new(any))
		}
		used, afterErr := n.CPU()
		if err != nil || afterErr != nil {
			t.Fatal(err, afterErr)
		}
		figure(t, "agent, GET /v1/"+path, float64(((used-before)/times).Microseconds())/1e3, "ms of CPU time", 0)
	}
}

// percent returns the CPU usage during a time.
func percent(t *testing.T, length time.Duration, cpu func() (time.Duration, error)) float64 {
	t.Helper()
	time.Sleep(5 * time.Second) // until the costs of the start are over
	before, err := cpu()
	began := time.Now()
	time.Sleep(length) // the measurement
	used, afterErr := cpu()
	if err != nil || afterErr != nil {
		t.Error(err, afterErr)
	}
	return 100 * (used - before).Seconds() / time.Since(began).Seconds()
}

// cpuOf returns the CPU time of a process and its descendants.
func cpuOf(pid int) (sum time.Duration, err error) {
	all, err := node.Descendants(pid)
	if err != nil {
		return 0, err
	}
	for _, p := range append(all, pid) {
		used, err := node.CPUOf(p)
		if err != nil {
			return 0, err
		}
		sum += used
	}
	return sum, nil
}

// sent returns the bytes that the page's server has sent on the open connections: those of a page stay open.
func (b *browser) sent(t *testing.T, address string) (sum int64) {
	t.Helper()
	at, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(at.Port())
	if err != nil {
		t.Fatal(err)
	}
	all, err := netlink.SocketDiagTCPInfo(unix.AF_INET)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		if int(s.InetDiagMsg.ID.SourcePort) == port && s.TCPInfo != nil {
			sum += int64(s.TCPInfo.Bytes_acked)
		}
	}
	return sum
}

// observe makes the page record when the first services are visible, from its next navigation on.
func (b *browser) observe() {
	b.t.Helper()
	b.devtools("Page.addScriptToEvaluateOnNewDocument", map[string]any{"source": `
		new MutationObserver((_, o) => {
			if (!document.querySelector('.services [data-row]')) return;
			o.disconnect();
			requestAnimationFrame(() => setTimeout(() => { window.opened = performance.now(); }));
		}).observe(document, { childList: true, subtree: true })`})
}

// opened opens the page several times, and returns the median time to an event in milliseconds.
func (b *browser) opened(event string) float64 {
	b.t.Helper()
	script := "return window.opened ?? 0"
	if event != "services" {
		script = fmt.Sprintf("return performance.getEntriesByName(%q)[0]?.startTime ?? 0", event)
	}
	var all []float64
	for range 7 {
		b.call(http.MethodPost, "/refresh", map[string]any{}, nil)
		var at float64
		for limit := time.Now().Add(nodetest.Patience); at == 0; time.Sleep(20 * time.Millisecond) {
			if b.script(script, &at); time.Now().After(limit) {
				b.t.Fatalf("the page has not come to %s", event)
			}
		}
		all = append(all, at)
	}
	fmt.Println("times to", event, "in ms:", strings.Trim(fmt.Sprintf("%.0f", all), "[]"))
	slices.Sort(all)
	return all[len(all)/2]
}

// resident returns the memory of a process in KiB.
func resident(t *testing.T, pid int) int64 {
	t.Helper()
	values, err := node.Kibibytes(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	return values["VmRSS"]
}
