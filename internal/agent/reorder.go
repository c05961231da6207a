// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/plan"
)

// reordered lists the chains to which the steps give the modules that they have in another order.
func reordered(steps []plan.Step, points plan.Placements) (out []string) {
	for _, s := range steps {
		was, is := memberNames(s.Old.Spec), memberNames(s.Chain)
		if s.Action != plan.Replace || slices.Equal(was, is) || !slices.Equal(slices.Sorted(slices.Values(was)), slices.Sorted(slices.Values(is))) {
			continue
		}
		at := points[s.Point]
		out = append(out, fmt.Sprintf("%s %s: %s (before: %s)", cmp.Or(at.Service, at.Link.Name), s.Chain.Direction,
			strings.Join(is, ", "), strings.Join(was, ", ")))
	}
	return out
}

func memberNames(spec chain.Spec) (out []string) {
	for _, m := range spec.Members {
		out = append(out, m.Name)
	}
	return out
}
