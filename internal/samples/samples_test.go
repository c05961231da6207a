// SPDX-License-Identifier: Apache-2.0

package samples

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/sdk"
)

func all(v1.Series) bool { return true }

func service(name string) v1.Series { return v1.Series{Name: "packets", Service: name} }

func open(t *testing.T, dir string) *Store {
	t.Helper()
	s, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func add(t *testing.T, s *Store, at time.Time, sample map[v1.Series]float32) {
	t.Helper()
	if err := s.Add(at, readings(sample)); err != nil {
		t.Fatal(err)
	}
}

// readings have samples.
func readings(sample map[v1.Series]float32) (out []Reading) {
	for series, v := range sample {
		out = append(out, Reading{Series: series, Sample: v})
	}
	return out
}

// read returns the head and the samples of a time.
func read(t *testing.T, s *Store, since time.Duration) (head v1.HistoryLine, lines []v1.HistoryLine) {
	t.Helper()
	err := s.Read(since, all, func(l v1.HistoryLine) error {
		lines = append(lines, l)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return lines[0], lines[1:]
}

// testRing has few records of few values.
func testRing(t *testing.T, path string) *ring {
	t.Helper()
	r, err := openRing(path, 1, 8, 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.f.Close() })
	return r
}

func put(t *testing.T, r *ring, number int64) {
	t.Helper()
	r.add([]float32{float32(number), float32(number) + 0.5, nan})
	if err := r.write(number, 1000*number, 3); err != nil {
		t.Fatal(err)
	}
}

// whole returns the numbers of the records that can be read, and checks what they have.
func whole(t *testing.T, r *ring) (numbers []int64) {
	t.Helper()
	for _, n := range r.since(0, r.newest()+1) {
		values, at, err := r.read(n)
		if err != nil {
			continue
		}
		if at != 1000*n || len(values) != 3 || values[0] != float32(n) || values[1] != float32(n)+0.5 ||
			!math.IsNaN(float64(values[2])) {
			t.Fatalf("record %d has %v of %d", n, values, at)
		}
		numbers = append(numbers, n)
	}
	return numbers
}

// TestCutShort cuts the write of a record at each byte, in a file whose records it overwrites: all others are there.
func TestCutShort(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ring")
	r := testRing(t, path)
	for n := range int64(11) {
		put(t, r, n)
	}
	before, _ := os.ReadFile(path)
	put(t, r, 11)
	after, _ := os.ReadFile(path)
	from := r.slot(11) * r.size()
	for n := range int64(headSize + 20) { // what follows is of the older record, and not read
		data := slices.Concat(before[:from], after[from:from+n], before[from+n:])
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		got := whole(t, testRing(t, path))
		// 3 was there before, and is gone with the first byte that differs.
		want := []int64{4, 5, 6, 7, 8, 9, 10}
		switch {
		case bytes.Equal(data, after):
			want = append(want, 11)
		case bytes.Equal(data, before):
			want = append([]int64{3}, want...)
		}
		if !slices.Equal(got, want) {
			t.Fatalf("after %d bytes of a record there are %v", n, got)
		}
	}
}

// TestDamaged truncates the file, and changes it, at each byte: the other records are there, and the next is kept.
func TestDamaged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ring")
	r := testRing(t, path)
	for n := range int64(8) {
		put(t, r, n)
	}
	sound, _ := os.ReadFile(path)
	used := func(n int64) int64 { return n*r.size() + headSize + 12 }
	for cut := int64(0); cut < int64(len(sound)); cut += 1 + cut%r.size()/64*7 { // all of the used bytes
		damaged := slices.Clone(sound)
		damaged[cut] ^= 0x40
		for _, data := range [][]byte{sound[:cut], damaged} {
			if err := os.WriteFile(path, data, 0o600); err != nil {
				t.Fatal(err)
			}
			again := testRing(t, path)
			got := whole(t, again)
			for n := range int64(8) {
				missing := used(n) > cut && len(data) < len(sound) ||
					len(data) == len(sound) && n*r.size() <= cut && cut < used(n)
				if slices.Contains(got, n) == missing {
					t.Fatalf("at byte %d of %d there are %v", cut, len(data), got)
				}
			}
			if info, _ := again.f.Stat(); info.Size() != int64(len(sound)) {
				t.Fatalf("the file has %d bytes", info.Size())
			}
			again.f.Close()
		}
	}
	if err := os.WriteFile(path, slices.Concat(sound, sound), 0o600); err != nil {
		t.Fatal(err)
	}
	if info, _ := testRing(t, path).f.Stat(); info.Size() != int64(len(sound)) {
		t.Errorf("a file that was too long has %d bytes", info.Size())
	}
}

// TestRollUp compares means and maxima with those of a list, over restarts at random times.
func TestRollUp(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	random := rand.New(rand.NewPCG(1, 2))
	names := []v1.Series{service("a"), service("b"), service("c")}
	start := time.Now().Add(-8000 * Period).Truncate(time.Second)
	var model []map[v1.Series]float32
	for n := range 8000 {
		sample := map[v1.Series]float32{}
		for i, name := range names {
			if random.IntN(10) > i*2 {
				sample[name] = float32(1 + random.IntN(1000))
			}
		}
		model = append(model, sample)
		add(t, s, start.Add(time.Duration(n)*Period), sample)
		if random.IntN(150) == 0 {
			s.Close()
			s = open(t, dir)
		}
	}
	for i, tier := range tiers {
		since := time.Duration(tier.every*tier.slots) * Period
		s.mu.Lock()
		numbers := s.rings[i].since(0, s.next)
		s.mu.Unlock()
		if want := min(tier.slots, 8000/tier.every); int64(len(numbers)) != want {
			t.Errorf("%s has %d records, not %d", tier.name, len(numbers), want)
		}
		head, lines := read(t, s, since)
		if head.Step != int(tier.every)*10 || !slices.Equal(head.Series, names) {
			t.Fatalf("%s: %+v", tier.name, head)
		}
		if int64(len(lines)) < min(tier.slots, 8000/tier.every)-2 {
			t.Errorf("%s: %d samples", tier.name, len(lines))
		}
		for _, l := range lines {
			last := int(math.Round((l.Time - float64(start.Unix())) / 10))
			checkLine(t, model[last+1-int(tier.every):last+1], names, l)
		}
	}
}

func checkLine(t *testing.T, of []map[v1.Series]float32, names []v1.Series, l v1.HistoryLine) {
	t.Helper()
	for i, name := range names {
		sum, most, n := 0.0, nan, 0
		for _, sample := range of {
			if v, ok := sample[name]; ok {
				sum, n = sum+float64(v), n+1
				if n == 1 || v > most {
					most = v
				}
			}
		}
		mean := float32(sum / float64(n))
		same := func(a, b float32) bool { return a == b || math.IsNaN(float64(a)) && math.IsNaN(float64(b)) }
		if !same(l.Values[i], mean) || l.Max != nil && !same(l.Max[i], most) {
			t.Fatalf("at %.0f: %v and %v, not %v and %v", l.Time, l.Values[i], l.Max, mean, most)
		}
	}
}

// TestClock sets the clock back and forth: no sample comes twice, times rise, the newest are there.
func TestClock(t *testing.T) {
	s := open(t, t.TempDir())
	now := time.Now()
	value := float32(0)
	for _, from := range []time.Duration{-10 * time.Minute, -15 * time.Minute, 24 * time.Hour, -5 * time.Minute} {
		for i := range 12 { // 2 minutes
			value++
			add(t, s, now.Add(from+time.Duration(i)*Period), map[v1.Series]float32{service("a"): value})
		}
	}
	_, lines := read(t, s, time.Hour)
	var got []float32
	for i, l := range lines {
		if i > 0 && l.Time <= lines[i-1].Time {
			t.Errorf("%f is not after %f", l.Time, lines[i-1].Time)
		}
		got = append(got, l.Values[0])
	}
	// Of the first two minutes all, as the second two came before them by the clock, but for those that come twice.
	want := []float32{}
	for v := float32(13); v <= 24; v++ {
		want = append(want, v)
	}
	for v := float32(37); v <= 48; v++ {
		want = append(want, v)
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %v", got)
	}
}

// TestBounds fills everything there is: files and memory stay within their bounds.
func TestBounds(t *testing.T) {
	if testing.Short() {
		t.Skip("measures for ten seconds of CPU time")
	}
	times := make(sdk.Histogram, 80) // as in the data plane: no bucket is empty, and their counts are those of years
	for bucket := range times {
		times[bucket] = 1 << 40
	}
	modules := func(r *Readings, second, first, n int) {
		seen := uint64(1+second) * 100 // no rate is zero
		for i := range n {
			module := fmt.Sprintf("module-%04d", first+i)
			for _, direction := range []string{"ingress", "egress"} {
				r.AddLatency(module, direction, times)
				for _, verdict := range []string{"next", "drop", "reply", "redirect"} {
					r.AddModule(module, direction, verdict, seen, 64*seen)
				}
			}
			r.AddMemory(module, 1<<20)
			r.AddDrops(module, []v1.Drop{{Reason: "policy", Packets: seen}, {Reason: "malformed", Packets: seen}})
		}
	}
	services := func(r *Readings, second, first, n int) {
		seen := Traffic{uint64(1+second) * 100, uint64(1+second) * 6400}
		for i := range n {
			r.AddService(fmt.Sprintf("service-%04d", first+i), Interface{Received: seen, Sent: seen})
		}
	}
	for what, fill := range map[string]func(r *Readings, n int){
		"6,400 services, which come and go": func(r *Readings, n int) { services(r, n, n/10, 10*MaxSeries) },
		"100 services, each with four modules": func(r *Readings, n int) {
			services(r, n, 0, 100)
			modules(r, n, 0, 400)
		},
		"all with times":                   func(r *Readings, n int) { modules(r, n, 0, maxTimed/2) },
		"1,000 modules, which come and go": func(r *Readings, n int) { modules(r, n, n/10, 1000) },
	} {
		t.Run(what, func(t *testing.T) { bounded(t, times, fill) })
	}
}

// bounded takes samples of readings that fill adds, and then reads others, as the agent does between two samples.
func bounded(t *testing.T, times sdk.Histogram, fill func(r *Readings, n int)) {
	const seconds = 700
	dir := t.TempDir()
	before := heap()
	s, live := open(t, dir), &Live{}
	sizes := dirSize(t, dir)
	_, leave := live.Join()
	defer leave()
	var filed, second Rates
	var all Readings
	for n := range seconds {
		times[n%len(times)]++
		all.Reset()
		all.AddAgent(n)
		fill(&all, n)
		at := time.Now().Add(time.Duration(n-seconds) * Period)
		if n%10 == 5 { // the last sample of the files is another one than that of clients
			filed.Add(at, &all)
			s.Omit(all.Omitted())
			if err := s.Add(at, all.All()); err != nil {
				t.Fatal(err)
			}
		}
		second.Add(at, &all)
		live.Add(at, all.All())
	}
	all.Reset()
	fill(&all, seconds)
	if used := heap() - before; used > 2<<20 {
		t.Errorf("%d bytes of memory", used)
	} else {
		t.Logf("%d bytes of memory", used)
	}
	after := dirSize(t, dir)
	if after > 32<<20 {
		t.Errorf("%d bytes of files", after)
	}
	t.Logf("%d bytes of files", after)
	if table, _ := os.Stat(s.tablePath()); after-sizes > 2*table.Size() || table.Size() > 256<<10 {
		t.Errorf("files have grown from %d to %d, the table has %d", sizes, after, table.Size())
	}
	head, lines := read(t, s, 2*time.Hour)
	if len(head.Series) != MaxSeries || head.Omitted == 0 || len(lines) != seconds/10 {
		t.Errorf("%d series, %d omitted, %d lines", len(head.Series), head.Omitted, len(lines))
	}
	runtime.KeepAlive(filed)
	runtime.KeepAlive(second)
	runtime.KeepAlive(all)
	runtime.KeepAlive(live)
}

func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func dirSize(t *testing.T, dir string) (n int64) {
	t.Helper()
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		info, err := f.Info()
		if err != nil {
			t.Fatal(err)
		}
		n += info.Size()
	}
	return n
}

