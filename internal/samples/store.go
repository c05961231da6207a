// SPDX-License-Identifier: Apache-2.0

// Package samples keeps figures of the node over time, in files and memory of a fixed size: one sample each 10 s for 2
// hours, of 1 min for 24 hours, of 10 min for 30 days, and one a second for 5 minutes while a client reads them. The
// records of changes are in package history.
package samples

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"sync"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/atomicfile"
)

// MaxSeries is how many series there can be. A file has room for each of them in all of its records.
const MaxSeries = 640

// Period is the time from one sample to the next.
const Period = 10 * time.Second

// tiers are the files. A record of them is of every samples: their means, and from the second tier on their maxima.
var tiers = []struct {
	name         string
	every, slots int64
}{{"10s", 1, 720}, {"1m", 6, 1440}, {"10m", 60, 4320}}

// Longest is the time of which there can be samples.
const Longest = 30 * 24 * time.Hour

// Store is a directory of samples. Samples have numbers, which continue after a restart: where a record is in a file,
// and whose its values are, does not depend on the clock. Its methods may be called from several goroutines.
type Store struct {
	dir string

	mu      sync.Mutex
	rings   []*ring
	next    int64 // number of the next sample
	table   [MaxSeries]*owner
	slots   map[v1.Series]int
	omitted int // series of the last sample that have no slot
	beyond  int // and those that were not read
	row     [MaxSeries]float32
}

// owner is a series that has a slot: a place in all records, from sample Since on.
type owner struct {
	v1.Series
	Slot  int   `json:"slot"`
	Since int64 `json:"since"`
	Last  int64 `json:"last"` // sample that had it, when the table was written
}

// Open opens the samples in a directory, and takes all the room that they will need.
func Open(dir string) (*Store, error) {
	s := &Store{dir: dir, slots: map[v1.Series]int{}}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	for i, t := range tiers {
		r, err := openRing(filepath.Join(dir, t.name), t.every, t.slots, min(i+1, 2))
		if err != nil {
			s.Close()
			return nil, err
		}
		s.rings = append(s.rings, r)
		s.next = max(s.next, r.newest()+1)
	}
	s.readTable()
	s.resume()
	return s, nil
}

// Close closes the files.
func (s *Store) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.rings {
		_ = r.f.Close() // nothing is buffered
	}
}

func (s *Store) tablePath() string { return filepath.Join(s.dir, "series.json") }

// readTable reads whose the slots are, from the copy if the file is damaged. Without both, no sample can be attributed:
// new series get all slots.
func (s *Store) readTable() {
	all, err := readOwners(s.tablePath())
	if err != nil {
		all, err = readOwners(s.tablePath() + copySuffix)
	}
	if err != nil {
		return
	}
	for _, o := range all {
		if o == nil || o.Slot < 0 || o.Slot >= MaxSeries || s.table[o.Slot] != nil {
			continue
		}
		if _, twice := s.slots[o.Series]; twice {
			continue
		}
		s.table[o.Slot], s.slots[o.Series] = o, o.Slot
	}
}

// copySuffix is that of a second table, which is the same.
const copySuffix = ".copy"

// readOwners reads a table and the checksum behind it, which earlier versions have not written.
func readOwners(path string) (all []*owner, err error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	table, sum, checked := bytes.Cut(data, []byte("\n"))
	if checked && string(sum) != checksum(table) {
		return nil, errors.New("the table of series is damaged")
	}
	return all, json.Unmarshal(table, &all)
}

func checksum(table []byte) string { return strconv.FormatUint(uint64(crc32.ChecksumIEEE(table)), 16) }

// writeOwners writes the copy first: where both can be read and differ, the table is what records are by.
func (s *Store) writeOwners(all []*owner) error {
	data, err := json.Marshal(all)
	data = append(append(data, '\n'), checksum(data)...)
	for _, path := range []string{s.tablePath() + copySuffix, s.tablePath()} {
		if err == nil {
			err = atomicfile.Write(path, data, 0o600)
		}
	}
	return err
}

// Omit notes how many series the next sample has not read.
func (s *Store) Omit(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.beyond = n
}

// resume adds the samples again that are not in a record of the longer steps yet.
func (s *Store) resume() {
	for _, r := range s.rings[1:] {
		for n := s.next - s.next%r.every; n < s.next; n++ {
			if values, _, err := s.rings[0].read(n); err == nil {
				r.add(s.owned(n, values))
			}
		}
	}
}

// owned makes values NaN that are of a series that had the slot before.
func (s *Store) owned(number int64, values []float32) []float32 {
	for i := range values {
		if o := s.table[i]; o == nil || o.Since > number {
			values[i] = nan
		}
	}
	return values
}

var nan = float32(math.NaN())

