// SPDX-License-Identifier: Apache-2.0

package store

import (
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// testdata/schema-3.db.gz was written by the build of commit aa76e1d: desired(3), and the models in generations 1 to 3.
// All later builds read it, in full.
func TestStoreOfAnEarlierBuild(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	unpack(t, "testdata/schema-3.db.gz", path)
	want := desired(3)
	for _, name := range []string{"n0", "n1", "n2"} {
		m := modelOf(name, 3)
		want.Put(&m)
	}
	s := mustOpen(t, path)
	if r := s.Recovery(); r != nil {
		t.Fatal(r)
	}
	if diff := cmp.Diff(want, mustSnapshot(t, s)); diff != "" {
		t.Error(diff)
	}
	for _, name := range []string{"n0", "n1", "n2"} {
		if got := generations(t, s, name); !slices.Equal(got, []int64{2, 1}) {
			t.Errorf("earlier versions of %s: %v", name, got)
		}
	}
	mustCommit(t, s, want)
	s.Close()
	if r := mustOpen(t, path).Recovery(); r != nil {
		t.Errorf("after a commit: %v", r)
	}
}

func unpack(t *testing.T, from, to string) {
	t.Helper()
	in, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	packed, err := gzip.NewReader(in)
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(packed)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// The digest covers the buckets of kinds that are added after those that older files have, whatever the kinds are
// called.
func TestDigestOrder(t *testing.T) {
	var all [][]byte
	for _, name := range []string{"zones", "modelversions", "models", "alarms", "virtualservices", "services", "modules"} {
		all = append(all, []byte(name))
	}
	slices.SortFunc(all, byDigestOrder)
	var got []string
	for _, name := range all {
		got = append(got, string(name))
	}
	want := []string{"modules", "services", "virtualservices", "models", "modelversions", "alarms", "zones"}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
