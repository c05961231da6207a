// SPDX-License-Identifier: Apache-2.0

package node

import (
	"slices"
	"strings"
	"testing"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
)

func permits(name, repository string, keys ...string) api.PackageTrust {
	return api.PackageTrust{Metadata: api.ObjectMeta{Name: name},
		Spec: api.PackageTrustSpec{Repositories: []string{repository}, Keys: keys}}
}

// A package is pulled and applied only if a PackageTrust permits its repository and accepts its keys. Without any, only
// the node's keys decide. Until PackageTrusts are known, no package of a registry is applied.
func TestTrust(t *testing.T) {
	a, s := withStore(t)
	const image = "r.example/acme/p@1"
	a.packages = []v1.Package{{Pinned: image, SignedBy: []string{"k1", "k2"}}}
	s.state.moduleHandler(ofClusterModules).Replace([]api.Module{imageModule("web", image),
		imageModule("no", "other.example/p@1")})
	expect := func(what, reason, says string) {
		t.Helper()
		drain(t, s)
		got, err := s.packageAvailable(s.state.view(), image)
		if got != reason || err != nil && !strings.Contains(err.Error(), says) || (err == nil) != (reason == "") {
			t.Errorf("%s: %q %v, want %q with %q", what, got, err, reason, says)
		}
	}
	s.state.trust = trust{}
	expect("not known", api.TrustUnknown, "apply deploy/kubernetes/crds")
	if len(a.pulled) != 0 {
		t.Errorf("pulled %v before it was known what is permitted", a.pulled)
	}
	h := s.state.trustHandler()
	rules := s.state.view().rules
	h.Replace([]api.PackageTrust{permits("a", "r.example/")})
	if s.state.view().rules == rules {
		t.Error("modules are not applied again")
	}
	expect("permitted", "", "")
	if len(a.pulled) != 0 {
		t.Errorf("pulled %v, whose repository is not permitted", a.pulled)
	}
	rules = s.state.view().rules
	h.Set(permits("a", "r.example/"))
	if s.state.view().rules != rules {
		t.Error("an event without a change has modules applied again")
	}
	h.Set(permits("a", "elsewhere.example/"))
	expect("another repository", api.NotPermitted, "r.example/acme/p: add it to spec.repositories")
	h.Set(permits("b", "r.example/acme/p", "k3"))
	expect("another key", api.NotPermitted, "signed by k1, k2; add a key to spec.keys")
	h.Set(permits("c", "r.example/acme/", "k3", "k2"))
	expect("one of its keys", "", "")
	a.packages[0].SignedBy = nil
	expect("a signature without a name", api.NotPermitted, "its signature has no name")
	a.packages[0].Waived = true
	expect("not signed", api.NotPermitted, "waived")
	h.Set(permits("d", "r.example/acme/p"))
	expect("not signed, and any key of the node would do", api.NotPermitted, "waived")
	a.packages[0].Waived = false
	expect("any key of the node will do", "", "")
	h.Delete(permits("d", ""))
	dir := t.TempDir()
	for _, bit := range []int{ofModules, ofClusterModules} {
		s.state.moduleHandler(bit).Replace(nil)
	}
	s.state.namespaceHandler().Replace(nil)
	s.state.podHandler().Replace(nil)
	if err := s.state.save(dir); err != nil {
		t.Fatal(err)
	}
	again := newState("n1")
	if err := again.restore(dir); err != nil {
		t.Fatal(err)
	}
	if reason, _ := again.view().trust.from("x.example/p@1"); reason != api.NotPermitted {
		t.Errorf("after a restart without the API server: %q", reason)
	}
	h.Delete(permits("b", ""))
	h.Delete(permits("c", ""))
	expect("none permits it", api.NotPermitted, "spec.repositories")
	h.Delete(permits("a", ""))
	expect("there is none", "", "")
	drain(t, s)
	if !slices.Equal(a.pulled, nil) {
		t.Errorf("pulled %v of a module that was deleted", a.pulled)
	}
}