// Add keeps the samples of readings. A series gets a slot with its first value other than zero. After an error part of
// the sample may be missing.
func (s *Store) Add(at time.Time, all []Reading) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.assign(all)
	row := s.row[:s.used()]
	for i := range row {
		row[i] = nan
	}
	for i := range all {
		if slot, ok := s.slots[all[i].Series]; ok {
			row[slot] = all[i].Sample
		}
	}
	for _, r := range s.rings {
		if r.add(row); (s.next+1)%r.every == 0 {
			err = errors.Join(err, r.write(s.next, at.UnixMilli(), len(row)))
		}
	}
	s.next++
	return err
}

// used is the number of slots up to the last one that a series has.
func (s *Store) used() int {
	n := MaxSeries
	for n > 0 && s.table[n-1] == nil {
		n--
	}
	return n
}

// assign gives slots to new series, those of the node first: free ones, and then those of series that are gone, the
// longest first. The table is on disk before a record has values of it.
func (s *Store) assign(all []Reading) error {
	var fresh []v1.Series
	for i := range all {
		if slot, known := s.slots[all[i].Series]; known {
			s.table[slot].Last = s.next
		} else if all[i].counts() {
			fresh = append(fresh, all[i].Series)
		}
	}
	if s.omitted = 0; len(fresh) == 0 {
		return nil
	}
	inOrder(fresh)
	free := s.free()
	s.omitted = max(0, len(fresh)-len(free))
	fresh = fresh[:min(len(fresh), len(free))]
	if len(fresh) == 0 {
		return nil
	}
	table := s.table
	for i, series := range fresh {
		table[free[i]] = &owner{Series: series, Slot: free[i], Since: s.next, Last: s.next}
	}
	var owners []*owner
	for _, o := range table {
		if o != nil {
			owners = append(owners, o)
		}
	}
	if err := s.writeOwners(owners); err != nil {
		return fmt.Errorf("the table of series: %w", err)
	}
	for i, series := range fresh {
		if old := s.table[free[i]]; old != nil {
			delete(s.slots, old.Series)
		}
		s.slots[series] = free[i]
		for _, r := range s.rings {
			r.forget(free[i])
		}
	}
	s.table = table
	return nil
}

// free are the slots that a new series may have, in the order in which they are given.
func (s *Store) free() (slots []int) {
	for i, o := range s.table {
		if o == nil || o.Last < s.next {
			slots = append(slots, i)
		}
	}
	last := func(slot int) int64 {
		if o := s.table[slot]; o != nil {
			return o.Last
		}
		return -1
	}
	sort.SliceStable(slots, func(i, j int) bool { return last(slots[i]) < last(slots[j]) })
	return slots
}

// inOrder sorts series: of the node, of modules, of services. (Each type that slices.SortFunc sorts is 25 KB of code.)
func inOrder(all []v1.Series) { sort.Slice(all, func(i, j int) bool { return before(all[i], all[j]) }) }

func before(a, b v1.Series) bool {
	return cmp.Or(cmp.Compare(a.Service, b.Service), cmp.Compare(a.Module, b.Module), cmp.Compare(a.Name, b.Name),
		cmp.Compare(a.Direction, b.Direction), cmp.Compare(a.Verdict, b.Verdict), cmp.Compare(a.Reason, b.Reason)) < 0
}

// Read passes on what the series are and then their samples of the time since, oldest first, until an error. Their
// times rise: if the clock was set back, the samples from the time that comes twice are the later ones.
func (s *Store) Read(since time.Duration, want func(v1.Series) bool, send func(v1.HistoryLine) error) error {
	s.mu.Lock()
	r := s.rings[0]
	for _, longer := range s.rings[1:] {
		if time.Duration(r.every*r.slots)*Period < since {
			r = longer
		}
	}
	numbers := r.since(time.Now().Add(-since).UnixMilli(), s.next)
	var owners []owner
	head := v1.HistoryLine{Step: int(r.every) * int(Period.Seconds()), Omitted: s.omitted + s.beyond,
		Series: []v1.Series{}}
	for _, o := range s.table {
		if o != nil && want(o.Series) {
			owners = append(owners, *o)
		}
	}
	s.mu.Unlock()
	sort.Slice(owners, func(i, j int) bool { return before(owners[i].Series, owners[j].Series) })
	for _, o := range owners {
		head.Series = append(head.Series, o.Series)
	}
	err := send(head)
	for i := 0; err == nil && i < len(numbers); i++ {
		line, ok := s.line(r, numbers[i], owners)
		if ok {
			err = send(line)
		}
	}
	return err
}

// line reads one sample. Records that are damaged, or overwritten meanwhile, are left out.
func (s *Store) line(r *ring, number int64, owners []owner) (line v1.HistoryLine, ok bool) {
	s.mu.Lock()
	values, at, err := r.read(number)
	s.mu.Unlock()
	if err != nil {
		return line, false
	}
	n := len(values) / r.width
	line.Time = float64(at) / 1e3
	pick := func(of []float32) (out v1.Values) {
		for _, o := range owners {
			if o.Slot < n && o.Since <= number {
				out = append(out, of[o.Slot])
			} else {
				out = append(out, nan)
			}
		}
		return out
	}
	if line.Values = pick(values[:n]); r.width > 1 {
		line.Max = pick(values[n:])
	}
	return line, true
}
