// SPDX-License-Identifier: Apache-2.0

package history

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/resource"
	"github.com/kerb-edge/kerb/sdk/sdktest"
)

func openLog(t *testing.T, dir string) *Log {
	t.Helper()
	l := Open(dir, func(err error) { t.Error(err) })
	t.Cleanup(l.Flush)
	return l
}

// update is a record of a change of module fw.
func update(was, is string) (v1alpha1.ChangeRecord, []resource.Object) {
	before := v1alpha1.Module{TypeMeta: v1alpha1.TypeMeta{APIVersion: v1alpha1.APIVersion, Kind: v1alpha1.KindModule},
		Metadata: v1alpha1.ObjectMeta{Name: "fw", Generation: 3},
		Spec:     v1alpha1.ModuleSpec{Package: "firewall"}}
	before.Spec.Config = map[string]any{"text": was}
	return v1alpha1.ChangeRecord{By: "uid 0", Owner: v1alpha1.OwnerUser, Outcome: v1alpha1.OutcomeDone,
		Steps: []string{"set values"}, Changes: []v1alpha1.Change{{Action: "update", Kind: v1alpha1.KindModule, Name: "fw",
			Before: map[string]any{"text": was}, After: map[string]any{"text": is}}}}, []resource.Object{&before}
}

func refusal(why string) v1alpha1.ChangeRecord {
	return v1alpha1.ChangeRecord{Owner: v1alpha1.OwnerUser, Outcome: v1alpha1.OutcomeRefused, Error: why}
}

func TestReadsWhatWasAdded(t *testing.T) {
	dir := t.TempDir()
	l := openLog(t, dir)
	for i := range 3 {
		l.Add(update(fmt.Sprint(i), fmt.Sprint(i+1)))
	}
	l.Flush()
	l = openLog(t, dir)
	l.Add(refusal("no"), nil)
	all := l.List(v1alpha1.ChangesRequest{Limit: 100})
	if len(all) != 4 || all[0].Number != 4 || all[0].Error != "no" || all[3].Number != 1 {
		t.Fatalf("listed %+v", all)
	}
	if c := all[1].Changes; len(c) != 1 || c[0].Name != "fw" || c[0].Before != nil || c[0].After != nil ||
		all[1].Steps != nil {
		t.Errorf("a list is not brief: %+v", all[1])
	}
	one, was, err := l.Was(2)
	if err != nil || len(was) != 1 {
		t.Fatal(was, err)
	}
	if text := was[0].(*v1alpha1.Module).Spec.Config["text"]; text != "1" {
		t.Errorf("before change 2 it was %q", text)
	}
	if one.By != "uid 0" || len(one.Steps) != 1 || one.Changes[0].After.(map[string]any)["text"] != "2" {
		t.Errorf("change 2 is %+v", one)
	}
	var missing *apierrors.NotFound
	if _, err := l.Get(9); !errors.As(err, &missing) {
		t.Errorf("an unknown change: %v", err)
	}
	out, err := exec.Command("zcat", l.path(1)).Output()
	if lines := strings.Split(string(out), "\n"); err != nil || len(lines) != 4 || !strings.Contains(lines[1], `"fw"`) {
		t.Errorf("zcat shows %s %v", out, err)
	}
}

func TestSelects(t *testing.T) {
	l := openLog(t, t.TempDir())
	l.Add(update("a", "b"))
	l.Add(refusal("no"), nil)
	for _, c := range []struct {
		kind, name string
		limit      int
		want       int
	}{{"", "", 10, 2}, {"", "", 1, 1}, {"module", "fw", 10, 1}, {"Module", "", 10, 1}, {"", "fw", 10, 1},
		{"Service", "fw", 10, 0}, {"Module", "other", 10, 0}} {
		if got := l.List(v1alpha1.ChangesRequest{Kind: c.kind, Name: c.name, Limit: c.limit}); len(got) != c.want {
			t.Errorf("%+v: %d records", c, len(got))
		}
	}
}

// A program that is refused every second does not push all else out.
func TestRefusedAgain(t *testing.T) {
	l := openLog(t, t.TempDir())
	l.Add(update("a", "b"))
	for range 5 {
		l.Add(refusal("no"), nil)
	}
	l.Add(refusal("another reason"), nil)
	l.Add(refusal("no"), nil)
	all := l.List(v1alpha1.ChangesRequest{Limit: 100})
	if len(all) != 4 || all[2].Number != 2 || all[2].Repeated != 4 || all[0].Repeated != 0 || all[0].Number != 4 {
		t.Errorf("listed %+v", all)
	}
	for range 2 * perFile {
		l.Add(refusal("no"), nil)
	}
	if all = l.List(v1alpha1.ChangesRequest{Limit: 100}); len(all) != 4 || all[0].Repeated != 2*perFile {
		t.Errorf("listed %+v", all)
	}
	if files, err := os.ReadDir(l.dir); err != nil || len(files) != 1 {
		t.Errorf("%d files, %v", len(files), err)
	}
}

