// SPDX-License-Identifier: Apache-2.0

package history

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/resource"
)

// What was updated gets back what it was, what was created is deleted; a change of an orchestrator is reverted by force
// only, and one that was refused not at all.
func TestReverse(t *testing.T) {
	l := openLog(t, t.TempDir())
	done, was := update("old", "new")
	done.Changes = append(done.Changes, v1alpha1.Change{Action: "create", Kind: v1alpha1.KindModule, Name: "added"})
	l.Add(done, was)
	done.Owner = "kubernetes"
	l.Add(done, was)
	l.Add(refusal("no"), nil)
	done.Owner = v1alpha1.OwnerUser
	l.Add(done, nil)
	for _, c := range []struct {
		r    v1alpha1.RevertRequest
		want string // a part of the error
	}{
		{v1alpha1.RevertRequest{Number: 1}, ""},
		{v1alpha1.RevertRequest{Number: 2}, "change 2 was made by kubernetes, which would make it again"},
		{v1alpha1.RevertRequest{Number: 2, Force: true}, ""},
		{v1alpha1.RevertRequest{Number: 3, Force: true}, "change 3 was refused"},
		{v1alpha1.RevertRequest{Number: 4}, "has no record of the previous state of all its resources"},
	} {
		back, err := l.Reverse(c.r)
		var conflict *apierrors.Conflict
		if c.want != "" {
			if !errors.As(err, &conflict) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%+v: got %v, want %q", c.r, err, c.want)
			}
			continue
		}
		if err != nil || len(back.Put) != 1 || back.Owner != v1alpha1.OwnerUser ||
			fmt.Sprint(back.Remove) != fmt.Sprint([]resource.Ref{{Kind: v1alpha1.KindModule, Name: "added"}}) {
			t.Errorf("%+v: %+v, %v", c.r, back, err)
		}
	}
}

// What is not as the change left it, or has another owner, is not reverted. The error names the later change.
func TestCheckSince(t *testing.T) {
	l := openLog(t, t.TempDir())
	present := func(text string) resource.State {
		_, now := update(text, "")
		s := resource.State{}
		s.Put(now[0])
		return s
	}
	record := func(was, is string) v1alpha1.ChangeRecord {
		r, before := update(was, is)
		_, after := update(is, "")
		r.Changes[0].After = resource.KindOf(after[0]).Summary(after[0])
		l.Add(r, before)
		r.Number = l.List(v1alpha1.ChangesRequest{Limit: 1})[0].Number
		return r
	}
	first := record("one", "two")
	if err := l.CheckSince(first, present("two")); err != nil {
		t.Error(err)
	}
	record("two", "three")
	for want, now := range map[string]resource.State{
		"is not as change 1 left it, but as change 2 did: revert later changes first": present("three"),
		"is not as change 1 left it": {},
	} {
		if err := l.CheckSince(first, now); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	first.Owner = "kubernetes"
	if err := l.CheckSince(first, present("two")); err == nil || !strings.Contains(err.Error(), "belongs to user since") {
		t.Errorf("of another owner: %v", err)
	}
}
