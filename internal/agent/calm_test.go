// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"slices"
	"strings"
	"testing"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/lab/wait"
	"github.com/kerb-edge/kerb/internal/resource"
)

// Chains of a service that may come are linked before it comes: it attaches what is there. They stay when it goes, and
// go when their modules change.
func TestChainsAreReady(t *testing.T) {
	n := newNode(t)
	n.apply(t, nil, module("pass", testPackage(t, "pass"), "app=web", nil))
	ready := func(not ...uint32) (programs []uint32) {
		wait.Until(t, "chains are linked that run nowhere", func() bool {
			chains, err := n.Chains(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			programs = nil
			for _, c := range chains {
				if len(c.Points) == 0 && c.Ready && !slices.Contains(not, c.Program) {
					programs = append(programs, c.Program)
				}
			}
			return len(programs) == 2 && len(chains) == 2
		})
		slices.Sort(programs)
		return programs
	}
	before := ready()
	result := n.apply(t, []v1.Service{serviceOf("web", n.web)})
	if slices.ContainsFunc(result.Steps, func(s string) bool { return !strings.HasPrefix(s, "attach ") }) {
		t.Errorf("the service takes the steps %q", result.Steps)
	}
	if got := n.chainsOn(t, n.web); len(got) != 2 {
		t.Errorf("the service runs %v", got)
	}
	n.remove(t, resource.Ref{Kind: v1.KindService, Name: "web"})
	if after := ready(); !slices.Equal(before, after) {
		t.Errorf("programs %v without the service, %v before it", after, before)
	}
	n.apply(t, nil, module("pass", testPackage(t, "drop"), "app=web", nil))
	ready(before...)
	n.remove(t, resource.Ref{Kind: v1.KindModule, Name: "pass"})
	if chains, err := n.Chains(t.Context()); err != nil || len(chains) > 0 {
		t.Errorf("chains without modules: %v, %v", chains, err)
	}
}
