// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.etcd.io/bbolt"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/lab/wait"
	"github.com/kerb-edge/kerb/internal/resource"
)

func TestRoundTrip(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	want := desired(3)
	s := mustOpen(t, path)
	if got := mustSnapshot(t, s); len(got) != 0 {
		t.Errorf("a new store holds %v", got)
	}
	mustCommit(t, s, want)
	s.Close()

	s = mustOpen(t, path)
	if diff := cmp.Diff(want, mustSnapshot(t, s)); diff != "" {
		t.Error(diff)
	}
	if s.RecoveryPending() || s.Recovery() != nil {
		t.Error("recovered without damage")
	}
	delete(want[v1alpha1.KindModule], "m1")
	mustCommit(t, s, want)
	if diff := cmp.Diff(want, mustSnapshot(t, s)); diff != "" {
		t.Error(diff)
	}
}

func TestStatusIsNotStored(t *testing.T) {
	s := mustOpen(t, filepath.Join(t.TempDir(), "state.db"))
	d := desired(1)
	module := d[v1alpha1.KindModule]["m0"].(*v1alpha1.Module)
	module.Status = &v1alpha1.ModuleStatus{Memory: 1}
	d[v1alpha1.KindService]["s0"].(*v1alpha1.Service).Status = &v1alpha1.ServiceStatus{Addresses: []string{"10.0.0.1/24"}}
	d[v1alpha1.KindVirtualService]["v0"].(*v1alpha1.VirtualService).Status = &v1alpha1.VirtualServiceStatus{
		Source: v1alpha1.SourceStatic}
	d[v1alpha1.KindModel]["n0"].(*v1alpha1.Model).Status = &v1alpha1.ModelStatus{}
	mustCommit(t, s, d)
	if module.Status == nil {
		t.Error("Commit changed its argument")
	}
	if diff := cmp.Diff(desired(1), mustSnapshot(t, s)); diff != "" {
		t.Error("status was stored", diff)
	}
}

func TestDamage(t *testing.T) {
	for name, damage := range map[string]func(t *testing.T, path string){
		"empty":     func(t *testing.T, path string) { truncate(t, path, 0) },
		"short":     func(t *testing.T, path string) { truncate(t, path, 100) },
		"truncated": func(t *testing.T, path string) { truncate(t, path, 9000) },
		"half":      func(t *testing.T, path string) { truncate(t, path, size(t, path)/2) },
		"garbage":   func(t *testing.T, path string) { overwrite(t, path, 0, noise(1, int(size(t, path)))) },
		"text":      func(t *testing.T, path string) { overwrite(t, path, 0, []byte(strings.Repeat("hello\n", 3000))) },
		"metas":     func(t *testing.T, path string) { overwrite(t, path, 0, make([]byte, 8192)) },
		"value":     flipValue,
		"middle":    func(t *testing.T, path string) { overwrite(t, path, 8192, noise(2, int(size(t, path))-8192)) },
	} {
		t.Run(name, func(t *testing.T) {
			path := filled(t)
			damage(t, path)
			damaged := readFile(t, path)
			s := mustOpen(t, path)
			recovery := s.Recovery()
			if recovery == nil || !s.RecoveryPending() {
				t.Fatal("damage was not reported")
			}
			if !errors.Is(recovery.Cause, ErrCorrupt) {
				t.Errorf("cause is %v", recovery.Cause)
			}
			if string(readFile(t, recovery.Path)) != string(damaged) {
				t.Error("the damaged file was not kept as it was")
			}
			checkFreshUntilAcknowledged(t, s, path)
		})
	}
}