func TestOldestGo(t *testing.T) {
	dir := t.TempDir()
	l := openLog(t, dir)
	for range MaxRecords + 5 {
		l.Add(refusal(fmt.Sprint(rand.Uint64())), nil)
	}
	all := l.List(v1alpha1.ChangesRequest{Limit: 2 * MaxRecords})
	if oldest := all[len(all)-1].Number; oldest != perFile+1 || len(all) != MaxRecords+5-perFile {
		t.Errorf("%d records, the oldest is %d", len(all), oldest)
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) != MaxRecords/perFile {
		t.Errorf("%d files, %v", len(files), err)
	}
	for _, n := range []int64{perFile + 1, 2 * perFile, 2*perFile + 1, MaxRecords + 5} {
		if r, err := l.Get(n); err != nil || r.Number != n {
			t.Errorf("record %d is %+v %v", n, r, err)
		}
	}
	var missing *apierrors.NotFound
	if _, err := l.Get(perFile); !errors.As(err, &missing) {
		t.Errorf("a record that went: %v", err)
	}
}

// noise is text that does not get shorter by compression.
func noise(bytes int) string {
	out := make([]byte, bytes)
	for i := range out {
		out[i] = 'A' + byte(rand.IntN(26)) // 4.7 bits each
	}
	return string(out)
}

func TestLargeRecords(t *testing.T) {
	dir := t.TempDir()
	l := openLog(t, dir)
	const many = 14
	for range many {
		l.Add(update(noise(1<<20), "b"))
	}
	l.Add(update(noise(4<<20), "b"))
	l.Flush()
	var total int64
	files, err := os.ReadDir(dir)
	for _, f := range files {
		info, err := f.Info()
		if err != nil {
			t.Fatal(err)
		}
		total += info.Size()
	}
	if err != nil || total > MaxBytes || len(files) > many || total < MaxBytes/2 {
		t.Errorf("%d bytes in %d files, %v", total, len(files), err)
	}
	var conflict *apierrors.Conflict
	if _, _, err := l.Was(many + 1); !errors.As(err, &conflict) {
		t.Errorf("reverting a change that was too large: %v", err)
	}
	if r, err := l.Get(many + 1); err != nil || r.Changes[0].Name != "fw" {
		t.Errorf("its head: %+v %v", r, err)
	}
}

