// SPDX-License-Identifier: Apache-2.0

// Package store keeps the desired state on disk. The kernel is only a cache of it: if the file is lost, the operator's
// configuration is lost. So every commit is synced, as a record of a journal or as a transaction of the file, and a
// damaged file is renamed, and neither trusted nor deleted.
package store

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/resource"
)

// SchemaVersion is the version of the file format that this build writes. It also reads older ones. Each additional
// kind of resources makes a new version, which builds without it reject: they would lose its resources. Version 3 had
// four kinds.
var SchemaVersion = len(resource.Kinds()) - 1

// Open waits up to lockWait until another process releases the store, and tries every lockRetry.
const (
	lockWait  = 2 * time.Second
	lockRetry = 50 * time.Millisecond
)

var (
	// ErrReadOnly is returned by writes when the file can only be read. It is a *apierrors.ReadOnly.
	ErrReadOnly error = &apierrors.ReadOnly{Reason: "the store can only be read; make the directory of the agent's " +
		"state writable, and restart the agent"}
	// ErrFull is returned by writes when the disk is full. The state before the write is preserved. It is a
	// *apierrors.ReadOnly.
	ErrFull error = &apierrors.ReadOnly{Reason: "no space is left for the store; free some on the file system of the " +
		"agent's state, and repeat the change"}
	// ErrLocked is returned by Open when another process holds the file.
	ErrLocked = errors.New("another process has the store open")
	// ErrCorrupt is returned when damage of the file is detected after it was opened.
	ErrCorrupt = errors.New("the store is damaged")
)

// NewerError is returned by Open for a file written by a newer build.
type NewerError struct {
	Path  string
	Found int
}

func (e *NewerError) Error() string {
	return fmt.Sprintf("%s has schema version %d, this build has %d: run the newer kerb, or move the file away", e.Path,
		e.Found, SchemaVersion)
}

// Recovery describes a damaged file that Open has renamed.
type Recovery struct {
	Path  string // where the damaged file is now
	Cause error
}

func (r *Recovery) Error() string {
	return fmt.Sprintf("the store was damaged (%v) and is kept as %s; desired state starts empty", r.Cause, r.Path)
}

// Store is an open file. Its methods are safe for concurrent use.
type Store struct {
	path     string
	mu       sync.Mutex
	db       *bbolt.DB // read-only until the first write, see own
	broken   error     // bbolt found damage while the file was open, and may never release its lock
	readOnly bool
	recovery *Recovery
	journal  journal
	closed   bool
}

// Open opens the file at path, and creates it, readable only by its owner, if it does not exist. Its directory must
// exist.
//
// A damaged file is renamed to path + ".damaged-" + time, and replaced by an empty one with the recovered flag set;
// Recovery returns the new name. A read-only file is opened for reading. Errors: ErrLocked, ErrReadOnly and ErrFull
// when the file does not exist and cannot be created, *NewerError.
func Open(path string) (*Store, error) {
	if err := ensure(path, false); err != nil {
		return nil, fmt.Errorf("store %s: %w", path, classify(err))
	}
	s, err := open(path)
	if !errors.Is(err, ErrCorrupt) {
		return s, err
	}
	return replace(path, err)
}

// open opens an existing file for reading. It returns ErrCorrupt for any damage.
func open(path string) (*Store, error) {
	db, err := openBolt(path)
	if err != nil {
		return nil, fmt.Errorf("store %s: %w", path, classify(err))
	}
	if err := verify(db, path); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	readOnly := errors.Is(classify(unix.Access(filepath.Dir(path), unix.W_OK)), ErrReadOnly)
	s := &Store{path: path, db: db, readOnly: readOnly, journal: journal{path: journalOf(path)}}
	if err := errors.Join(s.readBase(), s.journal.read()); err != nil {
		return nil, errors.Join(fmt.Errorf("store %s: %w", path, classify(err)), db.Close())
	}
	return s, nil
}

