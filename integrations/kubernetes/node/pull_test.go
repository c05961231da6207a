// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/client"
	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
	"github.com/kerb-edge/kerb/integrations/kubernetes/names"
)

// store is the package API of an agent.
type store struct {
	packages []v1.Package
	answers  map[string]int // status codes of pulls
	pulled   []string
	removed  []string
	lists    int
}

func (s *store) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	source := r.URL.Query().Get("source")
	switch status := s.answers[source]; {
	case r.Method == http.MethodGet:
		s.lists++
		_ = json.NewEncoder(w).Encode(s.packages)
	case r.Method == http.MethodDelete && status != 0:
		s.removed = append(s.removed, source)
		w.WriteHeader(status)
	case r.Method == http.MethodDelete:
		s.removed = append(s.removed, source)
		s.packages = slices.DeleteFunc(s.packages, func(p v1.Package) bool { return p.Pinned == source })
	case status != 0:
		s.pulled = append(s.pulled, source)
		w.WriteHeader(status)
		fmt.Fprintf(w, `{"detail":"status %d"}`, status)
	default:
		s.pulled = append(s.pulled, source)
		s.packages = append(s.packages, v1.Package{Pinned: source, Owner: r.URL.Query().Get("owner")})
	}
}

func withStore(t *testing.T) (*store, *syncer) {
	t.Helper()
	of := &store{answers: map[string]int{}}
	socket, err := net.Listen("unix", filepath.Join(t.TempDir(), "agent"))
	if err != nil {
		t.Fatal(err)
	}
	server := &httptest.Server{Listener: socket, Config: &http.Server{Handler: of}}
	server.Start()
	t.Cleanup(server.Close)
	_, s := heldPod(t)
	s.agent = agent{client.New(socket.Addr().String())}
	s.puller = newPuller(s.agent, s.state, s.log)
	s.state.trustHandler().Replace(nil)
	return of, s
}

func imageModule(name, image string) api.Module {
	return api.Module{Metadata: api.ObjectMeta{Name: name}, Spec: api.ModuleSpec{Package: api.Package{Image: image}}}
}

// drain runs all due pulls.
func drain(t *testing.T, s *syncer) {
	t.Helper()
	s.listed = time.Time{}
	if err := s.pullMissing(t.Context(), s.state.view()); err != nil {
		t.Fatal(err)
	}
	for image, _ := s.puller.next(); image != ""; image, _ = s.puller.next() {
		s.puller.try(t.Context(), image)
	}
	if err := s.pullMissing(t.Context(), s.state.view()); err != nil {
		t.Fatal(err)
	}
}

// Packages of modules are pulled once, for both sides of a rollout. Failed pulls are retried with exponential backoff.
// The previous package stays.
func TestPulls(t *testing.T) {
	a, s := withStore(t)
	a.answers = map[string]int{"r.example/no@1": http.StatusUnprocessableEntity,
		"r.example/away@1": http.StatusServiceUnavailable}
	a.packages = []v1.Package{{Pinned: "r.example/operators@1"}, {Pinned: "r.example/old@1", Owner: names.Owner}}
	rollout := imageModule("b", "r.example/new@1")
	rollout.Spec.Rollout = &api.Rollout{Previous: api.Previous{Package: api.Package{Image: "r.example/before@1"}}}
	for _, bit := range []int{ofModules, ofClusterModules} {
		s.state.moduleHandler(bit).Replace(nil)
	}
	s.state.namespaceHandler().Replace(nil)
	s.state.podHandler().Replace(nil)
	s.state.moduleHandler(ofClusterModules).Replace([]api.Module{imageModule("a", "r.example/operators@1"), rollout,
		imageModule("c", "r.example/no@1"), imageModule("d", "r.example/away@1"), imageModule("e", "")})
	drain(t, s)
	slices.Sort(a.pulled)
	if got := strings.Join(a.pulled, " "); got != "r.example/away@1 r.example/before@1 r.example/new@1 r.example/no@1" {
		t.Errorf("pulled %s", got)
	}
	for image, want := range map[string]string{"r.example/no@1": api.PackageRefused,
		"r.example/away@1": api.PackageUnavailable, "r.example/new@1": "", "r.example/operators@1": "", "": ""} {
		if reason, err := s.packageAvailable(s.state.view(), image); reason != want || (err == nil) != (want == "") {
			t.Errorf("%s: %s %v, want %q", image, reason, err, want)
		}
	}
	before := s.puller.of("r.example/away@1")
	if left := time.Until(before.due); left < minUnavailableRetry/3 || left > 2*minUnavailableRetry {
		t.Errorf("tried again after %v", left)
	}
	for range 10 {
		s.puller.try(t.Context(), "r.example/away@1")
	}
	if after := s.puller.of("r.example/away@1"); after.backoff != maxUnavailableRetry {
		t.Errorf("tried again after %v", after.backoff)
	}
	s.removeUnused(t.Context(), s.state.view())
	if got := strings.Join(a.removed, " "); got != "r.example/old@1" {
		t.Errorf("removed %q", got)
	}
	a.removed = nil
	s.state.moduleHandler(ofClusterModules).Set(imageModule("b", "r.example/newest@1"))
	drain(t, s)
	s.removeUnused(t.Context(), s.state.view())
	if got := strings.Join(a.removed, " "); got != "r.example/before@1" {
		t.Errorf("removed %q; the package before the present one stays", got)
	}
	s.state.moduleHandler(ofClusterModules).Delete(imageModule("b", ""))
	a.removed = nil
	drain(t, s)
	s.removeUnused(t.Context(), s.state.view())
	if !slices.Contains(a.removed, "r.example/new@1") || !slices.Contains(a.removed, "r.example/newest@1") ||
		slices.Contains(a.removed, "r.example/operators@1") {
		t.Errorf("removed %q after the module was deleted", a.removed)
	}
}

