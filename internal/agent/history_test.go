// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/history"
	"github.com/kerb-edge/kerb/internal/resource"
)

func (n *node) recorded(t *testing.T) []v1.ChangeRecord {
	t.Helper()
	all, err := n.Changes(t.Context(), v1.ChangesRequest{Limit: 100})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// present is the desired state.
func (n *node) present() resource.State {
	n.Lock.Lock()
	defer n.Lock.Unlock()
	return n.Now.Desired
}

// specsOf is what is desired, without generations.
func (n *node) specsOf() map[string]any {
	out := map[string]any{}
	for _, all := range n.present() {
		for _, o := range all {
			out[resource.RefOf(o).String()+" of "+resource.OwnerOf(o)] = resource.KindOf(o).Summary(o)
		}
	}
	return out
}

func (n *node) revert(t *testing.T, number int64) v1.ApplyResult {
	t.Helper()
	r, err := n.Revert(t.Context(), v1.RevertRequest{Number: number})
	if err != nil {
		t.Fatalf("revert change %d: %v", number, err)
	}
	return r
}

func (n *node) refusesToRevert(t *testing.T, r v1.RevertRequest, says string) {
	t.Helper()
	before := n.specsOf()
	var conflict *apierrors.Conflict
	if _, err := n.Revert(t.Context(), r); !errors.As(err, &conflict) || !strings.Contains(err.Error(), says) {
		t.Errorf("revert %+v: %v, want a conflict with %q", r, err, says)
	}
	if !reflect.DeepEqual(n.specsOf(), before) {
		t.Errorf("a refused revert has changed %v to %v", before, n.specsOf())
	}
}

func TestRevert(t *testing.T) {
	n := newNode(t)
	policy := func(both string) map[string]any {
		return map[string]any{"defaultPolicy": map[string]any{"ingress": both, "egress": both}}
	}
	allow := module("fw", "firewall", "*", policy("allow"))
	deny := module("fw", "firewall", "*", policy("deny"))
	allow.Spec.Hook, deny.Spec.Hook = "auto", "auto" // as the API decodes it
	empty := n.specsOf()
	n.apply(t, n.both(), allow) // 1
	open := n.specsOf()
	n.apply(t, nil, allow) // unchanged: no record
	n.apply(t, nil, deny)  // 2
	if reached(t, n.web, n.db, 0) {
		t.Fatal("the firewall denies nothing")
	}
	n.remove(t, resource.Ref{Kind: v1.KindService, Name: "db"}) // 3
	wrong := resource.Request{Resources: resource.Objects(module("x", "none", "*", nil))}
	if _, err := n.Apply(t.Context(), wrong); err == nil { // 4
		t.Fatal("an unknown package is accepted")
	}
	all := n.recorded(t)
	if len(all) != 4 || all[0].Outcome != v1.OutcomeRefused || !strings.Contains(all[0].Error, "none") ||
		all[1].Changes[0].Action != "delete" || all[2].Changes[0].Action != "update" || len(all[3].Changes) != 3 {
		t.Fatalf("recorded %+v", all)
	}
	two, err := n.Change(t.Context(), 2)
	if err != nil || len(two.Steps) == 0 || two.By != "agent" || two.Owner != v1.OwnerUser || two.Took <= 0 ||
		!strings.Contains(fmt.Sprint(two.Changes[0].Before), "allow") ||
		!strings.Contains(fmt.Sprint(two.Changes[0].After), "deny") {
		t.Errorf("change 2 is %+v, %v", two, err)
	}
	n.refusesToRevert(t, v1.RevertRequest{Number: 4}, "refused")
	n.refusesToRevert(t, v1.RevertRequest{Number: 1}, "change 3 did")
	shut := n.specsOf()
	if r, err := n.Revert(t.Context(), v1.RevertRequest{Number: 2, DryRun: true}); err != nil || len(r.Changes) != 1 ||
		!reflect.DeepEqual(n.specsOf(), shut) || len(n.recorded(t)) != 4 {
		t.Errorf("dry run: %+v %v", r, err)
	}
	n.stop()
	n.start(t)     // the history outlives the agent
	n.revert(t, 3) // 5
	n.revert(t, 2) // 6
	if !reached(t, n.web, n.db, patience) {
		t.Error("the firewall still denies")
	}
	if now := n.specsOf(); !reflect.DeepEqual(now, open) {
		t.Errorf("after reverting it is %v, was %v", now, open)
	}
	if len(n.chainsOn(t, n.db)) != 2 {
		t.Error("the service that is back has no chains")
	}
	n.refusesToRevert(t, v1.RevertRequest{Number: 2}, "change 6 did")
	if six := n.recorded(t)[0]; six.Number != 6 || six.Reverts != 2 {
		t.Errorf("change 6 is %+v", six)
	}
	n.revert(t, 6)
	if now := n.specsOf(); reflect.DeepEqual(now, open) {
		t.Error("reverting the revert has changed nothing")
	}
	if _, err := n.Revert(t.Context(), v1.RevertRequest{Number: 1, Force: true}); err != nil {
		t.Fatal(err)
	}
	if now := n.specsOf(); !reflect.DeepEqual(now, empty) || len(n.chainsOn(t, n.web)) != 0 {
		t.Errorf("reverted from the beginning, there is %v", now)
	}
	var missing *apierrors.NotFound
	if _, err := n.Revert(t.Context(), v1.RevertRequest{Number: 99}); !errors.As(err, &missing) {
		t.Errorf("an unknown change: %v", err)
	}
}

// A revert that cannot be executed changes nothing, and is recorded as refused.
func TestRevertRefused(t *testing.T) {
	n := newNode(t)
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(testPackage(t, "pass"))); err != nil {
		t.Fatal(err)
	}
	n.apply(t, n.both(), module("count", dir, "*", nil))
	n.remove(t, resource.Ref{Kind: v1.KindModule, Name: "count"})
	n.remove(t, resource.Ref{Kind: v1.KindService, Name: "web"})
	if err := os.Remove(filepath.Join(dir, "kerb.yaml")); err != nil {
		t.Fatal(err)
	}
	before := n.specsOf()
	if _, err := n.Revert(t.Context(), v1.RevertRequest{Number: 2}); err == nil {
		t.Fatal("a module without its package is back")
	}
	if newest := n.recorded(t)[0]; newest.Outcome != v1.OutcomeRefused || newest.Reverts != 2 ||
		!reflect.DeepEqual(n.specsOf(), before) {
		t.Errorf("recorded %+v; there is %v", newest, n.specsOf())
	}
	n.revert(t, 3)
}

