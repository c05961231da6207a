// SPDX-License-Identifier: Apache-2.0

package oakestra

import (
	"bytes"
	"os"
	"runtime"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netns"
)

// When a bridge gets another name, its rules are replaced: those of the old name are removed.
func TestRulesOfABridgeOfAnotherName(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	runtime.LockOSThread() // never unlocked: the thread ends with the test
	ns, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	c, err := nftables.New()
	if err != nil {
		t.Fatal(err)
	}
	policy := nftables.ChainPolicyDrop
	table := c.AddTable(&nftables.Table{Name: "filter", Family: nftables.TableFamilyIPv4})
	chain := c.AddChain(&nftables.Chain{Name: "FORWARD", Table: table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter, Policy: &policy})
	if err := c.Flush(); err != nil {
		t.Fatal(err)
	}
	for _, bridge := range []string{"old0", "new0", "new0"} {
		if err := acceptForwarded(7, bridge, true); err != nil {
			t.Fatal(err)
		}
		rules, err := c.GetRules(table, chain)
		if err != nil || len(rules) != 2 {
			t.Fatalf("%d rules, %v", len(rules), err)
		}
		for _, r := range rules {
			if cmp, ok := r.Exprs[1].(*expr.Cmp); !ok || !bytes.HasPrefix(cmp.Data, []byte(bridge+"\x00")) {
				t.Errorf("with bridge %s: %+v", bridge, r.Exprs[1])
			}
		}
	}
	if err := acceptForwarded(7, "", false); err != nil {
		t.Fatal(err)
	}
	if rules, err := c.GetRules(table, chain); err != nil || len(rules) != 0 {
		t.Errorf("taken back: %d rules, %v", len(rules), err)
	}
}