// A file that has lost only pages that are free has lost nothing; bbolt would write behind its end.
func TestTruncatedFreePages(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	s := mustOpen(t, path)
	d := resource.State{}
	for _, size := range []int{200_000, 10, 10, 10} { // the large one leaves free pages at the end
		m := modelOf("m", 1)
		m.Spec.Document = `"` + strings.Repeat("x", size) + `"`
		d = resource.State{}
		d.Put(&m)
		mustCommit(t, s, d)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	truncate(t, path, 32768)
	s = mustOpen(t, path)
	if diff := cmp.Diff(d, mustSnapshot(t, s)); s.Recovery() != nil || diff != "" {
		t.Errorf("recovery is %v, resources differ: %s", s.Recovery(), diff)
	}
	checkWrites(t, s, path)
}

// TestDamagedHeaders: what bbolt writes in front of resources is covered by no digest. Whatever stands there, the store
// has all resources or is set aside, without much memory, and what is written to it can be read again.
func TestDamagedHeaders(t *testing.T) {
	want := desired(40)
	path := filepath.Join(t.TempDir(), "state.db")
	fill(t, path, 40)
	original := readFile(t, path)
	const pageSize, headers = 4096, 64 // the header of a page, and those of its first elements
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	opened, stride := 0, pageSize*4
	if testing.Short() {
		stride *= 4
	}
	for page := 2 * pageSize; page < len(original); page += stride {
		for at := page; at < page+headers; at += 2 {
			for _, value := range []uint16{1, 0xffff} {
				path = filepath.Join(t.TempDir(), "state.db")
				data := bytes.Clone(original)
				binary.NativeEndian.PutUint16(data[at:], value)
				if err := os.WriteFile(path, data, 0o600); err != nil {
					t.Fatal(err)
				}
				s := mustOpen(t, path)
				if got := mustSnapshot(t, s); s.Recovery() == nil && !cmp.Equal(want, got) {
					t.Errorf("%#x at %#x went unnoticed: %s", value, at, cmp.Diff(want, got))
				}
				checkWrites(t, s, path)
				opened++
			}
		}
	}
	runtime.ReadMemStats(&after)
	if got := (after.TotalAlloc - before.TotalAlloc) / uint64(opened); got > 16<<20 {
		t.Errorf("a damaged store took %d MiB", got>>20)
	}
}

// checkWrites changes a store, and reads it again from the file.
func checkWrites(t *testing.T, s *Store, path string) {
	t.Helper()
	mustCommit(t, s, desired(2))
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	s = mustOpen(t, path)
	defer s.Close()
	if diff := cmp.Diff(desired(2), mustSnapshot(t, s)); s.Recovery() != nil || diff != "" {
		t.Errorf("written and read differ: %v, %s", s.Recovery(), diff)
	}
}

// A process that was killed while it copied the store leaves a file that the next one replaces.
func TestKilledWhileCopying(t *testing.T) {
	path := filled(t)
	left := path + ".new"
	if err := os.WriteFile(left, noise(3, 10000), 0o600); err != nil {
		t.Fatal(err)
	}
	s := mustOpen(t, path)
	if diff := cmp.Diff(desired(100), mustSnapshot(t, s)); diff != "" {
		t.Error(diff)
	}
	checkWrites(t, s, path)
	if _, err := os.Stat(left); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it is still there: %v", err)
	}
}

func checkFreshUntilAcknowledged(t *testing.T, s *Store, path string) {
	t.Helper()
	if got := mustSnapshot(t, s); len(got) != 0 {
		t.Errorf("a recovered store holds %v", got)
	}
	mustCommit(t, s, desired(2))
	s.Close()
	s = mustOpen(t, path)
	if s.Recovery() != nil || !s.RecoveryPending() {
		t.Error("the flag must outlive the process, the recovery must not")
	}
	if err := s.Acknowledge(desired(3)); err != nil || s.RecoveryPending() {
		t.Errorf("acknowledged: %v, %v", s.RecoveryPending(), err)
	}
	if diff := cmp.Diff(desired(3), mustSnapshot(t, s)); diff != "" {
		t.Error("acknowledged and stored differ", diff)
	}
}

