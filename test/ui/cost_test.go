// SPDX-License-Identifier: Apache-2.0

package ui

import (
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/kerb-edge/kerb/internal/lab/node"
	"github.com/kerb-edge/kerb/internal/lab/node/nodetest"
)

// What lists, history and page cost the agent and its control planes on a node with 100 services of two modules. The
// page is measured for as long as KERB_PAGE=10m says; the figures are of a machine at rest.
func TestCost(t *testing.T) {
	length, err := time.ParseDuration(os.Getenv("KERB_PAGE"))
	if err != nil {
		t.Skip("KERB_PAGE=10m measures on a machine at rest")
	}
	n := nodetest.New(t)
	n.Start()
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
	measure := func(what string, length time.Duration) {
		t.Helper()
		time.Sleep(5 * time.Second) // what begins with it is over
		before, err := n.CPU()
		began := time.Now()
		for minute := 1; time.Since(began) < length; minute++ {
			time.Sleep(min(time.Minute, length)) // it is measured for so long
			if minute%10 == 1 {
				t.Logf("%s: %d KiB of the agent are resident", what, resident(t, n.PID()))
			}
		}
		used, afterErr := n.CPU()
		if err != nil || afterErr != nil {
			t.Fatal(err, afterErr)
		}
		t.Logf("%s: %.2f%% of a CPU, %d KiB of the agent are resident", what,
			100*(used-before).Seconds()/time.Since(began).Seconds(), resident(t, n.PID()))
	}
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
		t.Logf("GET /v1/%s: %v of CPU time", path, ((used - before) / times).Round(10*time.Microsecond))
	}
	measure("no history, no page", min(length, time.Minute))
	n.Stop()
	n.Configure("history: {}\n")
	n.Start()
	measure("history, no page", min(length, time.Minute))
	b := openBrowser(t)
	b.open(serveUI(t, n))
	b.shows(".live", "live")
	measure("history and a page", length)
}

// resident is the memory of a process in KiB.
func resident(t *testing.T, pid int) int64 {
	t.Helper()
	values, err := node.Kibibytes(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	return values["VmRSS"]
}
