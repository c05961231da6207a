// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"cmp"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
)

// The agent of an earlier build is replaced by this one under traffic: its state and its pinned programs are adopted,
// no packet is lost or counted twice, and the modules can be changed afterwards, including a package that the earlier
// build compiled. make test-upgrade builds the earlier one, in its tree.
func TestUpgradeOfBuild(t *testing.T) {
	earlier := os.Getenv("KERB_EARLIER")
	if earlier == "" {
		t.Skip("no earlier build: make test-upgrade FROM=<commit>")
	}
	n := newNode(t)
	this := n.Binary
	n.Binary = filepath.Join(earlier, "kerb")
	n.stampDir = copyPackageIn(t, filepath.Join(earlier, "internal/dataplane/testdata/stamp"), withGeneration)
	n.start()
	n.apply(n.both())
	n.apply(counter(0), firewall(0), n.stamp(1))
	before := n.orders()
	udp, web := startStream(t, n.db, n.web), startRequests(t, n.db, n.web)
	n.Stop()

	n.Binary = this
	n.start()
	n.settled(map[string]int{"traffic": 4, "fw": 2, "stamp": 2})
	for _, name := range []string{"traffic", "fw", "stamp"} {
		n.Eventually(name+" is ready", func() bool { return n.isReady(name) })
	}
	n.reordered(before, n.orders())
	for round := 1; round <= 3; round++ {
		n.apply(counter(round), firewall(round), n.stamp(1+round))
	}
	udp.finish(1, 2, 3, 4)
	web.finish()
	var arrived uint64
	for _, times := range udp.got {
		arrived += uint64(times)
	}
	if got := n.counted("db", "egress", "udp"); got != arrived {
		t.Errorf("the counter has %d UDP packets from db, %d were sent", got, arrived)
	}
	n.checkPins()
}

func (n *node) isReady(module string) bool {
	return slices.ContainsFunc(get[v1.Module](n, "module", module).Status.Conditions, func(c v1.Condition) bool {
		return c.Type == "Ready" && c.Status == "True"
	})
}

// orders returns the modules of each chain in order.
func (n *node) orders() map[string]string {
	n.T.Helper()
	var chains []v1.Chain
	n.Must(http.MethodGet, "/v1/chains", nil, &chains)
	out := map[string]string{}
	for _, c := range chains {
		for _, p := range c.Points {
			out[cmp.Or(p.Service, p.Interface)+" "+c.Direction] = strings.Join(c.Modules, ", ")
		}
	}
	return out
}

// reordered checks that the agent reports the chains whose order its build has changed, and no others.
func (n *node) reordered(before, after map[string]string) {
	n.T.Helper()
	var status v1.NodeStatus
	n.Must(http.MethodGet, "/v1/status", nil, &status)
	at := slices.IndexFunc(status.Conditions, func(c v1.Condition) bool { return c.Type == "ChainOrderKept" })
	text := ""
	if at >= 0 {
		text = status.Conditions[at].Message
	}
	for chain, modules := range after {
		n.T.Logf("%s: %s, before %s", chain, modules, before[chain])
		want := fmt.Sprintf("%s: %s (before: %s)", chain, modules, before[chain])
		if got := strings.Contains(text, want); got != (modules != before[chain]) {
			n.T.Errorf("%q: reported: %v; the condition is %q", want, got, text)
		}
	}
}
