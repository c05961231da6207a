// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
)

// An operator finds the change that broke a service, and its author, and reverts it.
func TestChanges(t *testing.T) {
	n := newRunningNode(t)
	firewall := func(action string) v1.Module {
		return module("fw", "firewall", "*", map[string]any{"rules": []any{map[string]any{"action": action,
			"direction": "ingress", "protocol": "tcp", "dstPort": 80}}})
	}
	n.apply(firewall("allow"))
	n.apply(firewall("deny"))
	n.refused(n.tryApply(firewall("perhaps")), 2)
	var all []v1.ChangeRecord
	err := json.Unmarshal([]byte(n.must("changes", "--of", "module/fw", "-o", "json")), &all)
	if err != nil || len(all) != 3 || all[0].Outcome != v1.OutcomeRefused {
		t.Fatalf("%d changes of the firewall, %v: %+v", len(all), err, all)
	}
	broke := all[1]
	number := strconv.FormatInt(broke.Number, 10)
	if !strings.Contains(broke.By, "uid 0 pid ") || broke.Owner != v1.OwnerUser || broke.Outcome != v1.OutcomeDone {
		t.Errorf("the change is %+v", broke)
	}
	packet := "tcp 198.51.100.7:40000 > " + n.db.Addr4().String() + ":80"
	n.checkExplain(packet, "db", "is dropped by fw (policy)")
	n.expect("changes", nil, number+" ", "update module/fw", "done")
	n.expect("changes", []string{number}, "-- ", "(before)", "-    - action: allow", "+    - action: deny", "set values")
	n.expect("revert", []string{number, "--dry-run"}, "(reverted)", "+    - action: allow", "module/fw updated (dry run)")
	n.checkExplain(packet, "db", "is dropped by fw (policy)")
	n.expect("revert", []string{number}, "module/fw updated\n")
	n.checkExplain(packet, "db", "passes")
	n.expect("changes", []string{"--limit", "1"}, "reverts "+number)
	n.refused(n.kerb("revert", number), 5, "is not as change "+number+" left it", "--force")
	n.refused(n.kerb("revert", "999"), 3, "Change 999 does not exist")
	n.refused(n.kerb("changes", "999"), 3, "Change 999 does not exist")
	n.refused(n.kerb("changes", "last"), 2, "kerb changes lists them")
	n.refused(n.kerb("changes", "--of", "chain/x"), 2, "--of")
	n.refused(n.kerb("changes", "--limit", "0"), 2, "limit")

	// the records survive the agent, and numbers continue
	n.Kill()
	n.start()
	n.must("revert", number, "--force")
	n.expect("changes", nil, "reverts "+number, "create module/fw")
}

// expect checks that the output of a command contains words.
func (n *node) expect(command string, args []string, words ...string) {
	n.T.Helper()
	out := n.must(command, args...)
	for _, w := range words {
		if !strings.Contains(out, w) {
			n.T.Errorf("kerb %s %s lacks %q:\n%s", command, strings.Join(args, " "), w, out)
		}
	}
}