func (s *Store) readBase() error {
	return s.db.View(func(tx *bbolt.Tx) error {
		s.journal.base = baseOf(tx)
		return nil
	})
}

// openBolt opens a file for reading, and locks it exclusively.
func openBolt(path string) (*bbolt.DB, error) {
	for {
		db, file, err := tryOpenBolt(path)
		if err != nil {
			return nil, err
		}
		err = lock(file)
		current := false
		if err == nil {
			current, err = isAt(file, path)
		}
		if current {
			return db, nil
		}
		if err := errors.Join(err, db.Close()); err != nil {
			return nil, err
		}
	}
}

// tryOpenBolt opens the file for reading, without creating it. bbolt panics on some damaged files and leaves the file
// open; the panic becomes an error.
func tryOpenBolt(path string) (db *bbolt.DB, file *os.File, err error) {
	if err := checkFile(path); err != nil {
		return nil, nil, err
	}
	options := &bbolt.Options{
		Timeout:  lockWait,
		ReadOnly: true,
		OpenFile: func(name string, flag int, mode os.FileMode) (*os.File, error) {
			var err error
			file, err = os.OpenFile(name, flag&^os.O_CREATE, mode)
			return file, err
		},
	}
	err = contain(func() error {
		db, err = bbolt.Open(path, 0o600, options)
		return err
	})
	if errors.Is(err, errPanic) && file != nil {
		err = errors.Join(err, file.Close()) // bbolt releases nothing when it panics
	}
	return db, file, err
}

// own replaces the file by a copy that is open for writing, unless it has already. The digest covers only resources:
// when bbolt writes, it also trusts page headers and the free list, which are new in the copy. (Checking them with
// bbolt's Tx.Check would end the process if they are damaged.)
func (s *Store) own() error {
	if !s.db.IsReadOnly() {
		return nil
	}
	old := s.db
	if err := s.trim(); err != nil {
		return err
	}
	db, err := copyTo(s.path, old)
	if err != nil {
		return err
	}
	s.db = db
	return old.Close()
}

// trim truncates the file after its last page: a change that did not fit on the disk leaves such a tail.
func (s *Store) trim() error {
	return s.db.View(func(tx *bbolt.Tx) error {
		info, err := os.Stat(s.path)
		if err != nil || info.Size() <= tx.Size() {
			return err
		}
		return os.Truncate(s.path, tx.Size())
	})
}

// replace renames the damaged file and creates an empty one.
func replace(path string, cause error) (*Store, error) {
	suffix := ".damaged-" + time.Now().UTC().Format("20060102T150405.000000000Z")
	aside := path + suffix
	if err := os.Rename(path, aside); err != nil {
		return nil, fmt.Errorf("store %s: %w; setting it aside: %w", path, cause, classify(err))
	}
	if err := os.Rename(journalOf(path), journalOf(path)+suffix); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("store %s: %w; setting its journal aside: %w", path, cause, classify(err))
	}
	if err := ensure(path, true); err != nil {
		return nil, fmt.Errorf("store %s: %w; making a new one: %w", path, cause, classify(err))
	}
	s, err := open(path)
	if err != nil {
		return nil, err
	}
	s.recovery = &Recovery{Path: aside, Cause: cause}
	return s, nil
}

// Close writes all changes to the file and closes it, unless damage was detected since it was opened: then the process
// keeps it open until it ends.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed && !s.readOnly && len(s.journal.pending) > 0 {
		_ = s.write(seal) // otherwise the journal keeps them
	}
	s.closed = true
	err := s.journal.close()
	if s.broken != nil {
		return err
	}
	if len(s.journal.pending) == 0 && !s.readOnly {
		err = errors.Join(err, removeIfExists(s.journal.path))
	}
	return errors.Join(err, s.db.Close())
}

// Recovery returns the damaged file that Open has renamed, or nil.
func (s *Store) Recovery() *Recovery { return s.recovery }

// ReadOnly reports whether Commit must fail, as far as was known when the file was opened.
func (s *Store) ReadOnly() bool { return s.readOnly }

