// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"reflect"
	"testing"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/resource"
)

// One request makes the resources of an owner exactly these, in the kernel too, and touches no other owner's.
func TestPrune(t *testing.T) {
	n := newNode(t)
	mine := append(resource.Objects(n.both()...), resource.Objects(module("mine", "counter", "*", nil))...)
	if _, err := n.Apply(t.Context(), resource.Request{Resources: mine}); err != nil {
		t.Fatal(err)
	}
	fleet := func(names ...string) error {
		var all []resource.Object
		for _, name := range names {
			all = append(all, resource.Objects(module(name, "counter", "*", nil))...)
		}
		_, err := n.Apply(t.Context(), resource.Request{Resources: all, By: resource.Writer{Owner: "fleet"}, Prune: true})
		return err
	}
	running := func(want ...string) {
		t.Helper()
		chains, err := n.Chains(t.Context())
		if err != nil || len(chains) == 0 {
			t.Fatal(chains, err)
		}
		found := map[string]bool{}
		for _, c := range chains {
			for _, m := range c.Modules {
				found[m] = true
			}
		}
		for _, name := range want {
			if !found[name] {
				t.Errorf("%s does not run", name)
			}
		}
		if len(found) != len(want) {
			t.Errorf("%v run, want %v", found, want)
		}
		if stored, err := n.Store.Snapshot(); err != nil || !reflect.DeepEqual(stored, n.present()) {
			t.Errorf("stored is %v, not %v: %v", stored, n.present(), err)
		}
	}
	if err := fleet("a", "b"); err != nil {
		t.Fatal(err)
	}
	running("mine", "a", "b")
	var conflict *apierrors.Conflict
	if err := fleet("c", "mine"); !errors.As(err, &conflict) {
		t.Errorf("a resource of the user: %v", err)
	}
	running("mine", "a", "b")
	if err := fleet("b", "c"); err != nil {
		t.Fatal(err)
	}
	running("mine", "b", "c")
	if err := fleet(); err != nil {
		t.Fatal(err)
	}
	running("mine")
	if all, err := n.List(t.Context(), resource.Service); err != nil || len(all) != 2 {
		t.Errorf("services of the user: %v %v", all, err)
	}
	if m, err := n.Get(t.Context(), resource.Module, "mine"); err != nil || m.Meta().Owner != "" ||
		m.(*v1.Module).Metadata.Generation != 1 {
		t.Errorf("the user's module: %+v %v", m, err)
	}
}
