// SPDX-License-Identifier: Apache-2.0

package store

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/resource"
)

// moduleCalled is a module whose stored size depends on fill.
func moduleCalled(name string, generation int64, fill int) resource.Object {
	m := v1alpha1.Module{TypeMeta: v1alpha1.TypeMeta{APIVersion: v1alpha1.APIVersion, Kind: v1alpha1.KindModule},
		Metadata: v1alpha1.ObjectMeta{Name: name, Generation: generation},
		Spec:     v1alpha1.ModuleSpec{Package: strings.Repeat("p", fill)}}
	return resource.ObjectOf(m)
}

func mustChange(t *testing.T, s *Store, c resource.Changes) {
	t.Helper()
	if err := s.CommitChanges(c); err != nil {
		t.Fatal(err)
	}
}

// killed returns a store that a process had open which was killed now: what files it leaves, opened by the next one.
func killed(t *testing.T, path string) (*Store, string) {
	t.Helper()
	next := filepath.Join(t.TempDir(), "state.db")
	for from, to := range map[string]string{path: next, journalOf(path): journalOf(next)} {
		data, err := os.ReadFile(from)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err = errors.Join(err, os.WriteFile(to, data, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	return mustOpen(t, next), next
}

func checkStored(t *testing.T, when string, s *Store, want resource.State) {
	t.Helper()
	got := mustSnapshot(t, s)
	for _, set := range []resource.State{got, want} { // kinds without resources do not count
		for kind, all := range set {
			if len(all) == 0 {
				delete(set, kind)
			}
		}
	}
	if diff := cmp.Diff(want, got); diff != "" || s.Recovery() != nil {
		t.Fatalf("%s: %v, %s", when, s.Recovery(), diff)
	}
}

// A change waits for one fdatasync, and writes nothing into the file of bbolt.
func TestOneSyncForEachChange(t *testing.T) {
	path := filled(t)
	before, syncs := readFile(t, path), 0
	real := syncRecord
	syncRecord = func(f *os.File) error { syncs++; return real(f) }
	defer func() { syncRecord = real }()
	s := mustOpen(t, path)
	want := desired(100)
	for i := range 10 {
		o := moduleCalled("m1", int64(i), i)
		mustChange(t, s, resource.Changes{Put: []resource.Object{o}})
		want.Put(o)
	}
	if string(readFile(t, path)) != string(before) || syncs != 10 {
		t.Errorf("%d syncs for 10 changes; the file is as before: %t", syncs, string(readFile(t, path)) == string(before))
	}
	next, _ := killed(t, path)
	checkStored(t, "killed", next, want)
	if err := errors.Join(next.Close(), s.Close()); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(journalOf(path)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the journal of a store that is closed: %v", err)
	}
	s = mustOpen(t, path)
	checkStored(t, "closed", s, want)
}

// A record is what json.Marshal makes of it.
func TestRecordIsJSON(t *testing.T) {
	odd := []stored{{"Module", `a "b" <c>`, json.RawMessage(`{"x":"\\u003c"}`)}, {Kind: "Service", Name: "gone"},
		{"Set", "s", json.RawMessage("null")}}
	for n := range len(odd) + 1 {
		r := record{Base: []byte{1, 2}, Nonce: "n", Changes: append([]stored{}, odd[:n]...)}
		want, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := r.appendTo([]byte("head")); err != nil || string(got) != "head"+string(want) {
			t.Errorf("%s (%v), want %s", got, err, want)
		}
	}
}

// Whatever is changed, in whichever way, is there after a kill, and after an orderly end, and nothing else.
func TestJournalAgainstModel(t *testing.T) {
	for seed := range uint64(10) {
		r := rand.New(rand.NewPCG(seed, 1))
		path := filepath.Join(t.TempDir(), "state.db")
		s, want := mustOpen(t, path), resource.State{}
		for step := range 60 {
			name := fmt.Sprint("m", r.IntN(4))
			when := fmt.Sprintf("seed %d, step %d", seed, step)
			switch r.IntN(10) {
			case 0:
				s.flush()
			case 1:
				want.Put(moduleCalled(name, int64(step), r.IntN(100)))
				mustCommit(t, s, want)
			case 2:
				s, path = killed(t, path)
			case 3:
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
				s = mustOpen(t, path)
			case 4, 5:
				delete(want[v1alpha1.KindModule], name)
				mustChange(t, s, resource.Changes{Remove: []resource.Ref{{Kind: v1alpha1.KindModule, Name: name}}})
			default: // equal lengths are the hardest case, as what is behind a record fits then; some are too large
				o := moduleCalled(name, int64(step%10), []int{10, 10, 10, 30 << 10, 70 << 10}[r.IntN(5)])
				mustChange(t, s, resource.Changes{Put: []resource.Object{o}})
				want.Put(o)
			}
			checkStored(t, when, s, want)
		}
		last, _ := killed(t, path)
		checkStored(t, fmt.Sprintf("seed %d, killed", seed), last, want)
	}
}

// A record that is not whole was no change: its process was killed before it answered.
func TestTornRecord(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	s, want := mustOpen(t, path), resource.State{}
	for i := range 3 {
		o := moduleCalled(fmt.Sprint("m", i), 1, 5)
		mustChange(t, s, resource.Changes{Put: []resource.Object{o}})
		if i < 2 {
			want.Put(o)
		}
	}
	s.journal.timer.Stop() // so that only the journal has the changes, however long the rest takes
	data := readFile(t, journalOf(path))
	begin := 0
	for range 2 {
		begin += recordHead + int(binary.LittleEndian.Uint32(data[begin:]))
	}
	end := int(s.journal.end)
	for at := begin; at < end; at += 13 {
		torn := append(append([]byte{}, data[:at]...), make([]byte, journalSize-at)...)
		if at%2 == 0 {
			torn = append(append([]byte{}, data...)[:at], noise(uint64(at), journalSize-at)...)
		}
		if err := os.WriteFile(journalOf(path), torn, 0o600); err != nil {
			t.Fatal(err)
		}
		next, nextPath := killed(t, path)
		checkStored(t, fmt.Sprint("torn at ", at), next, want)
		mustChange(t, next, resource.Changes{Put: []resource.Object{moduleCalled("m9", 1, 5)}})
		again, _ := killed(t, nextPath)
		if got := mustSnapshot(t, again); got.Len(resource.Module) != 3 {
			t.Fatalf("torn at %d, then a change: %d modules", at, got.Len(resource.Module))
		}
	}
}

// A record that is damaged, or that is left from before behind a new one, does not count, even if it was made for a
// file like this one.
func TestRecordOfBefore(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	s := mustOpen(t, path)
	one, two := moduleCalled("m1", 1, 5), moduleCalled("m2", 1, 5)
	for _, o := range []resource.Object{one, two} {
		mustChange(t, s, resource.Changes{Put: []resource.Object{o}})
	}
	data := readFile(t, journalOf(path))
	at := strings.LastIndex(string(data), "ppp")
	overwrite(t, journalOf(path), int64(at), []byte("q"))
	next, _ := killed(t, path)
	checkStored(t, "one byte is another", next, resource.State{v1alpha1.KindModule: {"m1": one}})
	overwrite(t, journalOf(path), int64(at), []byte("p"))

	mustCommit(t, s, resource.State{})
	mustChange(t, s, resource.Changes{Put: []resource.Object{one}})
	next, _ = killed(t, path)
	checkStored(t, "m2 was deleted", next, resource.State{v1alpha1.KindModule: {"m1": one}})
}

// A journal that was made for another file does not count: that of a backup, or one that has all of it already.
func TestJournalOfOtherFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	s := mustOpen(t, path)
	empty := readFile(t, path)
	first := moduleCalled("m", 1, 5)
	mustChange(t, s, resource.Changes{Put: []resource.Object{first}})
	s.flush()
	backup := readFile(t, path)
	second := moduleCalled("m", 2, 5)
	mustChange(t, s, resource.Changes{Put: []resource.Object{second}})
	journal := readFile(t, journalOf(path))
	s.flush()
	mustChange(t, s, resource.Changes{Remove: []resource.Ref{resource.RefOf(first)}})
	s.flush()
	for name, c := range map[string]struct {
		file []byte
		want resource.State
	}{
		"before all of it": {empty, resource.State{}},
		"its own":          {backup, resource.State{v1alpha1.KindModule: {"m": second}}},
		"after all of it":  {readFile(t, path), resource.State{}},
	} {
		at := filepath.Join(t.TempDir(), "state.db")
		if err := errors.Join(os.WriteFile(at, c.file, 0o600), os.WriteFile(journalOf(at), journal, 0o600)); err != nil {
			t.Fatal(err)
		}
		next := mustOpen(t, at)
		checkStored(t, name, next, c.want)
	}
}

// On a disk without room for a journal, changes are those of the file.
func TestNoRoomForJournal(t *testing.T) {
	dir := t.TempDir()
	onTmpfs(t, dir, "200k", func() {
		path := filepath.Join(dir, "state.db")
		s, want := mustOpen(t, path), resource.State{}
		for i := range 3 {
			o := moduleCalled(fmt.Sprint("m", i), 1, 5)
			mustChange(t, s, resource.Changes{Put: []resource.Object{o}})
			want.Put(o)
		}
		if _, err := os.Stat(journalOf(path)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the journal: %v", err)
		}
		next, _ := killed(t, path)
		checkStored(t, "killed", next, want)
	})
}

// When the file cannot be written, the journal keeps what it has and takes no more.
func TestFullDiskWithJournal(t *testing.T) {
	dir := t.TempDir()
	onTmpfs(t, dir, "1m", func() {
		path := filepath.Join(dir, "state.db")
		s, want := mustOpen(t, path), resource.State{}
		change := func(name string) error {
			o := moduleCalled(name, 1, 40<<10)
			err := s.CommitChanges(resource.Changes{Put: []resource.Object{o}})
			if err == nil {
				want.Put(o)
			}
			return err
		}
		if err := change("m1"); err != nil {
			t.Error(err)
		}
		fillUp(t, dir)
		if err := change("m2"); err != nil {
			t.Errorf("with room in the journal: %v", err)
		}
		s.flush()
		if err := change("m3"); !errors.Is(err, ErrFull) {
			t.Errorf("a file that cannot be written: %v", err)
		}
		next, _ := killed(t, path)
		checkStored(t, "killed", next, want)
		if err := os.Remove(filepath.Join(dir, "ballast")); err != nil {
			t.Error(err)
		}
		if err := change("m4"); err != nil {
			t.Errorf("with room again: %v", err)
		}
		next, _ = killed(t, path)
		checkStored(t, "killed again", next, want)
	})
}

// A large module is deleted, and applied again as it was: the record of the deletion must not come back.
func TestAppliedAgainAsItWas(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	s := mustOpen(t, path)
	large := moduleCalled("fw", 1, 70<<10)
	mustChange(t, s, resource.Changes{Put: []resource.Object{large}})
	mustChange(t, s, resource.Changes{Remove: []resource.Ref{resource.RefOf(large)}})
	mustChange(t, s, resource.Changes{Put: []resource.Object{large}})
	next, _ := killed(t, path)
	checkStored(t, "killed", next, resource.State{v1alpha1.KindModule: {"fw": large}})
}

// What was deleted by writing the file does not come back by the record of its creation, which the file has already.
func TestDeletedTogether(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	s := mustOpen(t, path)
	mustChange(t, s, resource.Changes{Put: []resource.Object{moduleCalled("fw", 1, 5)}})
	s.flush()
	mustCommit(t, s, resource.State{})
	next, _ := killed(t, path)
	checkStored(t, "killed", next, resource.State{})
}

// A resource comes and goes until the journal is full, and the file is written instead.
func TestJournalIsFull(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	s := mustOpen(t, path)
	o := moduleCalled("svc", 1, 700)
	for i := range 2000 {
		at := s.journal.end
		c := resource.Changes{Put: []resource.Object{o}}
		if i%2 == 1 {
			c = resource.Changes{Remove: []resource.Ref{resource.RefOf(o)}}
		}
		mustChange(t, s, c)
		if s.journal.end < at { // it was full
			next, _ := killed(t, path)
			want, got := mustSnapshot(t, s), mustSnapshot(t, next)
			if fmt.Sprint(want.Names(resource.Module)) != fmt.Sprint(got.Names(resource.Module)) {
				t.Errorf("change %d: %v, after a kill %v", i, want.Names(resource.Module), got.Names(resource.Module))
			}
		}
	}
}

// The journal that a killed process left has another size: its records stay.
func TestRecordsSurviveOpening(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	s := mustOpen(t, path)
	o := moduleCalled("fw", 1, 5)
	mustChange(t, s, resource.Changes{Put: []resource.Object{o}})
	next, nextPath := killed(t, path)
	if err := os.Truncate(journalOf(nextPath), journalSize-1); err != nil { // as another build's size
		t.Fatal(err)
	}
	if err := next.journal.open(); err != nil {
		t.Fatal(err)
	}
	again, _ := killed(t, nextPath)
	checkStored(t, "killed", again, resource.State{v1alpha1.KindModule: {"fw": o}})
}

// A journal is of one file: a new one, without resources as the old one was at first, takes nothing over.
func TestJournalOfAnotherFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	s := mustOpen(t, path)
	mustChange(t, s, resource.Changes{Put: []resource.Object{moduleCalled("fw", 1, 5)}})
	left, err := os.ReadFile(journalOf(path))
	if err != nil {
		t.Fatal(err)
	}
	next := filepath.Join(t.TempDir(), "state.db")
	if err := os.WriteFile(journalOf(next), left, 0o600); err != nil {
		t.Fatal(err)
	}
	checkStored(t, "a new file", mustOpen(t, next), resource.State{})
}

// Only the last fdatasync of a transaction fails: the file has it, and with it another base. Changes that follow
// survive a kill.
func TestLastSyncOfFileFails(t *testing.T) {
	path := filled(t)
	s, want := mustOpen(t, path), desired(100)
	large := func(name string) resource.Object { return moduleCalled(name, 1, 2*maxRecord) }
	real := updateFile
	defer func() { updateFile = real }()
	updateFile = func(db *bbolt.DB, do func(*bbolt.Tx) error) error { return errors.Join(real(db, do), unix.EIO) }
	if err := s.CommitChanges(resource.Changes{Put: []resource.Object{large("failed")}}); !errors.Is(err, unix.EIO) {
		t.Fatal(err)
	}
	updateFile = real
	small := moduleCalled("small", 1, 5)
	mustChange(t, s, resource.Changes{Put: []resource.Object{small}})
	want.Put(small)
	want.Put(large("failed")) // what CommitChanges documents
	next, _ := killed(t, path)
	checkStored(t, "killed", next, want)
}

// A transaction that fails before its last page leaves the journal in use.
func TestFileCannotBeWritten(t *testing.T) {
	path := filled(t)
	s, want := mustOpen(t, path), desired(100)
	refused := errors.New("refused")
	if err := s.update(func(*bbolt.Tx) error { return refused }); !errors.Is(err, refused) {
		t.Fatal(err)
	}
	before := readFile(t, path)
	small := moduleCalled("small", 1, 5)
	mustChange(t, s, resource.Changes{Put: []resource.Object{small}})
	want.Put(small)
	if string(readFile(t, path)) != string(before) {
		t.Error("the change has written the file")
	}
	next, _ := killed(t, path)
	checkStored(t, "killed", next, want)
}

// A record that could not be synced is taken back on the disk, too: it may be there already.
func TestUnsyncedRecordIsTakenBack(t *testing.T) {
	path := filled(t)
	s := mustOpen(t, path)
	var heads []uint32 // of the record, at each sync
	real := syncRecord
	defer func() { syncRecord = real }()
	syncRecord = func(*os.File) error {
		heads = append(heads, binary.LittleEndian.Uint32(readFile(t, journalOf(path))))
		return unix.EIO
	}
	err := s.CommitChanges(resource.Changes{Put: []resource.Object{moduleCalled("m1", 1, 5)}})
	if !errors.Is(err, unix.EIO) || len(heads) != 2 || heads[0] == 0 || heads[1] != 0 {
		t.Errorf("lengths of the record at each sync: %v, %v", heads, err)
	}
}
