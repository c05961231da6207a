// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"reflect"
	"strings"
	"testing"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/resource"
)

// A dry run with Verify has the kernel verify new chains together with the modules that are there, and with Measure
// measures what would change. It leaves nothing behind, and nothing that runs notices.
func TestVerify(t *testing.T) {
	n := newNode(t)
	n.apply(t, n.both(), module("count", testPackage(t, "pass"), "*", nil), module("m", testPackage(t, "pass"), "*", nil))
	before, err := n.Look(time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	try := func(verify bool, pkg, selector string) (v1.ApplyResult, error) {
		return n.Apply(t.Context(), resource.Request{DryRun: true, Verify: verify, Measure: verify,
			Resources: resource.Objects(module("m", testPackage(t, pkg), selector, nil))})
	}
	measured := func(c *v1.Cost) bool { return c != nil && c.Memory > 0 && len(c.Latency) == 2 }
	if r, err := try(true, "drop", "*"); err != nil || len(r.Steps) == 0 {
		t.Errorf("what the kernel accepts: %q, %v", r.Steps, err)
	} else if len(r.Costs) != 1 || r.Costs[0].Module != "m" || !measured(r.Costs[0].Before) ||
		!measured(r.Costs[0].After) {
		t.Errorf("of the module that would change: %+v", r.Costs)
	}
	if r, err := try(true, "pass", "*"); err != nil || len(r.Costs) != 0 {
		t.Errorf("what does not change is measured: %+v, %v", r.Costs, err)
	}
	if r, err := n.Apply(t.Context(), resource.Request{DryRun: true, Verify: true, Measure: true,
		Resources: resource.Objects(module("new", testPackage(t, "drop"), "app=none", nil))}); err != nil ||
		len(r.Costs) != 1 || r.Costs[0].Before != nil || !measured(r.Costs[0].After) {
		t.Errorf("of a module that is new: %+v, %v", r.Costs, err)
	}
	if r, err := n.Apply(t.Context(), resource.Request{DryRun: true, Verify: true,
		Resources: resource.Objects(module("m", testPackage(t, "drop"), "*", nil))}); err != nil || len(r.Costs) != 0 {
		t.Errorf("measured without being asked: %+v, %v", r.Costs, err)
	}
	if r, err := try(false, "bad", "*"); err != nil || len(r.Costs) != 0 {
		t.Errorf("a dry run loads nothing: %+v, %v", r.Costs, err)
	}
	failures := n.Failures.Load()
	for _, selector := range []string{"*", "app=none"} {
		if _, err := try(true, "bad", selector); err == nil || !strings.Contains(err.Error(), "verifier") {
			t.Errorf("what the kernel rejects, on %s: %v", selector, err)
		}
	}
	if now := n.Failures.Load(); now != failures {
		t.Errorf("%d changes have failed, before %d", now, failures)
	}
	after, err := n.Look(time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(before, after) {
		t.Errorf("the kernel has\n%+v\nbefore\n%+v", after, before)
	}
	if m, _ := resource.Module.Get(n.Now.Desired, "m"); m.Spec.Package != testPackage(t, "pass") {
		t.Errorf("the desired state has package %s", m.Spec.Package)
	}
}
