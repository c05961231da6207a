// SPDX-License-Identifier: Apache-2.0

// Package history keeps what was changed on the node, by whom and with what outcome: compressed JSON, a line for each
// change and some changes in a file, which `zcat` shows. The oldest files go when there are too many. Records are
// written after a change was answered, and not synced: what a loss of power can take away is the newest records, never
// the desired state.
package history

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/parsed"
	"github.com/kerb-edge/kerb/internal/resource"
)

// What is kept: see Log.
const (
	MaxRecords = 1000
	MaxBytes   = 16 << 20 // compressed, of all records

	// Changes share files, as ext4 looks for a free inode among all that were deleted in the last minutes: a file for each
	// change took a quarter of the CPU time that a changed value takes.
	perFile  = 50
	fullFile = 1 << 20 // a file of so many bytes is not continued

	maxRecord  = 4 << 20  // compressed; of a larger one only the head is kept
	maxContent = 64 << 20 // of one record, as JSON
	maxPending = 64       // records that wait to be written
)

const suffix = ".json.gz"

// Log is the history of a node: the newest MaxRecords changes, as far as MaxBytes hold them. Its methods may be called
// from several goroutines.
type Log struct {
	dir    string
	failed func(error) // receives the errors of records that cannot be written
	// compressor takes more than a MiB, of which each change would leave garbage; used by write alone.
	compressor *parsed.Value[*gzip.Writer]

	current file         // used by write alone
	disk    sync.RWMutex // held while a file is written or read

	mu      sync.Mutex
	written *sync.Cond // pending has become shorter
	files   []kept     // oldest first
	last    int64      // number of the newest record
	refused *entry     // the newest record, if it is of a refusal
	pending []*entry   // added and not written yet, in order
	done    int        // records written since Open
}

// kept is a file of records, which has the number of its first one.
type kept struct{ first, size int64 }

// file is the file that the next record goes to, none if it has no records. One that was written before Open is not
// continued, as it can end in the middle of a record.
type file struct {
	first, newest int64 // numbers of records
	records       int
	at, end       int64 // where the newest record is
}

// entry is a record and what is needed to revert the change.
type entry struct {
	v1alpha1.ChangeRecord
	Was []resource.Object `json:"was,omitempty"`
	Cut bool              `json:"cut,omitempty"` // too large: before, after and was are missing
}

// stored is an entry as it is read.
type stored struct {
	v1alpha1.ChangeRecord
	Was json.RawMessage `json:"was"`
	Cut bool            `json:"cut"`
}

// Open reads which records are in a directory, which it makes. Where that fails, failed receives the error, and
// there are none: the node works without its history.
func Open(dir string, failed func(error)) *Log {
	l := &Log{dir: dir, failed: failed, compressor: parsed.New(newCompressor)}
	l.written = sync.NewCond(&l.mu)
	err := os.MkdirAll(dir, 0o700)
	files, unread := os.ReadDir(dir)
	if err = errors.Join(err, unread); err != nil {
		failed(err)
	}
	for _, f := range files {
		n, isRecord := numberOf(f.Name())
		if info, err := f.Info(); err == nil && isRecord {
			l.files = append(l.files, kept{n, info.Size()})
		}
	}
	slices.SortFunc(l.files, func(a, b kept) int { return cmp.Compare(a.first, b.first) })
	if len(l.files) > 0 {
		newest := l.files[len(l.files)-1].first
		l.last = newest
		_ = l.scan(newest, func(e stored) (enough bool) { l.last = max(l.last, e.Number); return false })
	}
	return l
}

func newCompressor() (*gzip.Writer, error) { return gzip.NewWriterLevel(io.Discard, gzip.BestSpeed) }

func (l *Log) path(n int64) string { return filepath.Join(l.dir, fmt.Sprintf("%08d%s", n, suffix)) }

func numberOf(file string) (int64, bool) {
	text, ok := strings.CutSuffix(file, suffix)
	n, err := strconv.ParseInt(text, 10, 64)
	return n, ok && err == nil && n > 0
}