// TestReplaced has more services come and go than there is room for: those that went first make room, and no service
// has the values of another, also in the longer steps and after a restart.
func TestReplaced(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	start := time.Now().Add(-2 * time.Hour)
	const rounds = 650
	for n := range rounds {
		sample := map[v1.Series]float32{{Name: "problems"}: 7, service(fmt.Sprint("s", n)): float32(n + 1)}
		add(t, s, start.Add(time.Duration(n)*Period), sample)
		if n%200 == 199 {
			s.Close()
			s = open(t, dir)
		}
	}
	for _, since := range []time.Duration{2 * time.Hour, 24 * time.Hour, Longest} {
		head, lines := read(t, s, since)
		if head.Omitted != 0 || len(head.Series) != MaxSeries || head.Series[0].Name != "problems" {
			t.Fatalf("%d series, %d omitted, the first is %v", len(head.Series), head.Omitted, head.Series[0])
		}
		if slices.Contains(head.Series, service("s0")) || !slices.Contains(head.Series, service("s649")) {
			t.Error("the longest gone series is there, or the newest is not")
		}
		values := 0
		for _, l := range lines {
			if l.Values[0] != 7 {
				t.Fatalf("problems are %v", l.Values[0])
			}
			for i, series := range head.Series[1:] {
				if v := l.Values[1+i]; !math.IsNaN(float64(v)) {
					values++
					if series.Service != fmt.Sprint("s", v-1) {
						t.Fatalf("%v has %v", series, v)
					}
				}
			}
		}
		if values < 580 {
			t.Errorf("%d values in %v", values, since)
		}
	}
}

