// SPDX-License-Identifier: Apache-2.0

package ui

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/kerb-edge/kerb/internal/lab/node"
	"github.com/kerb-edge/kerb/internal/lab/node/nodetest"
)

// filling is the time until the history has its full size: samples of each second, of five minutes.
const filling = 6 * time.Minute

// held is memory in KiB, and elements of the document.
type held struct{ agent, page, heap, browser, elements int64 }

func (h held) least(o held) held {
	return held{min(h.agent, o.agent), min(h.page, o.page), min(h.heap, o.heap), min(h.browser, o.browser),
		min(h.elements, o.elements)}
}

// A page that is open for KERB_PAGE_OPEN=1h, on a node with traffic, history and 100 services, grows neither the agent
// nor the process that serves it, nor the page itself. The minima of the first and of the last sixth of the time are
// compared, to ignore garbage.
func TestGrowth(t *testing.T) {
	length, err := time.ParseDuration(os.Getenv("KERB_PAGE_OPEN"))
	if err != nil {
		t.Skip("make page-growth measures")
	}
	n := nodetest.New(t)
	n.Configure("history: {}\n")
	n.Start()
	addHundredServices(t, n)
	b := openBrowser(t)
	b.screen(1280, 860, "light")
	address, page := startUI(t, n)
	b.open(address)
	b.shows(".live", "live")
	holds := func() held {
		b.devtools("HeapProfiler.collectGarbage", map[string]any{})
		var heap struct{ UsedSize float64 }
		b.ask("Runtime.getHeapUsage", map[string]any{}, &heap)
		now := held{agent: resident(t, n.PID()), page: resident(t, page), heap: int64(heap.UsedSize) / 1024,
			browser: residentOf(t, b.pid)}
		b.script("return document.querySelectorAll('*').length", &now.elements)
		return now
	}
	time.Sleep(filling) // until the history has its full size
	sixth := length / 6
	var least []held // of each sixth
	for began, at := time.Now(), time.Duration(0); at < length; at = time.Since(began) {
		now := holds()
		if i := int(at / sixth); i == len(least) {
			least = append(least, now)
			fmt.Printf("after %v: %+v (KiB)\n", at.Round(time.Minute), now)
		} else {
			least[i] = least[i].least(now)
		}
		time.Sleep(sixth / 60) // sampling interval
	}
	first, last := least[0], least[len(least)-1]
	fmt.Printf("the first sixth: %+v\nthe last sixth:  %+v (KiB)\n", first, last)
	for _, f := range []struct {
		what        string
		first, last int64
		goal        float64
	}{{"agent", first.agent, last.agent, 1}, {"process of the page", first.page, last.page, 1},
		// its graphs show an hour, whose samples arrive in the meantime
		{"page in the browser", first.heap, last.heap, 8}, {"whole browser", first.browser, last.browser, 0}} {
		figure(t, fmt.Sprintf("growth of the %s in %v", f.what, length), float64(f.last-f.first)/1024, "MiB", f.goal)
	}
	figure(t, "elements more", float64(last.elements-first.elements), "", 20)
}

// residentOf returns the memory of a process and its descendants in KiB. Shared pages count several times.
func residentOf(t *testing.T, pid int) (sum int64) {
	t.Helper()
	all, err := node.Descendants(pid)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range append(all, pid) {
		sum += resident(t, p)
	}
	return sum
}