// A node keeps at most 64 packages, however many modules use. Failed pulls do not count.
func TestPullLimit(t *testing.T) {
	a, s := withStore(t)
	var all []api.Module
	for i := range maxPulled {
		never := fmt.Sprintf("r.example/a%03d@1", i)
		a.answers[never] = http.StatusNotFound
		all = append(all, imageModule(fmt.Sprint("a", i), never))
	}
	s.state.moduleHandler(ofClusterModules).Replace(all)
	drain(t, s)
	for i := range maxPulled + 10 {
		all = append(all, imageModule(fmt.Sprint("m", i), fmt.Sprintf("r.example/p%03d@1", i)))
	}
	s.state.moduleHandler(ofClusterModules).Replace(all)
	for range 3 {
		drain(t, s)
	}
	if len(a.packages) != maxPulled {
		t.Errorf("%d packages", len(a.packages))
	}
	tooMany := 0
	for _, m := range all {
		if reason, _ := s.packageAvailable(s.state.view(), m.Spec.Package.Image); reason == api.TooManyPackages {
			tooMany++
		}
	}
	if tooMany != 10 {
		t.Errorf("%d modules without a package", tooMany)
	}
	if image, _ := s.puller.next(); image != "" {
		t.Errorf("%s is due on a node that has reached the limit", image)
	}
}

// However many packages namespaced Modules use, now and before, half of the limit is reserved for ClusterModules, whose
// packages have priority.
func TestPullLimitOfNamespaces(t *testing.T) {
	a, s := withStore(t)
	var all []api.Module
	for round := range 2 { // every image is changed once
		all = nil
		for i := range 6 * api.MaxModules {
			m := imageModule(fmt.Sprint("m", i%api.MaxModules), fmt.Sprintf("r.example/p%d-%d@1", i, round))
			m.Metadata.Namespace = fmt.Sprint("tenant-", i/api.MaxModules)
			all = append(all, m)
		}
		s.state.moduleHandler(ofModules).Replace(all)
		for range 3 {
			drain(t, s)
			s.removeUnused(t.Context(), s.state.view())
		}
	}
	if len(a.packages) != maxOfNamespaces {
		t.Errorf("%d packages of namespaces", len(a.packages))
	}
	tooMany := 0
	for _, m := range all {
		if reason, _ := s.packageAvailable(s.state.view(), m.Spec.Package.Image); reason == api.TooManyPackages {
			tooMany++
		}
	}
	if want := len(all) - maxOfNamespaces; tooMany != want {
		t.Errorf("%d modules without a package, want %d", tooMany, want)
	}
	s.state.moduleHandler(ofClusterModules).Set(imageModule("wide", "r.example/wide@1"))
	if err := s.pullMissing(t.Context(), s.state.view()); err != nil {
		t.Fatal(err)
	}
	if image, _ := s.puller.next(); image != "r.example/wide@1" {
		t.Errorf("%q is next", image)
	}
}

