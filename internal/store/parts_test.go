// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
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

// A change of elements waits for one fdatasync and writes nothing into the file. Whenever the process is killed, and
// whatever else is written meanwhile, the next one has all of them.
func TestElementsInJournal(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	set := v1alpha1.Set{TypeMeta: v1alpha1.TypeMeta{APIVersion: v1alpha1.APIVersion, Kind: v1alpha1.KindSet},
		Metadata: v1alpha1.ObjectMeta{Name: "bad"}, Spec: v1alpha1.SetSpec{Type: "ports", Elements: []string{"3"}}}
	s, want := mustOpen(t, path), resource.StateOf(resource.ObjectOf(set), moduleCalled("m1", 1, 1))
	if err := s.Commit(want); err != nil {
		t.Fatal(err)
	}
	syncs, changed := 0, 0
	real := syncRecord
	syncRecord = func(f *os.File) error { syncs++; return real(f) }
	defer func() { syncRecord = real }()
	random := rand.New(rand.NewPCG(1, 1))
	some := func() []string { return []string{strconv.Itoa(random.IntN(6)), strconv.Itoa(random.IntN(6))} }
	for i := range 200 {
		before, at := readFile(t, path), syncs
		next, added, removed := resource.ChangeElements(set.Spec.Elements, some()[:random.IntN(3)], some())
		set.Spec.Elements, set.Metadata.Generation = next, int64(i)
		if err := s.CommitParts(resource.ObjectOf(set), added, removed); err != nil {
			t.Fatal(err)
		}
		if changed = syncs - at; changed != 1 || !bytes.Equal(before, readFile(t, path)) {
			t.Fatalf("change %d: %d syncs of records, and the file is another: %t", i, changed,
				!bytes.Equal(before, readFile(t, path)))
		}
		want.Put(resource.ObjectOf(set))
		checkStored(t, "open", s, want)
		switch random.IntN(6) {
		case 0:
			s, path = killed(t, path)
		case 1:
			s.flush()
		case 2:
			o := moduleCalled("m1", int64(i), i)
			mustChange(t, s, resource.Changes{Put: []resource.Object{o}})
			want.Put(o)
		case 3: // all elements, by the file
			set.Spec.Elements = []string{"1", strconv.Itoa(2 + random.IntN(4))}
			mustChange(t, s, resource.Changes{Put: []resource.Object{resource.ObjectOf(set)}})
			want.Put(resource.ObjectOf(set))
		}
		checkStored(t, "after", s, want)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	checkStored(t, "closed", mustOpen(t, path), want)
}