// TestRandomDamage must neither panic nor hang, and what it returns must be what was stored, or nothing.
func TestRandomDamage(t *testing.T) {
	original := readFile(t, filled(t))
	want := desired(100)
	rounds := 300
	if testing.Short() {
		rounds = 30
	}
	for seed := range rounds {
		path := filepath.Join(t.TempDir(), "state.db")
		r := rand.New(rand.NewPCG(uint64(seed), 7))
		data := append([]byte(nil), original...)
		at, n := r.IntN(len(data)), 1+r.IntN(200)
		copy(data[at:], noise(uint64(seed), n))
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := Open(path)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		got := mustSnapshot(t, s)
		if s.Recovery() == nil && len(got) != 0 && !cmp.Equal(want, got) {
			t.Errorf("seed %d: damage at %d+%d went unnoticed: %s", seed, at, n, cmp.Diff(want, got))
		}
		mustCommit(t, s, want)
		s.Close()
	}
}

func TestTwoOpeners(t *testing.T) {
	path := filled(t)
	s := mustOpen(t, path)
	if _, err := Open(path); !errors.Is(err, ErrLocked) {
		t.Errorf("the second opener got %v", err)
	}
	mustCommit(t, s, desired(1))
}

// TestOpenWhileReplaced: who waits for a store that is replaced meanwhile gets the new file, not the one it waited for.
func TestOpenWhileReplaced(t *testing.T) {
	path := filled(t)
	first := mustOpen(t, path)
	second := make(chan *Store)
	go func() {
		s, err := Open(path)
		if err != nil {
			t.Error(err)
		}
		second <- s
	}()
	wait.Until(t, "the second opener has the file", func() bool { return openFiles(t, path) == 2 })
	mustCommit(t, first, desired(3))
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	s := <-second
	if s == nil {
		return
	}
	defer s.Close()
	if diff := cmp.Diff(desired(3), mustSnapshot(t, s)); diff != "" {
		t.Error(diff)
	}
}

// openFiles counts the descriptors of this process for a file.
func openFiles(t *testing.T, path string) (n int) {
	t.Helper()
	links, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, link := range links {
		if target, err := os.Readlink(link); err == nil && target == path {
			n++
		}
	}
	return n
}

// A change of virtual services alone leaves the rest, and a file that vouches for all of it.
func TestCommitVirtualServices(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	s, want := mustOpen(t, path), desired(3)
	mustCommit(t, s, want)
	changed, _ := resource.VirtualService.Get(want, "v1")
	changed.Metadata.Generation = 2
	stored := changed
	stored.Status = &v1alpha1.VirtualServiceStatus{Source: v1alpha1.SourceStatic}
	gone := []resource.Ref{{Kind: v1alpha1.KindVirtualService, Name: "v0"},
		{Kind: v1alpha1.KindVirtualService, Name: "no-such"}}
	if err := s.CommitChanges(resource.Changes{Put: resource.Objects(stored), Remove: gone}); err != nil {
		t.Fatal(err)
	}
	s.Close()
	want.Put(&changed)
	delete(want[v1alpha1.KindVirtualService], "v0")
	s = mustOpen(t, path)
	if diff := cmp.Diff(want, mustSnapshot(t, s)); diff != "" || s.RecoveryPending() {
		t.Error(diff)
	}
}

// A file of version 1, which had neither virtual services nor models, is read, and becomes one of today with the first
// change.
func TestOlderSchema(t *testing.T) {
	path := filled(t)
	db, err := bbolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Update(func(tx *bbolt.Tx) error {
		meta := tx.Bucket(bucketMeta)
		return errors.Join(tx.DeleteBucket(bucketOf(resource.VirtualService)), tx.DeleteBucket(bucketOf(resource.Model)),
			tx.DeleteBucket(versionsOf(resource.Model)), meta.Put(keySchema, []byte("1")), meta.Put(keyDigest, digest(tx)))
	}); err != nil {
		t.Fatal(err)
	}
	db.Close()
	s := mustOpen(t, path)
	got := mustSnapshot(t, s)
	if s.RecoveryPending() || got.Len(resource.Module) == 0 || got.Len(resource.VirtualService)+
		got.Len(resource.Model) != 0 {
		t.Fatalf("recovered %v: %v", s.RecoveryPending(), got)
	}
	want := desired(3)
	mustCommit(t, s, want)
	s.Close()
	s = mustOpen(t, path)
	if diff := cmp.Diff(want, mustSnapshot(t, s)); diff != "" || s.RecoveryPending() {
		t.Error(diff)
	}
}