// The pull from a slow registry of a namespace times out, since packages are pulled one after the other.
func TestPullTimeout(t *testing.T) {
	_, s := withStore(t)
	end := make(chan struct{})
	socket, err := net.Listen("unix", filepath.Join(t.TempDir(), "slow"))
	if err != nil {
		t.Fatal(err)
	}
	slow := &httptest.Server{Listener: socket, Config: &http.Server{Handler: http.HandlerFunc(
		func(http.ResponseWriter, *http.Request) { <-end })}}
	slow.Start()
	t.Cleanup(slow.Close)
	t.Cleanup(func() { close(end) })
	s.puller.agent = agent{client.New(socket.Addr().String())}
	s.puller.timeout = time.Millisecond
	s.puller.setMissing(map[string]bool{"r.example/slow@1": false}, 1, 1, 0)
	s.puller.try(t.Context(), "r.example/slow@1")
	if a := s.puller.of("r.example/slow@1"); a.failure != errSlow.Error() || time.Until(a.due) <= 0 {
		t.Errorf("%+v", a)
	}
}

// The package that has been due for the longest time is next, whatever its name; a new one is due immediately.
func TestPullOrder(t *testing.T) {
	_, s := withStore(t)
	ago := func(d time.Duration) attempt { return attempt{due: time.Now().Add(-d)} }
	s.puller.attempts = map[string]attempt{"a": ago(time.Second), "b": ago(time.Minute), "c": ago(-time.Hour)}
	s.puller.setMissing(map[string]bool{"0": true, "a": true, "b": true, "c": true}, 1, 1, 0)
	var order []string
	for image, _ := s.puller.next(); image != ""; image, _ = s.puller.next() {
		order = append(order, image)
		s.puller.attempts[image] = ago(-time.Hour)
	}
	if got := strings.Join(order, " "); got != "b a 0" {
		t.Errorf("pulled %s", got)
	}
	if _, wait := s.puller.next(); wait < 59*time.Minute || wait > time.Hour {
		t.Errorf("the next one is due in %v", wait)
	}
}

// The agent lists its packages, which makes it read all of them, after a pull, and rarely otherwise. A removed package
// is not removed again.
func TestPackageListInterval(t *testing.T) {
	a, s := withStore(t)
	a.packages = []v1.Package{{Pinned: "r.example/old@1", Owner: names.Owner}, {Pinned: "r.example/used@1",
		Owner: names.Owner}}
	a.answers["r.example/used@1"] = http.StatusConflict
	s.state.moduleHandler(ofClusterModules).Replace([]api.Module{imageModule("a", "r.example/a@1")})
	round := func(what string, lists int) {
		t.Helper()
		if err := s.pullMissing(t.Context(), s.state.view()); err != nil {
			t.Fatal(err)
		}
		s.removeUnused(t.Context(), s.state.view())
		if a.lists != lists {
			t.Errorf("%s: listed %d times, want %d", what, a.lists, lists)
		}
	}
	round("at first", 1)
	round("again", 1)
	if got := strings.Join(a.removed, " "); got != "r.example/old@1 r.example/used@1 r.example/used@1" {
		t.Errorf("removed %s", got)
	}
	s.puller.try(t.Context(), "r.example/a@1")
	round("after a pull", 2)
	s.listed = time.Now().Add(-2 * fullEvery)
	round("after some minutes", 2)
	s.refused = []api.ModuleReport{{}}
	round("a module is not applied", 3)
	s.refused, s.listed = nil, time.Now().Add(-listEvery)
	round("later", 4)
	a.packages = nil
	s.listed = time.Time{}
	round("everything is gone", 5)
	s.state.moduleHandler(ofClusterModules).Replace(nil)
	s.listed = time.Time{}
	round("nothing is wanted", 5)
}