// What lists and differences only show the digest of comes back complete, and with its owner.
func TestRevertOfLargeResources(t *testing.T) {
	n := newNode(t)
	set := func(elements ...string) []resource.Object {
		return resource.Objects(v1.Set{TypeMeta: v1.TypeMeta{APIVersion: v1.APIVersion, Kind: v1.KindSet},
			Metadata: v1.ObjectMeta{Name: "block"}, Spec: v1.SetSpec{Type: "addresses", Elements: elements}})
	}
	fleet := resource.Writer{Owner: "fleet"}
	for _, r := range []resource.Request{{Resources: set("192.0.2.1", "192.0.2.2"), By: fleet},
		{Resources: set("192.0.2.3"), By: resource.Writer{Force: true}}} {
		if _, err := n.Apply(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	n.refusesToRevert(t, v1.RevertRequest{Number: 1, Force: false}, "was made by fleet")
	n.revert(t, 2)
	got, err := get(t.Context(), n, resource.Set, "block")
	if err != nil || strings.Join(got.Spec.Elements, " ") != "192.0.2.1 192.0.2.2" || got.Metadata.Owner != "fleet" {
		t.Errorf("the set is %+v of %q, %v", got.Spec, got.Metadata.Owner, err)
	}
}

// Requests that share a plan are recorded one by one.
func TestRecordsOfGroups(t *testing.T) {
	n := newNode(t)
	var all sync.WaitGroup
	for _, s := range n.both() {
		all.Go(func() {
			if _, err := n.Apply(t.Context(), resource.Request{Resources: resource.Objects(s)}); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	found := n.recorded(t)
	if len(found) != 2 || len(found[0].Changes) != 1 || len(found[1].Changes) != 1 ||
		found[0].Changes[0].Name == found[1].Changes[0].Name {
		t.Errorf("recorded %+v", found)
	}
	before := n.specsOf()
	other := serviceOf("web", n.web)
	other.Metadata.Labels = map[string]string{"app": "other"}
	n.apply(t, []v1.Service{other})
	if three := n.recorded(t)[0]; three.Number != 3 || time.Since(three.Time) > time.Hour ||
		three.Took > int64(time.Hour) {
		t.Errorf("change 3 is %+v", three)
	}
	n.revert(t, 3)
	if now := n.specsOf(); !reflect.DeepEqual(now, before) {
		t.Errorf("after reverting there is %v, was %v", now, before)
	}
}

// Two requests of one group change one service: reverting the second keeps what the first did.
func TestRevertOneOfGroup(t *testing.T) {
	n := newNode(t)
	with := func(value string) v1.Service {
		s := n.both()[0]
		s.Metadata.Labels = map[string]string{"v": value}
		return s
	}
	n.apply(t, []v1.Service{with("zero")})
	var requests []resource.Request
	for _, v := range []string{"one", "two"} {
		requests = append(requests, resource.Request{Resources: resource.Objects(with(v))})
	}
	for _, a := range n.together(t, requests) {
		if a.err != nil {
			t.Fatal(a.err)
		}
	}
	var number int64
	for _, r := range n.recorded(t) { // the record of the second one: its After is what is now
		full, err := n.Change(t.Context(), r.Number)
		if err != nil {
			t.Fatal(err)
		}
		two := resource.ObjectOf(with("two"))
		if same, _ := history.SameJSON(full.Changes[0].After, resource.KindOf(two).Summary(two)); same {
			number = r.Number
		}
	}
	n.revert(t, number)
	now, _ := resource.Service.Get(n.present(), with("x").Metadata.Name)
	if got := now.Metadata.Labels["v"]; got != "one" {
		t.Errorf("reverting the second change makes the label %q, want one", got)
	}
}

// A request that creates and one that updates the same service in one group: the update can be reverted, or is refused.
func TestRevertUpdateInGroup(t *testing.T) {
	n := newNode(t)
	with := func(value string) v1.Service {
		s := n.both()[0]
		s.Metadata.Labels = map[string]string{"v": value}
		return s
	}
	var requests []resource.Request
	for _, v := range []string{"one", "two"} {
		requests = append(requests, resource.Request{Resources: resource.Objects(with(v))})
	}
	n.together(t, requests)
	for _, r := range n.recorded(t) {
		if r.Changes[0].Action != "update" {
			continue
		}
		result, err := n.Revert(t.Context(), v1.RevertRequest{Number: r.Number})
		now, _ := resource.Service.Get(n.present(), with("x").Metadata.Name)
		if err == nil && now.Metadata.Labels["v"] == "two" {
			t.Errorf("reverting the update succeeds, and changes nothing: %+v", result)
		}
	}
}

// A resource that another owner has taken over since, with the same content, needs --force.
func TestRevertOfAnothersResource(t *testing.T) {
	n := newNode(t)
	s := n.both()[0]
	n.apply(t, []v1.Service{s})
	number := n.recorded(t)[0].Number
	by := resource.Writer{Owner: "oakestra", Force: true}
	if _, err := n.Apply(t.Context(), resource.Request{Resources: resource.Objects(s), By: by}); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Revert(t.Context(), v1.RevertRequest{Number: number}); err == nil {
		t.Error("reverting without force has deleted a service of oakestra")
	}
}
