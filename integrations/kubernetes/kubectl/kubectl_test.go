// SPDX-License-Identifier: Apache-2.0

package kubectl

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
)

// A status counts what nodes say about this version of this module, and names no more than ten of them.
func TestSummary(t *testing.T) {
	m := api.Module{Metadata: api.ObjectMeta{Name: "web"}, Spec: api.ModuleSpec{Package: api.Package{Name: "new"},
		Rollout: &api.Rollout{Percent: new(100)}}}
	runs := api.KerbNodeStatus{Updated: []api.NodeVersion{{Name: "web", Version: m.Version()}}}
	says := func(name, reason string) api.KerbNodeStatus {
		return api.KerbNodeStatus{Modules: []api.ModuleReport{{Name: name, Reason: reason, Message: "\x1b[2Jwhy\n"}}}
	}
	var nodes []api.KerbNode
	add := func(n int, status *api.KerbNodeStatus) {
		for range n {
			nodes = append(nodes, api.KerbNode{Metadata: api.ObjectMeta{Name: fmt.Sprint("n", len(nodes))}, Status: status})
		}
	}
	back, refused, other := says("web", api.RolledBack), says("web", "Refused"), says("db", "Refused")
	another := api.KerbNodeStatus{Updated: []api.NodeVersion{{Name: "web", Version: "another"}}}
	add(100, &runs)
	add(11, &back)
	add(3, &refused)
	add(1, &other)
	add(1, &another)
	add(1, nil)
	s := summarize(m, nodes)
	if s.nodes != 117 || s.updated != 117 || s.run != 100 || s.back != 11 || len(s.failed) != 14 || s.late != 0 {
		t.Errorf("summary %+v", s)
	}
	text := s.text(m)
	for _, want := range []string{"117 of 117 nodes, 100 run it, 11 went back, 3 with another problem, 3 have not said",
		"n100 RolledBack:  [2Jwhy", "and 4 more"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if n := strings.Count(text, "\n"); n != 13 {
		t.Errorf("%d lines:\n%s", n, text)
	}
	m.Spec.Rollout.Percent = new(0)
	if s := summarize(m, nodes); s.updated != 0 || s.late != 100 || len(s.failed) != 0 ||
		!strings.Contains(s.text(m), "100 more still run it") {
		t.Errorf("after undo: %+v", s)
	}
}

// Wrong commands are refused before any file is read.
func TestUsage(t *testing.T) {
	for _, args := range []string{"", "rollout", "rollout abort x", "rollout undo", "rollout pause a b", "status x",
		"rollout status a b", "rollout status --nope", "rollout history", "rollout pause a --to-revision b",
		"rollout undo a --revision b"} {
		var out strings.Builder
		code, err := Run(t.Context(), strings.Fields(args), &out)
		if code != exitUsage || err == nil || !strings.Contains(err.Error(), "usage: ") {
			t.Errorf("%q: %d %v", args, code, err)
		}
	}
	code, err := Run(t.Context(), strings.Fields("rollout status x --kubeconfig /nowhere"), &strings.Builder{})
	if code != exitError || err == nil || !strings.Contains(err.Error(), "/nowhere") {
		t.Errorf("%d %v", code, err)
	}
}