// RecoveryPending reports whether the store started empty after damage and Acknowledge has not been called since then.
func (s *Store) RecoveryPending() bool {
	var recovered bool
	err := s.view(func(tx *bbolt.Tx) error {
		recovered = tx.Bucket(bucketMeta).Get(keyRecovered) != nil
		return nil
	})
	return recovered && err == nil
}

// Snapshot returns the desired state: everything that was applied, without status. The caller owns it.
func (s *Store) Snapshot() (resource.State, error) {
	d := resource.State{}
	err := s.view(func(tx *bbolt.Tx) error {
		for _, kind := range resource.Kinds() {
			if err := read(tx, kind, d); err != nil {
				return err
			}
		}
		return s.journal.amend(d)
	})
	return d, err
}

// Commit stores d as the desired state, completely or, with an error, not at all. When it returns nil, d is on disk.
// Errors: ErrReadOnly, ErrFull, ErrCorrupt.
func (s *Store) Commit(d resource.State) error {
	return s.update(func(tx *bbolt.Tx) error { return commit(tx, d) })
}

// CommitChanges is Commit for changes only: its cost does not depend on the number of other resources. If the disk
// failed to sync the last page of a transaction, the file may contain the change in spite of the error.
func (s *Store) CommitChanges(c resource.Changes) error {
	if done, err := s.append(c); done || err != nil {
		return err
	}
	return s.update(func(tx *bbolt.Tx) error {
		for _, kind := range resource.Kinds() {
			if err := write(tx, kind, c.OfKind(kind)); err != nil {
				return err
			}
		}
		return seal(tx)
	})
}

// Acknowledge commits and clears RecoveryPending in one transaction.
func (s *Store) Acknowledge(d resource.State) error {
	return s.update(func(tx *bbolt.Tx) error {
		return errors.Join(commit(tx, d), tx.Bucket(bucketMeta).Delete(keyRecovered))
	})
}

// commit makes the store contain exactly d, in one transaction. Equal values are not written again.
func commit(tx *bbolt.Tx, d resource.State) error {
	for _, kind := range resource.Kinds() {
		c := resource.Changes{Put: slices.Collect(maps.Values(d[kind.Names().Kind]))}
		for name := range eachKey(tx.Bucket(bucketOf(kind))) {
			if _, ok := d[kind.Names().Kind][name]; !ok {
				c.Remove = append(c.Remove, resource.Ref{Kind: kind.Names().Kind, Name: name})
			}
		}
		if err := write(tx, kind, c); err != nil {
			return err
		}
	}
	return seal(tx)
}

// seal writes the digest of the resources.
func seal(tx *bbolt.Tx) error {
	meta := tx.Bucket(bucketMeta)
	return errors.Join(meta.Put(keySchema, []byte(strconv.Itoa(SchemaVersion))), meta.Put(keyDigest, digest(tx)))
}

// append makes a change in the journal. done is false if the file has to be written for it.
func (s *Store) append(c resource.Changes) (done bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.broken != nil:
		return false, s.broken
	case s.readOnly:
		return false, ErrReadOnly
	case s.closed || s.journal.stuck || !fitsJournal(c):
		return false, nil
	}
	if done, err = s.journal.append(c); done {
		s.flushLater()
	}
	return done, wrap(err)
}

func (s *Store) view(do func(*bbolt.Tx) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.run(func() error { return s.db.View(do) })
}

// update runs do in a transaction that is synced to disk if it returns without an error, and is rolled back otherwise.
func (s *Store) update(do func(*bbolt.Tx) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.readOnly {
		return ErrReadOnly
	}
	return s.write(do)
}

