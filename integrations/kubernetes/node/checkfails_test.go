// SPDX-License-Identifier: Apache-2.0

package node

import (
	"net/http"
	"testing"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
	"github.com/kerb-edge/kerb/integrations/kubernetes/names"
)

// If the agent fails to check a new version, pods do not stay pending, and the node reports the failure.
func TestFailedCheckHoldsNoPod(t *testing.T) {
	for _, status := range []int{http.StatusTooManyRequests, http.StatusInternalServerError,
		http.StatusServiceUnavailable} {
		a, s := heldPod(t)
		var err error
		if s.guard, err = newGuard(t.TempDir(), s.state); err != nil {
			t.Fatal(err)
		}
		a.before = func(all []v1.Module) {
			a.answers = map[string]int{}
			for _, m := range all {
				if m.Metadata.Name == "other" && m.Spec.Package == "firewall" {
					a.answers["other"] = status
				}
			}
		}
		s.state.moduleHandler(ofModules).Replace(nil)
		s.state.moduleHandler(ofClusterModules).Replace([]api.Module{{Metadata: api.ObjectMeta{Name: "other"},
			Spec: api.ModuleSpec{Package: api.Package{Name: "firewall"}, Rollout: &api.Rollout{
				Previous: api.Previous{Package: api.Package{Name: "counter"}}}}}})
		s.state.namespaceHandler().Replace([]api.Object{object("n", "", "shop", nil)})
		s.state.podHandler().Replace([]api.Object{object("u1", "shop", "web", nil)})
		for range 3 {
			if _, err := s.round(t.Context()); err != nil {
				t.Errorf("%d: the round ended with %v", status, err)
			}
		}
		if names.IsPending(a.service.Metadata.Labels) {
			t.Errorf("%d: the pod is pending", status)
		}
		if r := s.state.rollouts().failed; len(r) != 1 || r[0].Reason != api.CheckFailed {
			t.Errorf("%d: the node reports %+v", status, r)
		}
		rules := s.state.view().rules
		c := s.state.checks["other"]
		c.at = time.Now().Add(-2 * fullEvery)
		s.state.checks["other"] = c
		s.check(t.Context(), s.state.view())
		if s.state.view().rules != rules || time.Since(s.state.checks["other"].at) > fullEvery {
			t.Errorf("%d: the same failure again counts as a change, or was not checked", status)
		}
	}
}
