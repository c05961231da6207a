// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// The log contains which client changed what, with the result; dry runs and unchanged resources are not changes.
func TestChangesAreLogged(t *testing.T) {
	n := newRunningNode(t)
	caller := fmt.Sprintf(`by="uid %d pid `, os.Geteuid())
	logged := func(parts ...string) bool {
		for line := range strings.Lines(n.Log()) {
			all := strings.Contains(line, caller)
			for _, part := range parts {
				all = all && strings.Contains(line, part)
			}
			if all {
				return true
			}
		}
		return false
	}
	n.must("service", "add", "odd", "--netns", n.web.Path())
	if !logged("msg=change", "action=create", "kind=Service", "name=odd", "outcome=done") {
		t.Errorf("no line for a new service in\n%s", n.Log())
	}
	n.must("service", "delete", "--dry-run", "odd")
	if logged("action=delete") {
		t.Errorf("a dry run is logged as a change in\n%s", n.Log())
	}
	n.must("service", "delete", "odd")
	if !logged("msg=change", "action=delete", "kind=Service", "name=odd") {
		t.Errorf("no line for a deleted service in\n%s", n.Log())
	}
	n.refused(n.kerb("service", "add", "odd", "--netns", "/run/netns/there-is-none"), 2, "no such network namespace")
	if !logged("level=WARN", "change refused", "name=odd", "no such network namespace") {
		t.Errorf("no line for a refused change in\n%s", n.Log())
	}
}
