// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/kerb-edge/kerb/api/v1alpha1"
)

func put(all State, owner, name string, elements int) {
	s := v1alpha1.Set{Metadata: v1alpha1.ObjectMeta{Name: name, Owner: owner}}
	s.Spec.Elements = make([]string, elements)
	all.Put(ObjectOf(s))
}

// A node has at most MaxSets sets, half of them of one owner.
func TestMostSets(t *testing.T) {
	all := State{}
	for i := range MaxSets {
		put(all, []string{"", "kubernetes"}[i%2], fmt.Sprint("s", i), 0)
		if err := CheckElements(all, fmt.Sprint("s", i)); err != nil {
			t.Fatalf("%d sets: %v", i, err)
		}
	}
	put(all, "oakestra", "more", 0)
	if err := CheckElements(all, "more"); err == nil || !strings.Contains(err.Error(), "901 sets, and can have 900") {
		t.Errorf("one too many: %v", err)
	}
	delete(all[v1alpha1.KindSet], "more")
	delete(all[v1alpha1.KindSet], "s1")
	put(all, "", "more", 0)
	err := CheckElements(all, "more")
	if err == nil || !strings.Contains(err.Error(), "owner user would have 451 sets, and can have 450") {
		t.Errorf("one too many of the user: %v", err)
	}
}

// Sets of one owner leave room for sets of another one.
func TestElementsOfOwner(t *testing.T) {
	all := State{}
	for i := range 3 {
		put(all, "", fmt.Sprint("s", i), MaxAllElements/3)
	}
	err := CheckElements(all, "s0")
	want := "the sets of owner user would have 262143 elements together, and can have 131072; delete some"
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("all that there is: %v", err)
	}
	put(all, "", "s1", 0)
	put(all, "", "s2", maxOwnedElements-MaxAllElements/3)
	put(all, "kubernetes", "k", v1alpha1.MaxSetElements)
	for _, name := range []string{"s0", "k"} {
		if err := CheckElements(all, name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// What ChangeElements makes of elements is what sets of mathematics do, wherever in the set the changes are.
func TestChangeElements(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	some := func() (out []string) {
		for range random.IntN(6) {
			out = append(out, string(rune('a'+random.IntN(8))))
		}
		return out
	}
	for range 2000 {
		before, add, remove := slices.Compact(slices.Sorted(slices.Values(some()))), some(), some()
		want := map[string]bool{}
		for _, e := range slices.Concat(before, add) {
			want[e] = true
		}
		for _, e := range remove {
			if !slices.Contains(add, e) {
				delete(want, e)
			}
		}
		kept := slices.Clone(before)
		next, added, removed := ChangeElements(before, add, remove)
		if !slices.Equal(next, slices.Sorted(maps.Keys(want))) || !slices.Equal(before, kept) {
			t.Fatalf("%q with %q without %q: %q; before is %q now", kept, add, remove, next, before)
		}
		again, _, _ := ChangeElements(next, removed, added)
		if !slices.Equal(again, before) {
			t.Fatalf("%q with %q without %q added %q and removed %q", before, add, remove, added, removed)
		}
	}
}