func TestNewerSchema(t *testing.T) {
	path := filled(t)
	db, err := bbolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Update(func(tx *bbolt.Tx) error {
		return tx.Bucket(bucketMeta).Put(keySchema, []byte(strconv.Itoa(SchemaVersion+1)))
	}); err != nil {
		t.Fatal(err)
	}
	db.Close()
	before := readFile(t, path)
	_, err = Open(path)
	var newer *NewerError
	if !errors.As(err, &newer) || newer.Found != SchemaVersion+1 {
		t.Errorf("got %v", err)
	}
	if string(readFile(t, path)) != string(before) {
		t.Error("the newer file was changed")
	}
}

func TestMissingDirectory(t *testing.T) {
	if _, err := Open(filepath.Join(t.TempDir(), "no", "state.db")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}

func TestDirectoryInPlaceOfFile(t *testing.T) {
	dir := t.TempDir()
	if _, err := Open(dir); err == nil || errors.Is(err, ErrCorrupt) {
		t.Errorf("got %v", err)
	}
}

func TestReadOnly(t *testing.T) {
	dir := t.TempDir()
	onTmpfs(t, dir, "64m", func() {
		path := filepath.Join(dir, "state.db")
		fill(t, path, 100)
		if err := syscall.Mount("", dir, "", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
			t.Fatal(err)
		}
		s := mustOpen(t, path)
		if diff := cmp.Diff(desired(100), mustSnapshot(t, s)); diff != "" {
			t.Error(diff)
		}
		if err := s.Commit(desired(1)); !errors.Is(err, ErrReadOnly) || !s.ReadOnly() {
			t.Errorf("commit: %v", err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if _, err := Open(filepath.Join(dir, "other.db")); !errors.Is(err, ErrReadOnly) {
			t.Errorf("a new file: %v", err)
		}
	})
}

func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	onTmpfs(t, dir, "1m", func() {
		path := filepath.Join(dir, "state.db")
		s := mustOpen(t, path)
		want := desired(10)
		mustCommit(t, s, want)
		if err := s.Commit(desired(5000)); !errors.Is(err, ErrFull) {
			t.Fatalf("commit: %v", err)
		}
		if diff := cmp.Diff(want, mustSnapshot(t, s)); diff != "" {
			t.Error(diff)
		}
		want = desired(11)
		mustCommit(t, s, want)
		s.Close()
		fillUp(t, dir)
		s = mustOpen(t, path)
		if diff := cmp.Diff(want, mustSnapshot(t, s)); diff != "" {
			t.Error(diff)
		}
		if err := s.Commit(desired(5000)); !errors.Is(err, ErrFull) {
			t.Errorf("commit on a full disk: %v", err)
		}
		if err := os.Remove(filepath.Join(dir, "ballast")); err != nil {
			t.Fatal(err)
		}
		checkWrites(t, s, path)
		fillUp(t, dir)
		if _, err := Open(filepath.Join(dir, "other.db")); !errors.Is(err, ErrFull) {
			t.Errorf("a new file: %v", err)
		}
	})
}

// onTmpfs runs do in a mount namespace of its own, with a tmpfs at dir. The thread ends with it.
func onTmpfs(t *testing.T, dir, size string, do func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread is not fit for others
		if err := enterTmpfs(dir, size); err != nil {
			t.Error(err)
			return
		}
		do()
	}()
	<-done
}

func enterTmpfs(dir, size string) error {
	if err := syscall.Unshare(syscall.CLONE_NEWNS | syscall.CLONE_FS); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	if err := syscall.Mount("", "/", "", syscall.MS_PRIVATE|syscall.MS_REC, ""); err != nil {
		return fmt.Errorf("private mounts: %w", err)
	}
	return syscall.Mount("tmpfs", dir, "tmpfs", 0, "size="+size)
}

func fillUp(t *testing.T, dir string) {
	t.Helper()
	f, err := os.Create(filepath.Join(dir, "ballast"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
}

func desired(n int) resource.State {
	d := resource.State{}
	for i := range n {
		m := v1alpha1.Module{
			TypeMeta: v1alpha1.TypeMeta{APIVersion: v1alpha1.APIVersion, Kind: v1alpha1.KindModule},
			Metadata: v1alpha1.ObjectMeta{Name: fmt.Sprintf("m%d", i), Generation: int64(i)},
			Spec:     v1alpha1.ModuleSpec{Package: "firewall"},
		}
		m.Spec.Config = map[string]any{"text": strings.Repeat("x", 300)}
		s := v1alpha1.Service{
			TypeMeta: v1alpha1.TypeMeta{APIVersion: v1alpha1.APIVersion, Kind: v1alpha1.KindService},
			Metadata: v1alpha1.ObjectMeta{Name: fmt.Sprintf("s%d", i), Labels: map[string]string{"app": "web"}},
			Spec:     v1alpha1.ServiceSpec{Netns: "/run/netns/web"},
		}
		v := v1alpha1.VirtualService{
			TypeMeta: v1alpha1.TypeMeta{APIVersion: v1alpha1.APIVersion, Kind: v1alpha1.KindVirtualService},
			Metadata: v1alpha1.ObjectMeta{Name: fmt.Sprintf("v%d", i)},
			Spec: v1alpha1.VirtualServiceSpec{Addresses: []v1alpha1.VirtualAddress{{Address: fmt.Sprintf("10.30.0.%d", i),
				Policy: v1alpha1.PolicyClosest}}},
		}
		model := modelOf(fmt.Sprintf("n%d", i), 1)
		for _, o := range []resource.Object{&m, &s, &v, &model} {
			d.Put(o)
		}
	}
	return d
}

func filled(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "state.db")
	fill(t, path, 100)
	return path
}

func fill(t *testing.T, path string, n int) {
	t.Helper()
	s := mustOpen(t, path)
	mustCommit(t, s, desired(n+20))
	mustCommit(t, s, desired(n)) // leaves free pages
	s.Close()
}

func flipValue(t *testing.T, path string) {
	t.Helper()
	data := readFile(t, path)
	for i := len(data) - 1; i > 0; i-- { // the last one may be on a free page: change all
		if string(data[i:min(len(data), i+8)]) == "firewall" {
			data[i] = 'F'
		}
	}
	overwrite(t, path, 0, data)
}

func noise(seed uint64, n int) []byte {
	r := rand.New(rand.NewPCG(seed, 1))
	data := make([]byte, n)
	for i := range data {
		data[i] = byte(r.Uint32())
	}
	return data
}

func mustOpen(t *testing.T, path string) *Store {
	t.Helper()
	s, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func mustCommit(t *testing.T, s *Store, d resource.State) {
	t.Helper()
	if err := s.Commit(d); err != nil {
		t.Fatal(err)
	}
}

func mustSnapshot(t *testing.T, s *Store) resource.State {
	t.Helper()
	d, err := s.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func readFile(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func size(t *testing.T, path string) int64 {
	t.Helper()
	return int64(len(readFile(t, path)))
}

func truncate(t *testing.T, path string, n int64) {
	t.Helper()
	if err := os.Truncate(path, n); err != nil {
		t.Fatal(err)
	}
}

func overwrite(t *testing.T, path string, at int64, data []byte) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(data, at); err != nil {
		t.Fatal(err)
	}
}
