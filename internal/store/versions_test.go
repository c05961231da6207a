// SPDX-License-Identifier: Apache-2.0

package store

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/resource"
)

func modelOf(name string, generation int64) v1alpha1.Model {
	return v1alpha1.Model{
		TypeMeta: v1alpha1.TypeMeta{APIVersion: v1alpha1.APIVersion, Kind: v1alpha1.KindModel},
		Metadata: v1alpha1.ObjectMeta{Name: name, Generation: generation},
		Spec:     v1alpha1.ModelSpec{Document: fmt.Sprintf(`{"format":"kerb-model/1","version":%d}`, generation)},
	}
}

func generations(t *testing.T, s *Store, name string) (out []int64) {
	t.Helper()
	all, err := s.Versions(resource.Model, name)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range all {
		if v.Version != uint32(v.Generation) || v.Replaced.IsZero() || v.Digest != modelOf(name, v.Generation).Spec.Digest() {
			t.Errorf("%+v", v)
		}
		out = append(out, v.Generation)
	}
	return out
}

// The last versions of a model are kept, whichever way it was changed, and come back whole.
func TestModelVersions(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	s := mustOpen(t, path)
	d := desired(2)
	mustCommit(t, s, d)
	for g := int64(2); g <= 8; g++ {
		next := d.Clone()
		m := modelOf("n1", g)
		next.Put(&m)
		var err error
		if g%2 == 0 {
			err = s.CommitChanges(resource.Changes{Put: resource.Objects(m)})
		} else {
			err = s.Commit(next)
		}
		if err != nil {
			t.Fatal(err)
		}
		d = next
	}
	s.Close()
	s = mustOpen(t, path)
	if got := generations(t, s, "n1"); !slices.Equal(got, []int64{7, 6, 5, 4, 3}) {
		t.Errorf("kept %v", got)
	}
	if got := generations(t, s, "n0"); len(got) != 0 {
		t.Errorf("the other has %v", got)
	}
	if document, err := s.Document(resource.Model, "n1", 4); err != nil || document != modelOf("n1", 4).Spec.Document {
		t.Errorf("%s, %v", document, err)
	}
	var missing *apierrors.NotFound
	if _, err := s.Document(resource.Model, "n1", 2); !errors.As(err, &missing) {
		t.Errorf("got %v", err)
	}
	if diff := cmp.Diff(d, mustSnapshot(t, s)); diff != "" || s.RecoveryPending() {
		t.Error(diff)
	}
}

// A change of labels keeps no version; a model that is deleted takes its versions with it.
func TestModelVersionsEnd(t *testing.T) {
	s := mustOpen(t, filepath.Join(t.TempDir(), "state.db"))
	put := func(m v1alpha1.Model) {
		t.Helper()
		if err := s.CommitChanges(resource.Changes{Put: resource.Objects(m)}); err != nil {
			t.Fatal(err)
		}
	}
	m := modelOf("m", 1)
	put(m)
	m.Metadata.Labels, m.Metadata.Generation = map[string]string{"a": "b"}, 2
	put(m)
	if got := generations(t, s, "m"); len(got) != 0 {
		t.Errorf("kept %v", got)
	}
	put(modelOf("m", 3))
	put(modelOf("m0", 3)) // whose name begins alike
	put(modelOf("m0", 4))
	if err := s.CommitChanges(
		resource.Changes{Remove: []resource.Ref{{Kind: v1alpha1.KindModel, Name: "m"}}}); err != nil {
		t.Fatal(err)
	}
	if got := generations(t, s, "m"); len(got) != 0 {
		t.Errorf("kept %v", got)
	}
	if got := generations(t, s, "m0"); !slices.Equal(got, []int64{3}) {
		t.Errorf("kept %v", got)
	}
	if err := s.Commit(resource.State{}); err != nil {
		t.Fatal(err)
	}
	if got := generations(t, s, "m0"); len(got) != 0 {
		t.Errorf("kept %v", got)
	}
}
