// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os"
	"strconv"
	"strings"
	"testing"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
)

// upgrades is how many there are in TestUpgradeUnderLoad; each fourth fails.
func upgrades(t *testing.T) int {
	t.Helper()
	text := os.Getenv("KERB_UPGRADES")
	if text == "" {
		return 12
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("KERB_UPGRADES: %v", err)
	}
	return n
}

// A module is upgraded to and fro under load; versions that are not healthy are taken back by themselves. No packet is lost
// or goes unprocessed, and the modules beside it keep their maps and what is in them.
func TestUpgradeUnderLoad(t *testing.T) {
	n := newRunningNode(t)
	versions := []string{"0.1.0", "0.2.0"}
	dirs := []string{n.controlled("0.1.0"), n.controlled("0.2.0")}
	failing := n.controlled("0.3.0")
	n.apply(mode(dirs[0], "", 1), counter(0), firewall(0))
	counts := n.mapID("traffic", "counts")
	udp := startStream(t, n.db, n.web)
	now, failed, last := 0, 0, uint64(0)
	for i := range upgrades(t) {
		if i%4 == 3 {
			failed++
			n.refused(n.tryApply(mode(failing, []string{"sick", "crash"}[failed%2], 3)), 5, "version 0.3.0 was rolled back to "+versions[now])
		} else {
			now = 1 - now
			n.apply(mode(dirs[now], "", now+1))
		}
		m := get[v1.Module](n, "module", "bad")
		if m.Status.Package.Version != versions[now] || m.Spec.Package != dirs[now] {
			t.Fatalf("after upgrade %d: version %s, want %s", i, m.Status.Package.Version, versions[now])
		}
		if c := n.condition("bad"); c.Status != "True" || strings.Contains(c.Message, "again") {
			t.Errorf("after upgrade %d: %+v", i, c)
		}
		if got := n.query("keep")["kept"]; got != "done" {
			t.Errorf("after upgrade %d the state directory: %s", i, got)
		}
		count := n.counted("db", "egress", "udp")
		if count <= last {
			t.Errorf("after upgrade %d the counter went from %d to %d", i, last, count)
		}
		last = count
	}
	udp.finish(1, 2, 3)
	if id := n.mapID("traffic", "counts"); id != counts {
		t.Errorf("map counts was %d and is %d", counts, id)
	}
	eventually(t, "old versions end", func() bool { return len(n.children()) == 2 })
	n.tidy()
	t.Logf("%d upgrades, %d of them rolled back", upgrades(t), failed)
}