// Add keeps a record, which gets the next number. was are the resources that it updates or deletes, as they were.
// Nothing of both may be changed any more. A refusal that repeats the newest record is counted there.
func (l *Log) Add(r v1alpha1.ChangeRecord, was []resource.Object) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.pending) >= maxPending {
		l.written.Wait()
	}
	e := &entry{ChangeRecord: r, Was: was}
	if l.refused != nil && l.refused.repeats(e) {
		e.Number, e.Repeated = l.refused.Number, l.refused.Repeated+1
	} else {
		l.last++
		e.Number = l.last
	}
	if l.refused = nil; e.Outcome == v1alpha1.OutcomeRefused {
		l.refused = e
	}
	if l.pending = append(l.pending, e); len(l.pending) == 1 {
		go l.write()
	}
}

// repeats reports whether two refusals are of the same request.
func (e *entry) repeats(next *entry) bool {
	same := func(a, b v1alpha1.Change) bool { return a.Action == b.Action && a.Kind == b.Kind && a.Name == b.Name }
	return next.Outcome == e.Outcome && next.Owner == e.Owner && next.Error == e.Error &&
		slices.EqualFunc(e.Changes, next.Changes, same)
}

// Flush waits until all records are written that have been added until now.
func (l *Log) Flush() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for last := l.done + len(l.pending); l.done < last; {
		l.written.Wait()
	}
}

// write writes what is pending.
func (l *Log) write() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.pending) > 0 {
		e := l.pending[0]
		l.mu.Unlock()
		if err := l.store(e); err != nil {
			l.failed(err)
		}
		l.mu.Lock()
		l.prune(e.Number)
		l.pending = slices.Delete(l.pending, 0, 1)
		l.done++
		l.written.Broadcast()
	}
	l.pending = nil
}

// store writes one record behind the newest, or in its place if it has the same number.
func (l *Log) store(e *entry) error {
	data, content, err := l.pack(e)
	if err == nil && (len(data) > maxRecord || content > maxContent) {
		data, _, err = l.pack(e.head())
	}
	if err != nil {
		return fmt.Errorf("record of change %d: %w", e.Number, err)
	}
	c := l.current
	repeated := c.newest == e.Number
	switch {
	case repeated:
	case c.records == 0 || c.records == perFile || c.end >= fullFile:
		c = file{first: e.Number, newest: e.Number, records: 1}
	default:
		c.newest, c.records, c.at = e.Number, c.records+1, c.end
	}
	c.end = c.at + int64(len(data))
	switch err = l.put(c, data); {
	case err == nil:
		l.current = c
	case !repeated: // else the next repeat takes the place of the record that is still there
		l.current = file{}
	}
	return err
}

// put writes the newest record of a file. After an error the file has what it had before.
func (l *Log) put(c file, data []byte) error {
	l.disk.Lock()
	defer l.disk.Unlock()
	f, err := os.OpenFile(l.path(c.first), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	before, err := io.ReadAll(io.NewSectionReader(f, c.at, maxRecord))
	if err != nil {
		return errors.Join(err, f.Close())
	}
	if _, err = f.WriteAt(data, c.at); err != nil { // may have written a part
		data = before
		_, undo := f.WriteAt(before, c.at)
		err = errors.Join(err, undo)
	}
	if err = errors.Join(err, f.Truncate(c.at+int64(len(data))), f.Close()); err != nil && c.at == 0 && len(before) == 0 {
		_ = os.Remove(l.path(c.first))
	}
	return err
}

// pack returns a record as it is stored, and how many bytes of JSON it has.
func (l *Log) pack(e *entry) (data []byte, content int, err error) {
	text, err := json.Marshal(e)
	if err != nil {
		return nil, 0, err
	}
	w, err := l.compressor.Get()
	if err != nil {
		return nil, 0, err
	}
	var out bytes.Buffer
	w.Reset(&out)
	_, err = w.Write(append(text, '\n'))
	err = errors.Join(err, w.Close())
	return out.Bytes(), len(text), err
}

// head is an entry without what can be large.
func (e *entry) head() *entry {
	r := Brief(e.ChangeRecord)
	r.Changes, r.Error = r.Changes[:min(len(r.Changes), 1000)], r.Error[:min(len(r.Error), 1000)]
	return &entry{ChangeRecord: r, Cut: true}
}

// Brief returns a record without what lists leave out.
func Brief(r v1alpha1.ChangeRecord) v1alpha1.ChangeRecord {
	r.Steps, r.Changes = nil, resource.WithoutDocuments(r.Changes)
	return r
}

// prune takes note of the current file, and removes the oldest ones beyond the limits. l.mu is held.
func (l *Log) prune(newest int64) {
	if c := l.current; c.records > 0 {
		if n := len(l.files); n > 0 && l.files[n-1].first == c.first {
			l.files = l.files[:n-1]
		}
		l.files = append(l.files, kept{c.first, c.end})
	}
	var total int64
	for _, f := range l.files {
		total += f.size
	}
	for len(l.files) > 1 && (total > MaxBytes || newest-l.files[0].first >= MaxRecords) {
		if err := os.Remove(l.path(l.files[0].first)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			l.failed(err)
		}
		total -= l.files[0].size
		l.files = slices.Delete(l.files, 0, 1)
	}
}

// Last returns the number of the newest record, 0 if there was none.
func (l *Log) Last() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last
}

