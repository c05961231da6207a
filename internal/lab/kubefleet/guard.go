// SPDX-License-Identifier: Apache-2.0

package kubefleet

import (
	"fmt"
	"net/http"
	"os"
	"regexp"
	"slices"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/lab/node"
)

var goesBack = regexp.MustCompile(`(?m)^time=(\S+) level=WARN msg="this node rolls back to the previous version" `)

// Tripped returns when the guard of a node decided to roll back, from the log of kerb-kube-node.
func Tripped(log string) (all []time.Time, err error) {
	text, err := os.ReadFile(log)
	if err != nil {
		return nil, err
	}
	for _, found := range goesBack.FindAllSubmatch(text, -1) {
		at, err := time.Parse(time.RFC3339Nano, string(found[1]))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", log, err)
		}
		all = append(all, at)
	}
	return all, nil
}

// Changes returns the changes of a module by the agent, the first one first.
func Changes(agent *node.Node, module string) (out []v1.ChangeRecord, err error) {
	var all []v1.ChangeRecord
	if err := agent.Call(http.MethodGet, "/v1/changes?limit=1000", nil, &all); err != nil {
		return nil, err
	}
	for _, r := range all {
		if r.Outcome == "done" && slices.ContainsFunc(r.Changes, func(c v1.Change) bool {
			return c.Kind == v1.KindModule && c.Name == module && c.Action != "unchanged"
		}) {
			out = append(out, r)
		}
	}
	slices.SortFunc(out, func(a, b v1.ChangeRecord) int { return int(a.Number - b.Number) })
	return out, nil
}

// Done returns when a change was complete.
func Done(r v1.ChangeRecord) time.Time {
	return r.Time.Add(time.Duration(r.Took))
}