// What cannot be read is left out, with the records behind it in the same file, and the numbers after it are used. A
// directory of the version that had a file for each record is read.
func TestDamage(t *testing.T) {
	dir := t.TempDir()
	for i := range 4 {
		l := openLog(t, dir) // does not continue the file of the last
		l.Add(update(fmt.Sprint(i), "x"))
		l.Flush()
	}
	l := openLog(t, dir)
	for i := range 3 {
		l.Add(update(fmt.Sprint(i), "y"))
	}
	l.Flush()
	damage := map[int64][]byte{2: {}, 3: []byte("no gzip"), 4: nil, 5: nil}
	for _, n := range []int64{4, 5} {
		data, err := os.ReadFile(l.path(n))
		if err != nil {
			t.Fatal(err)
		}
		damage[n] = data[:len(data)*3/4]
	}
	for n, data := range damage {
		if err := os.WriteFile(l.path(n), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"00000099.json.gz.new", "readme", "-1.json.gz", "x.json.gz"} {
		if err := os.WriteFile(dir+"/"+name, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	l = openLog(t, dir)
	l.Add(refusal("no"), nil)
	var numbers []int64
	for _, r := range l.List(v1alpha1.ChangesRequest{Limit: 100}) {
		numbers = append(numbers, r.Number)
	}
	if !slices.Equal(numbers, []int64{7, 6, 5, 1}) {
		t.Errorf("listed %d", numbers)
	}
	for _, n := range []int64{2, 3, 4} {
		if _, err := l.Get(n); err == nil {
			t.Errorf("the damaged record %d is read", n)
		}
	}
}

// A record that cannot be written does not take others with it.
func TestFullDisk(t *testing.T) {
	dir, failures := smallDisk(t), 0
	l := Open(dir, func(error) { failures++ })
	l.Add(update("a", "b"))
	l.Add(update(noise(1<<20), "too much"))
	l.Add(update("c", "d"))
	if all := l.List(v1alpha1.ChangesRequest{Limit: 9}); len(all) != 2 || all[0].Number != 3 || failures != 1 {
		t.Errorf("%d failures, listed %+v", failures, all)
	}
	l.Add(update("e", "f"))
	full := noise(300 << 10)
	for range 2 {
		l.Add(update(full, "too much")) // the first of a file
	}
	l.Flush()
	if files, err := os.ReadDir(dir); err != nil || len(files) != 2 || failures != 3 {
		t.Errorf("%d failures leave %d files, %v", failures, len(files), err)
	}
}

// A repeat that cannot be written leaves the record that it repeats, whether that is the first of its file or not; the
// next repeat is counted there.
func TestRepeatOnFullDisk(t *testing.T) {
	again := func(after string) (v1alpha1.ChangeRecord, []resource.Object) {
		r, was := update("a", after)
		r.Outcome, r.Error = v1alpha1.OutcomeRefused, "no"
		return r, was
	}
	for earlier := range int64(2) {
		dir, failures := smallDisk(t), 0
		l := Open(dir, func(error) { failures++ })
		for range earlier {
			l.Add(update("a", "b"))
		}
		l.Add(again("b"))
		for i, after := range []string{noise(1 << 20), noise(600 << 10), "b"} {
			l.Add(again(after))
			all := l.List(v1alpha1.ChangesRequest{Limit: 9})
			want := []int{0, 0, 3}[i]
			if int64(len(all)) != earlier+1 || all[0].Number != earlier+1 || all[0].Repeated != want {
				t.Errorf("with %d records before it, after repeat %d: listed %+v", earlier, i+1, all)
			}
		}
		if failures != 2 {
			t.Errorf("%d failures, want those of the two that are too large", failures)
		}
	}
}

// smallDisk returns a directory with room for 256 KiB.
func smallDisk(t *testing.T) (dir string) {
	t.Helper()
	sdktest.NeedRoot(t)
	dir = t.TempDir()
	if err := unix.Mount("none", dir, "tmpfs", 0, "size=256k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(dir, 0) })
	return dir
}

// Records of versions that had a file for each.
func TestEarlierVersions(t *testing.T) {
	dir := t.TempDir()
	for n, text := range []string{`{"number":1,"outcome":"done"}`, `{"number":2,"outcome":"done"}`} {
		var out bytes.Buffer
		w := gzip.NewWriter(&out)
		if _, err := w.Write([]byte(text)); err != nil || w.Close() != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(fmt.Sprintf("%s/%08d.json.gz", dir, n+1), out.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	l := openLog(t, dir)
	l.Add(update("a", "b"))
	all := l.List(v1alpha1.ChangesRequest{Limit: 9})
	if len(all) != 3 || all[0].Number != 3 || all[1].Number != 2 || all[2].Number != 1 {
		t.Errorf("listed %+v", all)
	}
}

func TestManyAtOnce(t *testing.T) {
	l := openLog(t, t.TempDir())
	const clients, each = 8, 40
	var all sync.WaitGroup
	for range clients {
		all.Go(func() {
			for range each {
				l.Add(update("a", "b"))
			}
		})
	}
	all.Wait()
	got := l.List(v1alpha1.ChangesRequest{Limit: MaxRecords})
	if len(got) != clients*each {
		t.Fatalf("%d records", len(got))
	}
	for i, r := range got {
		if r.Number != int64(clients*each-i) {
			t.Fatalf("record %d has number %d", i, r.Number)
		}
	}
}

func TestDirectoryThatCannotBeMade(t *testing.T) {
	var told []error
	l := Open("/proc/none/changes", func(err error) { told = append(told, err) })
	l.Add(update("a", "b"))
	l.Flush()
	if len(told) != 2 || len(l.List(v1alpha1.ChangesRequest{Limit: 9})) != 0 {
		t.Errorf("got %v", told)
	}
}

// A record that compresses well is written, and can be read.
func TestCompressibleRecord(t *testing.T) {
	l := openLog(t, t.TempDir())
	l.Add(update(strings.Repeat("a", 30<<20), strings.Repeat("b", 30<<20))) // a body may have 32 MiB; it is there twice
	if _, err := l.Get(1); err != nil {
		t.Errorf("the record of a change of 30 MiB: %v", err)
	}
}

// Readers do not wait for changes that come after them.
func TestReadersDoNotStarve(t *testing.T) {
	l := openLog(t, t.TempDir())
	var writers sync.WaitGroup
	stop := make(chan struct{})
	defer writers.Wait()
	defer close(stop)
	for range 4 {
		writers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					l.Add(update("a", "b"))
				}
			}
		})
	}
	for added := int64(0); added < maxPending; runtime.Gosched() {
		l.mu.Lock()
		added = l.last
		l.mu.Unlock()
	}
	done := make(chan struct{})
	go func() {
		l.Flush()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		t.Error("a reader waits as long as there are changes")
	}
}

// Changes that follow each other leave little garbage: a compressor has more than a MiB.
func TestCompressorIsReused(t *testing.T) {
	l := openLog(t, t.TempDir())
	const records = 20
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for i := range records {
		l.Add(update(fmt.Sprint(i), fmt.Sprint(i+1)))
		l.Flush()
	}
	runtime.ReadMemStats(&after)
	if each := (after.TotalAlloc - before.TotalAlloc) / records; each > 256<<10 {
		t.Errorf("a record allocates %d bytes", each)
	}
}