// List returns the records that match, newest first and brief. Records that cannot be read are left out.
func (l *Log) List(r v1alpha1.ChangesRequest) []v1alpha1.ChangeRecord {
	l.Flush()
	l.mu.Lock()
	files := slices.Clone(l.files)
	l.mu.Unlock()
	out := []v1alpha1.ChangeRecord{}
	for _, f := range slices.Backward(files) {
		var found []v1alpha1.ChangeRecord
		_ = l.scan(f.first, func(e stored) (enough bool) {
			if concerns(e.ChangeRecord, r) {
				found = append(found, Brief(e.ChangeRecord))
			}
			return false
		})
		slices.Reverse(found)
		if out = append(out, found...); len(out) >= r.Limit {
			return out[:r.Limit]
		}
	}
	return out
}

func concerns(record v1alpha1.ChangeRecord, r v1alpha1.ChangesRequest) bool {
	if r.Kind == "" && r.Name == "" {
		return true
	}
	return slices.ContainsFunc(record.Changes, func(c v1alpha1.Change) bool {
		return (r.Kind == "" || strings.EqualFold(c.Kind, r.Kind)) && (r.Name == "" || c.Name == r.Name)
	})
}

// Get returns a record. *apierrors.NotFound if it is not kept.
func (l *Log) Get(n int64) (v1alpha1.ChangeRecord, error) {
	l.Flush()
	e, err := l.read(n)
	return e.ChangeRecord, err
}

// Was returns a record, and the resources that the change updated or deleted, as they were. *apierrors.NotFound if it
// is not kept, *apierrors.Conflict if only its head is.
func (l *Log) Was(n int64) (v1alpha1.ChangeRecord, []resource.Object, error) {
	l.Flush()
	e, err := l.read(n)
	if err == nil && e.Cut {
		err = &apierrors.Conflict{Reason: fmt.Sprintf("change %d was too large to be kept for reverting", n)}
	}
	if err != nil || len(e.Was) == 0 {
		return e.ChangeRecord, nil, err
	}
	was, err := resource.Decode(e.Was)
	return e.ChangeRecord, was, err
}

func (l *Log) read(n int64) (found stored, err error) {
	first := int64(0)
	l.mu.Lock()
	for _, f := range l.files {
		if f.first <= n {
			first = f.first
		}
	}
	l.mu.Unlock()
	err = l.scan(first, func(e stored) (enough bool) {
		if e.Number == n {
			found = e
		}
		return e.Number >= n
	})
	if found.Number == n {
		return found, nil
	}
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return found, &apierrors.NotFound{Kind: "Change", Name: strconv.FormatInt(n, 10)}
	}
	return found, fmt.Errorf("the record of change %d: %w", n, err)
}

// scan passes on the records of a file, in order, until that is enough or one cannot be read.
func (l *Log) scan(first int64, visit func(stored) (enough bool)) error {
	l.disk.RLock()
	defer l.disk.RUnlock()
	f, err := os.Open(l.path(first))
	if err != nil {
		return err
	}
	defer f.Close()
	r, err := gzip.NewReader(f)
	if err != nil {
		return err
	}
	for lines := json.NewDecoder(r); ; {
		var e stored
		if err := lines.Decode(&e); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if visit(e) {
			return nil
		}
	}
}