// write is update of a writable file, while s.mu is held. It also writes the contents of the journal to the file.
func (s *Store) write(do func(*bbolt.Tx) error) error {
	var base []byte
	err := s.run(func() error {
		if err := s.own(); err != nil {
			return err
		}
		return updateFile(s.db, func(tx *bbolt.Tx) error {
			if err := s.journal.write(tx); err != nil {
				return err
			}
			// two transactions never leave the same base, even if they leave the same resources
			err := errors.Join(do(tx), tx.Bucket(bucketMeta).Put(keyNonce, []byte(rand.Text())))
			base = baseOf(tx)
			return err
		})
	})
	if err == nil {
		s.journal.reset(base)
	} else if !s.hasBase(s.journal.base) {
		s.journal.stuck = true // only the last fdatasync failed: no record belongs to this file any more
	}
	return err
}

// run makes a call of bbolt, but none after one that has found damage.
func (s *Store) run(call func() error) error {
	if s.broken != nil {
		return s.broken
	}
	err := wrap(contain(call))
	if errors.Is(err, errPanic) {
		s.broken = err
	}
	return err
}

func wrap(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("store: %w", classify(err))
}

// classify joins the cause with the sentinel error for callers.
func classify(err error) error {
	sentinel := sentinelOf(err)
	if sentinel == nil || errors.Is(err, sentinel) {
		return err
	}
	return fmt.Errorf("%w: %w", sentinel, err)
}

// sentinelOf returns the sentinel for an error of the file system or of bbolt, or nil if none fits. Callers add the
// original error.
func sentinelOf(err error) error {
	switch {
	case err == nil:
		return nil
	case anyOf(err, syscall.EROFS, syscall.EACCES, syscall.EPERM, bolterrors.ErrDatabaseReadOnly):
		return ErrReadOnly
	case anyOf(err, syscall.ENOSPC, syscall.EDQUOT, syscall.EFBIG):
		return ErrFull
	case errors.Is(err, bolterrors.ErrTimeout):
		return ErrLocked
	case anyOf(err, errPanic, bolterrors.ErrInvalid, bolterrors.ErrChecksum, bolterrors.ErrVersionMismatch):
		return ErrCorrupt
	}
	return nil
}

func anyOf(err error, targets ...error) bool {
	for _, t := range targets {
		if errors.Is(err, t) {
			return true
		}
	}
	return false
}

// read reads the bucket of a kind, which may be missing in a file of an older version.
func read(tx *bbolt.Tx, kind resource.Kind, into resource.State) error {
	b := tx.Bucket(bucketOf(kind))
	if b == nil {
		return nil
	}
	return b.ForEach(func(name, data []byte) error {
		o := kind.New()
		if err := json.Unmarshal(data, o); err != nil {
			return fmt.Errorf("%w: %s: %w", ErrCorrupt, name, err)
		}
		into.Put(o)
		return readParts(tx, o)
	})
}

// write changes resources of a kind. It writes only differences: unchanged pages are not written.
func write(tx *bbolt.Tx, kind resource.Kind, c resource.Changes) error {
	b, err := tx.CreateBucketIfNotExists(bucketOf(kind))
	if err != nil {
		return err
	}
	for _, r := range c.Remove {
		if err := errors.Join(b.Delete([]byte(r.Name)), forgetVersions(tx, kind, r.Name),
			forgetParts(tx, kind, r.Name)); err != nil {
			return err
		}
	}
	for _, o := range c.Put {
		if err := errors.Join(put(tx, b, kind, o), writeParts(tx, o)); err != nil {
			return fmt.Errorf("%s: %w", o.Meta().Name, err)
		}
	}
	return nil
}

// put stores an object and keeps the replaced version. Equal bytes are not written again, so that applying the same
// resource twice creates no version.
func put(tx *bbolt.Tx, b *bbolt.Bucket, kind resource.Kind, o resource.Object) error {
	data, err := encode(o)
	if err != nil {
		return err
	}
	name := []byte(o.Meta().Name)
	stored := bytes.Clone(b.Get(name))
	if bytes.Equal(stored, data) {
		return nil
	}
	if err := b.Put(name, data); err != nil || stored == nil {
		return err
	}
	return keepVersion(tx, kind, stored, o)
}