// TestFullDisk needs a file system of its own. Without room there is no history, and an error that says so; once there
// are the files, a full disk takes nothing away.
func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("kerb", dir, "tmpfs", 0, "size=34m"); err != nil {
		t.Skipf("no file system can be mounted: %v", err)
	}
	defer func() { _ = unix.Unmount(dir, unix.MNT_DETACH) }()
	full := filepath.Join(dir, "full")
	fill := func(keep int64) {
		f, err := os.Create(full)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		var fs unix.Statfs_t
		if err := unix.Statfs(dir, &fs); err != nil {
			t.Fatal(err)
		}
		if err := unix.Fallocate(int(f.Fd()), 0, 0, int64(fs.Bavail)*fs.Bsize-keep); err != nil {
			t.Fatal(err)
		}
	}
	fill(20 << 20)
	_, err := Open(filepath.Join(dir, "samples"))
	if !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), "MiB") {
		t.Errorf("on a disk with 20 MiB: %v", err)
	}
	os.Remove(full)
	s := open(t, filepath.Join(dir, "samples"))
	now := time.Now()
	add(t, s, now.Add(-time.Minute), map[v1.Series]float32{service("a"): 1})
	fill(0)
	add(t, s, now.Add(-50*time.Second), map[v1.Series]float32{service("a"): 2})
	both := readings(map[v1.Series]float32{service("a"): 3, service("b"): 1})
	if err := s.Add(now.Add(-40*time.Second), both); err == nil {
		t.Error("a series is in the table of a full disk")
	}
	os.Remove(full)
	add(t, s, now.Add(-30*time.Second), map[v1.Series]float32{service("a"): 4, service("b"): 2})
	s.Close()
	head, lines := read(t, open(t, filepath.Join(dir, "samples")), time.Hour)
	var got []string
	for _, l := range lines {
		got = append(got, fmt.Sprint(l.Values))
	}
	if want := []string{"[1 NaN]", "[2 NaN]", "[3 NaN]", "[4 2]"}; !slices.Equal(got, want) || len(head.Series) != 2 {
		t.Errorf("%v of %v", got, head.Series)
	}
}

