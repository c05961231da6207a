// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"testing"

	"github.com/kerb-edge/kerb/api/v1alpha1"
)

// A dry run shows the resources before and after; the answer to a change does not repeat the request.
func TestDocumentsOfDryRun(t *testing.T) {
	for _, dryRun := range []bool{true, false} {
		set, by := Set{}, Writer{Owner: v1alpha1.OwnerUser}
		shows := func(what string, do func(*v1alpha1.ApplyResult) error, before, after bool) {
			t.Helper()
			result := v1alpha1.ApplyResult{DryRun: dryRun}
			if err := do(&result); err != nil || len(result.Changes) != 1 {
				t.Fatalf("%s: %v, %v", what, result.Changes, err)
			}
			c := result.Changes[0]
			if (c.Before != nil) != (before && dryRun) || (c.After != nil) != (after && dryRun) {
				t.Errorf("%s, dry run %t: before %v, after %v", what, dryRun, c.Before, c.After)
			}
		}
		apply := func(rank int) func(*v1alpha1.ApplyResult) error {
			m := v1alpha1.Module{Metadata: v1alpha1.ObjectMeta{Name: "m"}}
			m.Spec.Order.Priority = rank
			return func(r *v1alpha1.ApplyResult) error {
				_, err := set.Apply(Objects(m), by, r)
				return err
			}
		}
		shows("create", apply(1), false, true)
		shows("update", apply(2), true, true)
		shows("delete", func(r *v1alpha1.ApplyResult) error {
			_, err := set.Delete([]Ref{{Kind: v1alpha1.KindModule, Name: "m"}}, by, r)
			return err
		}, true, false)
	}
}
