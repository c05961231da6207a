// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kerb-edge/kerb/internal/lab/wait"
)

// What is wrong is in one list, and who has caused it is warned at once.
func TestProblems(t *testing.T) {
	n := newNode(t)
	problems := func() string {
		t.Helper()
		s, err := n.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, p := range s.Problems {
			out = append(out, fmt.Sprintf("%s/%s %s: %s", p.Kind, p.Name, p.Reason, p.Message))
		}
		return strings.Join(out, "\n")
	}
	n.apply(t, n.both(), module("count", testPackage(t, "pass"), "app=web", nil))
	wait.Until(t, "a node without problems", func() bool { return problems() == "" })
	typo, part := module("typo", testPackage(t, "pass"), "app=wbe", nil),
		module("part", testPackage(t, "pass"), "app=web", nil)
	part.Spec.Attach.Interfaces = []string{"nope0"}
	warnings := strings.Join(n.apply(t, nil, typo, part).Warnings, "\n")
	for text, want := range map[string][]string{
		warnings: {`typo: its selector "app=wbe" matches no service`, "part: the node has no interface nope0"},
		problems(): {`Module/typo NoAttachPoint: its selector "app=wbe" matches no service`,
			"Module/part NotFound: the node has no interface nope0"},
	} {
		for _, w := range want {
			if !strings.Contains(text, w) {
				t.Errorf("no %q in\n%s", w, text)
			}
		}
	}
	if err := n.db.Remove(); err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "the missing service is a problem", func() bool {
		return strings.Contains(problems(), "Service/db NotFound")
	})
	wait.Until(t, "the cost of a chain is measured", func() bool {
		c, err := n.Chains(t.Context())
		return err == nil && len(c) > 0 && c[0].Cost != nil
	})
}
