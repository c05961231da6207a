// SPDX-License-Identifier: Apache-2.0

package store

import (
	"errors"
	"path/filepath"
	"slices"
	"testing"

	"go.etcd.io/bbolt"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/resource"
)

// Elements of a set are on the disk after each change of one, and are gone with the set.
func TestElements(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	set := v1alpha1.Set{TypeMeta: v1alpha1.TypeMeta{APIVersion: v1alpha1.APIVersion, Kind: v1alpha1.KindSet},
		Metadata: v1alpha1.ObjectMeta{Name: "bad", Generation: 1},
		Spec:     v1alpha1.SetSpec{Type: "ports", Elements: []string{"1", "2", "3"}}}
	stored := func(want ...string) {
		t.Helper()
		s, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		all, err := s.Snapshot()
		if got, _ := resource.Set.Get(all, "bad"); err != nil || !slices.Equal(got.Spec.Elements, want) {
			t.Errorf("%q, %v, want %q", got.Spec.Elements, err, want)
		}
	}
	change := func(do func(s *Store) error) {
		t.Helper()
		s, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(do(s), s.Close()); err != nil {
			t.Fatal(err)
		}
	}
	change(func(s *Store) error { return s.Commit(resource.StateOf(resource.ObjectOf(set))) })
	stored("1", "2", "3")
	change(func(s *Store) error { return s.CommitParts(resource.ObjectOf(set), []string{"7"}, []string{"2"}) })
	stored("1", "3", "7")
	set.Spec.Elements = []string{"1", "9"}
	change(func(s *Store) error {
		return s.CommitChanges(resource.Changes{Put: []resource.Object{resource.ObjectOf(set)}})
	})
	stored("1", "9")
	change(func(s *Store) error {
		return s.CommitChanges(resource.Changes{Remove: []resource.Ref{{Kind: v1alpha1.KindSet, Name: "bad"}}})
	})
	stored()
	change(func(s *Store) error { return s.Commit(resource.StateOf(resource.ObjectOf(set))) })
	stored("1", "9")
}

// A store whose elements are damaged is set aside when it is opened: an element that nothing vouches for, one that is
// missing, all of a set that are missing.
func TestDamagedElements(t *testing.T) {
	for name, damage := range map[string]func(sets *bbolt.Bucket) error{
		"added":     func(sets *bbolt.Bucket) error { return sets.Bucket([]byte("bad")).Put([]byte("8"), []byte{1}) },
		"missing":   func(sets *bbolt.Bucket) error { return sets.Bucket([]byte("bad")).Delete([]byte("2")) },
		"no sum":    func(sets *bbolt.Bucket) error { return sets.Bucket([]byte("bad")).Delete(keySum) },
		"no bucket": func(sets *bbolt.Bucket) error { return sets.DeleteBucket([]byte("bad")) },
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "state.db")
			set := v1alpha1.Set{TypeMeta: v1alpha1.TypeMeta{APIVersion: v1alpha1.APIVersion, Kind: v1alpha1.KindSet},
				Metadata: v1alpha1.ObjectMeta{Name: "bad", Generation: 1},
				Spec:     v1alpha1.SetSpec{Type: "ports", Elements: []string{"1", "2", "3"}}}
			open := func() *Store {
				t.Helper()
				s, err := Open(path)
				if err != nil {
					t.Fatal(err)
				}
				return s
			}
			s := open()
			if err := errors.Join(s.Commit(resource.StateOf(resource.ObjectOf(set))), s.update(func(tx *bbolt.Tx) error {
				return damage(tx.Bucket(partsOf(resource.Set)))
			})); err != nil {
				t.Fatal(err)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			s = open()
			defer s.Close()
			if r := s.Recovery(); r == nil || !errors.Is(r.Cause, ErrCorrupt) {
				t.Errorf("the damaged store is not set aside: %v", r)
			}
			if all, err := s.Snapshot(); err != nil || all.Len(resource.Set) != 0 || !s.RecoveryPending() {
				t.Errorf("%v, %v, recovery pending %v, want an empty store", all, err, s.RecoveryPending())
			}
		})
	}
}

// Changes of elements that are in the file already, as after a transaction of which only the last fdatasync failed,
// leave it as it is.
func TestElementsTwice(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	set := v1alpha1.Set{TypeMeta: v1alpha1.TypeMeta{APIVersion: v1alpha1.APIVersion, Kind: v1alpha1.KindSet},
		Metadata: v1alpha1.ObjectMeta{Name: "bad"}, Spec: v1alpha1.SetSpec{Type: "ports", Elements: []string{"1", "2"}}}
	s := mustOpen(t, path)
	if err := s.Commit(resource.StateOf(resource.ObjectOf(set))); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := s.CommitParts(resource.ObjectOf(set), []string{"7"}, []string{"2"}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	set.Spec.Elements = []string{"1", "7"}
	checkStored(t, "opened again", mustOpen(t, path), resource.StateOf(resource.ObjectOf(set)))
}