// TestTable opens tables that no agent has written.
func TestTable(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	add(t, s, time.Now().Add(-time.Minute), map[v1.Series]float32{service("a"): 1})
	s.Close()
	sound, _ := os.ReadFile(s.tablePath())
	write := func(file string, data []byte) {
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	used := func() int {
		s := &Store{dir: dir, slots: map[v1.Series]int{}}
		s.readTable()
		return s.used()
	}
	for n := range sound {
		inverted := slices.Clone(sound)
		inverted[n] ^= 1
		for _, damaged := range [][]byte{sound[:n], inverted} {
			write(s.tablePath(), damaged)
			write(s.tablePath()+copySuffix, sound)
			if used() != 1 {
				t.Fatalf("with %q the table is lost", damaged)
			}
			write(s.tablePath()+copySuffix, damaged)
			if earlier := bytes.HasSuffix(damaged, []byte("]")); !earlier && used() != 0 { // without a checksum
				t.Fatalf("%q is a table", damaged)
			}
		}
	}
	for _, text := range []string{`[null]`, `[{"slot":-1,"name":"a"}]`, `[{"slot":640,"name":"a"}]`, `{"slot":0}`,
		`[{"slot":1,"name":"a"},{"slot":1,"name":"b"},{"slot":2,"name":"a"}]`} {
		write(s.tablePath(), []byte(text))
		write(s.tablePath()+copySuffix, nil)
		s := open(t, dir)
		add(t, s, time.Now(), map[v1.Series]float32{service("new"): 2})
		head, lines := read(t, s, time.Hour)
		if at := slices.Index(head.Series, service("new")); at < 0 || lines[len(lines)-1].Values[at] != 2 ||
			len(lines) > 1 && !math.IsNaN(float64(lines[0].Values[at])) {
			t.Errorf("%s: %v, %v", text, head.Series, lines)
		}
		s.Close()
	}
}

func TestRates(t *testing.T) {
	of := func(name string) v1.Series { return v1.Series{Name: name} }
	counter := func(name string, value float64, counter, fromZero bool) Reading {
		return Reading{Series: of(name), Value: value, Counter: counter, FromZero: fromZero}
	}
	var r Rates
	at := time.Unix(1e9, 0)
	for i, step := range []struct {
		after time.Duration
		in    []Reading
		want  map[v1.Series]float32
	}{
		{0, []Reading{counter("a", 100, true, false), counter("zero", 5, true, true), counter("g", 3, false, false)},
			map[v1.Series]float32{of("g"): 3}},
		{10 * time.Second,
			[]Reading{counter("a", 150, true, false), counter("new", 20, true, true), counter("late", 9, true, false)},
			map[v1.Series]float32{of("a"): 5, of("new"): 2}},
		{10 * time.Second, []Reading{counter("a", 10, true, false)}, map[v1.Series]float32{}}, // has begun again
		{10 * time.Second, []Reading{counter("a", 30, true, false), counter("new", 80, true, true)},
			map[v1.Series]float32{of("a"): 2, of("new"): 3}}, // was not read for 20 s
		{2 * time.Minute, nil, map[v1.Series]float32{}},
	} {
		at = at.Add(step.after)
		var all Readings
		all.Reset()
		for _, n := range step.in {
			all.add(n)
		}
		got := map[v1.Series]float32{}
		r.Add(at, &all)
		for _, n := range all.All() {
			if !math.IsNaN(float64(n.Sample)) {
				got[n.Series] = n.Sample
			}
		}
		if !reflect.DeepEqual(got, step.want) {
			t.Errorf("step %d: %v", i, got)
		}
	}
	if len(r.last) != 0 {
		t.Errorf("%v are remembered", r.last)
	}
}

// Quantiles are of what came since the sample before, and not of what came before that. A histogram that began again,
// as of a module that was removed and came back, has no sample.
func TestQuantiles(t *testing.T) {
	h := make(sdk.Histogram, 80)
	var r Rates
	var all Readings
	at := time.Unix(1e9, 0)
	is := func(what string, median, p99 float64) {
		t.Helper()
		all.Reset()
		if h.Count() > 0 {
			all.AddLatency("fw", "egress", slices.Clone(h))
		}
		at = at.Add(Period)
		r.Add(at, &all)
		got := map[string]float64{}
		for _, n := range all.All() {
			if n.Module != "fw" || n.Direction != "egress" {
				t.Errorf("%s: %+v", what, n.Series)
			}
			got[n.Name] = float64(n.Sample)
		}
		for name, want := range map[string]float64{"kerb_module_latency_p50_seconds": median,
			"kerb_module_latency_p99_seconds": p99} {
			is, there := got[name]
			if want == 0 && there && !math.IsNaN(is) || want > 0 && !(is >= want && is < 1.25*want) {
				t.Errorf("%s: %s is %v, want %v", what, name, is, want)
			}
		}
	}
	observe := func(times int, ns uint64) {
		for range times {
			h.Observe(ns)
		}
	}
	is("nothing was seen", 0, 0)
	observe(90, 100)
	observe(10, 5000)
	is("the first reading may be of all packets ever", 0, 0)
	observe(90, 100)
	observe(10, 5000)
	is("packets since", 100e-9, 5000e-9)
	is("none since", 0, 0)
	observe(100, 300)
	is("others since", 300e-9, 300e-9)
	clear(h)
	observe(5, 700)
	is("it began again", 0, 0)
	observe(5, 800)
	is("the next ones", 800e-9, 800e-9)
}

// The hooks of a module are one series.
func TestLatencyOfTwoHooks(t *testing.T) {
	xdp, tc := make(sdk.Histogram, 80), make(sdk.Histogram, 80)
	xdp.Observe(20)
	tc.Observe(40)
	var r Readings
	r.Reset()
	r.AddLatency("fw", "ingress", xdp)
	r.AddLatency("fw", "ingress", tc)
	for _, n := range r.All() {
		if h := n.of.addTo(nil); h.Count() != 2 || h.Quantile(1) < 40 {
			t.Errorf("%s has %v", n.Name, h)
		}
	}
	if len(r.All()) != 2 || xdp.Count() != 1 || tc.Count() != 1 {
		t.Errorf("%d series, of histograms with %d and %d", len(r.All()), xdp.Count(), tc.Count())
	}
}

// Modules that have had times keep them when others come, in whatever order they are read: a percentile has no gaps.
// Those for which there is no room are counted.
func TestTimesOfTheFirst(t *testing.T) {
	times := sdk.Histogram{0, 0, 1}
	var r Readings
	for n := range 3 {
		r.Reset()
		for i := 2 * maxTimed; i > 0; i-- {
			if module := fmt.Sprint(i); n > 0 || i <= maxTimed {
				r.AddLatency(module, "ingress", times)
			}
		}
		if want := min(n, 1) * len(quantiles) * maxTimed; r.Omitted() != want {
			t.Errorf("sample %d omits %d series, want %d", n, r.Omitted(), want)
		}
		for _, of := range r.All() {
			if i, _ := strconv.Atoi(of.Module); i > maxTimed {
				t.Fatalf("sample %d has times of module %d", n, i)
			}
		}
		if len(r.All()) != len(quantiles)*maxTimed {
			t.Errorf("sample %d has %d series", n, len(r.All()))
		}
	}
}

// Times that found no room among the series leave theirs to others.
func TestTimesWithoutRoom(t *testing.T) {
	var r Readings
	r.Reset()
	for i := range maxReadings {
		r.AddService(fmt.Sprint(i), Interface{})
	}
	for i := range maxTimed {
		r.AddLatency(fmt.Sprint(i), "ingress", sdk.Histogram{1})
	}
	r.Reset()
	r.AddLatency("another", "ingress", sdk.Histogram{1})
	if r.timed.before != 0 || r.timed.fresh > 1 {
		t.Errorf("%+v", r.timed)
	}
}

// A packed histogram is what it was, in little room.
func TestPacked(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for range 1000 {
		h := make(sdk.Histogram, 80)
		for range random.IntN(30) {
			h[random.IntN(80)] = random.Uint64() >> random.IntN(64)
		}
		if got := pack(h).addTo(make(sdk.Histogram, 80)); !slices.Equal(got, h) {
			t.Fatalf("%v became %v", h, got)
		}
	}
	h := make(sdk.Histogram, 80)
	for ns := range uint64(2000) { // of which each was measured a thousand times
		h.Observe(ns)
		h[min(79, ns)] += 999
	}
	if n := len(pack(h)); n > 250 {
		t.Errorf("%d bytes", n)
	}
}

// TestLive follows samples: the kept ones first, then each, with a head when there are other series.
func TestLive(t *testing.T) {
	var l Live
	l.Add(time.Now(), readings(map[v1.Series]float32{service("a"): 1})) // there is no client
	first, leave := l.Join()
	if !first {
		t.Error("the first client is not the first")
	}
	second, leaveSecond := l.Join()
	if second {
		t.Error("the second client is the first")
	}
	for n := range liveRows + 20 {
		l.Add(time.Unix(int64(n), 0), readings(map[v1.Series]float32{service("a"): float32(n + 1)}))
	}
	ctx, cancel := context.WithCancel(context.Background())
	var got []v1.HistoryLine
	done := make(chan error)
	go func() {
		done <- l.Follow(ctx, all, func(line v1.HistoryLine) error {
			got = append(got, line)
			if len(got) == liveRows+1 {
				go l.Add(time.Unix(1000, 0), readings(map[v1.Series]float32{service("b"): 9}))
			}
			if len(got) == liveRows+3 {
				cancel()
			}
			return nil
		})
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if got[0].Step != 1 || !slices.Equal(got[0].Series, []v1.Series{service("a")}) || got[1].Time != 20 ||
		got[liveRows].Values[0] != liveRows+20 {
		t.Errorf("%v, %v, %v", got[0], got[1], got[liveRows])
	}
	head, last := got[liveRows+1], got[liveRows+2]
	if !slices.Equal(head.Series, []v1.Series{service("a"), service("b")}) || last.Values[1] != 9 ||
		!math.IsNaN(float64(last.Values[0])) {
		t.Errorf("%v, %v", head, last)
	}
	leave()
	leaveSecond()
	if l.Wanted() || l.rows != nil {
		t.Error("samples are kept without a client")
	}
}