// A package that only Modules of one namespace use holds no pods of other namespaces, pulled or not. Modules beyond the
// limit of a namespace, and those with a registry on the node itself, cause no pulls.
func TestPullsOfNamespaces(t *testing.T) {
	s := tenants()
	modules := s.moduleHandler(ofModules)
	var all []api.Module
	for i := range api.MaxModules + 2 {
		m := imageModule(fmt.Sprint("m", i), fmt.Sprintf("r.example/p%d@1", i))
		m.Metadata.Namespace = "evil"
		all = append(all, m)
	}
	all[0].Spec.Package.Image = "127.0.0.1:10250/p@1"
	modules.Replace(all)
	v := s.view()
	_, local := v.images["127.0.0.1:10250/p@1"]
	_, beyond := v.images["r.example/p8@1"]
	if len(v.images) != api.MaxModules-1 || local || beyond {
		t.Errorf("the node pulls %v", v.images)
	}
	s.packageChanged("r.example/p1@1")
	if s.view().rules == v.rules || s.view().clusterRules != v.clusterRules {
		t.Errorf("rules %d and %d, before %d and %d", s.view().rules, s.view().clusterRules, v.rules, v.clusterRules)
	}
	if podIn(t, s, v.rules, "shop", "u1").held != nil || podIn(t, s, v.rules, "evil", "u2").held == nil {
		t.Error("pods of the other namespace are held, or those of the namespace are not")
	}
	v = s.view()
	if s.packageChanged("r.example/none@1"); s.view().rules != v.rules {
		t.Error("a package that no module names has modules applied again")
	}
	s.moduleHandler(ofClusterModules).Set(imageModule("wide", "r.example/p1@1"))
	v = s.view()
	if s.packageChanged("r.example/p1@1"); s.view().clusterRules == v.clusterRules {
		t.Error("the package of a ClusterModule changes nothing for other namespaces")
	}
	if reason, err := allowed(all[0], map[string]v1.Package{all[0].Spec.Package.Image: {}}); reason != api.NotPermitted {
		t.Errorf("a registry on the node itself: %q %v", reason, err)
	}
	for image, want := range map[string]bool{"127.0.0.1:5000/a@1": true, "localhost/a@1": true, "[::1]:5000/a@1": true,
		"0.0.0.0:80/a@1": true, "Localhost:1/a@1": true, "r.example/127.0.0.1@1": false, "10.0.0.1:5000/a@1": false,
		"": false} {
		if got := onLoopback(image); got != want {
			t.Errorf("%s is on the node: %v", image, got)
		}
	}
}

// Repeated identical failures cause no apply and no write.
func TestFailuresAreStable(t *testing.T) {
	a, s := withStore(t)
	const image = "r.example/away@1"
	a.answers[image] = http.StatusServiceUnavailable
	s.state.moduleHandler(ofClusterModules).Replace([]api.Module{imageModule("a", image)})
	drain(t, s)
	version := s.state.view().version
	for range 3 {
		s.puller.try(t.Context(), image)
	}
	if got := s.state.view().version; got != version {
		t.Errorf("the state went from %d to %d", version, got)
	}
	a.answers[image] = http.StatusNotFound
	if s.puller.try(t.Context(), image); s.state.view().version == version {
		t.Error("another answer changes nothing")
	}
}

// A check waits for a package that no registry delivers, and reports that; a rejected package fails the check. The
// previous package survives a restart.
func TestChecksNeedPackages(t *testing.T) {
	a, s := withStore(t)
	a.answers = map[string]int{"r.example/p@sha256:1": http.StatusServiceUnavailable}
	m := imageModule("web", "r.example/p@sha256:1")
	m.Spec.Rollout = &api.Rollout{Previous: api.Previous{Package: api.Package{Name: "counter"}}}
	for _, bit := range []int{ofModules, ofClusterModules} {
		s.state.moduleHandler(bit).Replace(nil)
	}
	s.state.namespaceHandler().Replace(nil)
	s.state.podHandler().Replace(nil)
	s.state.moduleHandler(ofClusterModules).Replace([]api.Module{m})
	dir := t.TempDir()
	var err error
	if s.guard, err = newGuard(dir, s.state); err != nil {
		t.Fatal(err)
	}
	expect := func(what, reason string) {
		t.Helper()
		s.check(t.Context(), s.state.view())
		got := ""
		for _, r := range s.state.rollouts().failed {
			got += r.Reason
		}
		if got != reason || len(s.state.rollouts().checked) != 0 {
			t.Errorf("%s: the node reports %q, want %q", what, got, reason)
		}
	}
	if err := s.pullMissing(t.Context(), s.state.view()); err != nil {
		t.Fatal(err)
	}
	expect("the first attempt has not ended", "")
	drain(t, s)
	expect("no registry answers", api.PackageUnavailable)
	a.answers["r.example/p@sha256:1"] = http.StatusNotFound
	s.puller.try(t.Context(), "r.example/p@sha256:1")
	expect("the registry has none", api.CheckFailed)

	s.state.moduleHandler(ofClusterModules).Replace([]api.Module{imageModule("web", "r.example/q@sha256:1")})
	if err := s.state.save(dir); err != nil {
		t.Fatal(err)
	}
	again := newState("n1")
	if err := again.restore(dir); err != nil {
		t.Fatal(err)
	}
	if v := again.view(); !v.images["r.example/q@sha256:1"] || len(v.images) != 1 ||
		!v.previousImages["r.example/p@sha256:1"] {
		t.Errorf("after a restart the node has %v, and keeps %v", v.images, v.previousImages)
	}
}
