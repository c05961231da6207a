// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/resource"
)

// A change is a record in the journal, which is on disk after one fdatasync; a transaction of bbolt needs two, and
// writes pages all over its file. The contents of the journal are written to the file in one transaction: when no
// change follows for flushAfter, when the journal is full, and before all other writes. Each record names the base that
// it changes, see baseOf, so that records that are already in the file, or belong to another file, are ignored.

const (
	journalSize = 256 << 10
	maxRecord   = 64 << 10 // a larger change is written to the file
	recordHead  = 8        // length and checksum
	flushAfter  = time.Second
)

// journal is the journal file and its contents.
type journal struct {
	path    string
	file    *os.File // nil before the first record
	base    []byte   // of the file without the pending changes, see baseOf
	end     int64    // of the last record
	sum     uint32   // its checksum, which the next record's continues
	pending map[resource.Ref]json.RawMessage
	stuck   bool // the file or a record could not be written: the next change writes the file
	timer   *time.Timer
}

// record is one change.
type record struct {
	Base    []byte   `json:"base"`
	Nonce   string   `json:"nonce"` // prevents that a record matches after one that was overwritten
	Changes []stored `json:"changes"`
}

// stored is the new value of a resource in the file.
type stored struct {
	Kind string          `json:"kind"`
	Name string          `json:"name"`
	Data json.RawMessage `json:"data,omitempty"` // none: it is removed
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// syncRecord returns when a record is on disk. Tests replace it.
var syncRecord = func(f *os.File) error { return unix.Fdatasync(int(f.Fd())) }

func journalOf(path string) string { return path + ".journal" }

// fitsJournal reports whether a record can hold all of the changes.
func fitsJournal(c resource.Changes) bool {
	for _, kind := range resource.Kinds() {
		if _, inParts := kind.New().(parted); (inParts || kind.Archives()) && c.OfKind(kind).Len() > 0 {
			return false
		}
	}
	return true
}

// encode returns the stored form of a resource, without its parts.
func encode(o resource.Object) (json.RawMessage, error) {
	o = resource.KindOf(o).Copy(o)
	o.ClearStatus()
	withoutParts(o)
	return json.Marshal(o)
}

// encode returns a record and its bytes, preceded by recordHead bytes of room for length and checksum. The nonce makes
// two records with the same changes differ.
func (j *journal) encode(c resource.Changes) (r record, out []byte, err error) {
	r = record{Base: j.base, Nonce: rand.Text()}
	for _, ref := range c.Remove {
		r.Changes = append(r.Changes, stored{Kind: ref.Kind, Name: ref.Name})
	}
	for _, o := range c.Put {
		data, err := encode(o)
		if err != nil {
			return r, nil, fmt.Errorf("%s: %w", o.Meta().Name, err)
		}
		ref := resource.RefOf(o)
		r.Changes = append(r.Changes, stored{ref.Kind, ref.Name, data})
	}
	text, err := r.appendTo(make([]byte, recordHead))
	return r, text, err
}

// appendTo appends the record as JSON. The stored form of a resource is JSON already, which json.Marshal would read
// again.
func (r record) appendTo(out []byte) ([]byte, error) {
	head, err := json.Marshal(record{Base: r.Base, Nonce: r.Nonce, Changes: []stored{}})
	if err != nil {
		return nil, err
	}
	out = append(out, bytes.TrimSuffix(head, []byte("]}"))...)
	for i, c := range r.Changes {
		data := c.Data
		c.Data = nil
		one, err := json.Marshal(c)
		if err != nil {
			return nil, err
		}
		if i > 0 {
			out = append(out, ',')
		}
		if out = append(out, one...); data != nil {
			out = append(append(append(out[:len(out)-1], `,"data":`...), data...), '}')
		}
	}
	return append(out, "]}"...), nil
}

// append adds a change, unless the journal cannot hold it: then the file has to be written. After an error the journal
// is unchanged.
func (j *journal) append(c resource.Changes) (done bool, err error) {
	r, data, err := j.encode(c)
	if err != nil || len(data) > maxRecord || j.end+int64(len(data)) > journalSize || j.open() != nil {
		return false, err
	}
	sum := crc32.Update(j.sum, castagnoli, data[recordHead:])
	binary.LittleEndian.PutUint32(data, uint32(len(data)-recordHead))
	binary.LittleEndian.PutUint32(data[4:], sum)
	if _, err = j.file.WriteAt(data, j.end); err == nil {
		err = syncRecord(j.file)
	}
	if err != nil {
		// Otherwise the next start would consider it committed. The state on disk is unknown now: the next change writes the
		// file, to which no record of this journal belongs.
		_, zeroErr := j.file.WriteAt(make([]byte, recordHead), j.end)
		j.stuck = true
		return false, errors.Join(err, zeroErr, syncRecord(j.file))
	}
	j.end, j.sum = j.end+int64(len(data)), sum
	j.take(r)
	return true, nil
}

func (j *journal) take(r record) {
	if j.pending == nil {
		j.pending = map[resource.Ref]json.RawMessage{}
	}
	for _, c := range r.Changes {
		j.pending[resource.Ref{Kind: c.Kind, Name: c.Name}] = c.Data
	}
}

// open creates the journal with its final size, so that records are written in place.
func (j *journal) open() error {
	if j.file != nil {
		return nil
	}
	f, err := os.OpenFile(j.path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	if info, statErr := f.Stat(); statErr != nil || info.Size() < journalSize { // existing records stay
		_, err = f.WriteAt(make([]byte, journalSize-j.end), j.end)
	}
	if err = errors.Join(err, f.Sync(), syncDir(filepath.Dir(j.path))); err != nil {
		if err = errors.Join(err, f.Close()); j.end == 0 {
			err = errors.Join(err, os.Remove(j.path))
		}
		return err
	}
	j.file = f
	return nil
}

// read reads the records for this file that a killed process has left.
func (j *journal) read() error {
	data, err := os.ReadFile(j.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for len(data) >= recordHead {
		size, sum := binary.LittleEndian.Uint32(data), binary.LittleEndian.Uint32(data[4:])
		if size == 0 || size > maxRecord || int(size) > len(data)-recordHead {
			return nil
		}
		text := data[recordHead:][:size]
		var r record
		if crc32.Update(j.sum, castagnoli, text) != sum || json.Unmarshal(text, &r) != nil || !bytes.Equal(r.Base, j.base) {
			return nil
		}
		if err := known(r); err != nil {
			return err
		}
		j.take(r)
		j.end, j.sum, data = j.end+int64(recordHead+size), sum, data[recordHead+size:]
	}
	return nil
}

// known rejects records of resources that this build would lose.
func known(r record) error {
	for _, c := range r.Changes {
		if _, ok := kindCalled(c.Kind); !ok {
			return errNewerRecord
		}
	}
	return nil
}

var errNewerRecord = errors.New("the journal has a resource of a kind that is unknown to this build")

func kindCalled(name string) (resource.Kind, bool) {
	for _, kind := range resource.Kinds() {
		if kind.Names().Kind == name {
			return kind, true
		}
	}
	return nil, false
}

// write writes the contents of the journal to the file.
func (j *journal) write(tx *bbolt.Tx) error {
	for ref, data := range j.pending {
		kind, _ := kindCalled(ref.Kind)
		b, err := tx.CreateBucketIfNotExists(bucketOf(kind))
		if err != nil {
			return err
		}
		if data == nil {
			err = b.Delete([]byte(ref.Name))
		} else {
			err = b.Put([]byte(ref.Name), data)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// amend applies the journal to the state read from the file.
func (j *journal) amend(d resource.State) error {
	for ref, data := range j.pending {
		if delete(d[ref.Kind], ref.Name); data == nil {
			continue
		}
		kind, _ := kindCalled(ref.Kind)
		o := kind.New()
		if err := json.Unmarshal(data, o); err != nil {
			return fmt.Errorf("%w: journal: %s: %w", ErrCorrupt, ref.Name, err)
		}
		d.Put(o)
	}
	return nil
}

// reset starts an empty journal, for a file with another base that contains everything.
func (j *journal) reset(base []byte) {
	j.base, j.end, j.sum, j.pending, j.stuck = base, 0, 0, nil, false
}

func (j *journal) close() error {
	if j.file == nil {
		return nil
	}
	return j.file.Close()
}

// flush writes the file after the last change. If that fails, the changes stay in the journal, which accepts no more:
// the next change fails, or is written together with them.
func (s *Store) flush() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed && len(s.journal.pending) > 0 {
		s.journal.stuck = s.write(seal) != nil
	}
}

// flushLater calls flush when no change has followed for flushAfter.
func (s *Store) flushLater() {
	if s.journal.timer == nil {
		s.journal.timer = time.AfterFunc(flushAfter, s.flush)
		return
	}
	s.journal.timer.Reset(flushAfter)
}

// baseOf returns the identity by which journal records refer to the file. The digest is also that of builds without a
// nonce.
func baseOf(tx *bbolt.Tx) []byte {
	meta := tx.Bucket(bucketMeta)
	return slices.Concat(meta.Get(keyDigest), meta.Get(keyNonce))
}

// updateFile runs a transaction of the file. Tests replace it.
var updateFile = (*bbolt.DB).Update

// hasBase reports whether records with this base belong to the file.
func (s *Store) hasBase(base []byte) (same bool) {
	err := s.run(func() error {
		return s.db.View(func(tx *bbolt.Tx) error {
			same = bytes.Equal(baseOf(tx), base)
			return nil
		})
	})
	return same && err == nil
}

// CommitNext commits the next state, which differs from the current one by changes. If a damaged store has lost the
// current state, it commits all of the next one, unless running chains are to be kept.
func (s *Store) CommitNext(next resource.State, c resource.Changes, keep bool) error {
	if s.RecoveryPending() && !keep {
		return s.Acknowledge(next)
	}
	if c.Len() == 0 {
		return nil
	}
	return s.CommitChanges(c)
}
