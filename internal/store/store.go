// SPDX-License-Identifier: Apache-2.0

// Package store keeps the desired state on disk. The kernel is only a cache of it: losing the file loses the operator's
// wishes, so every commit is one fsynced transaction, and a damaged file is set aside rather than trusted or deleted.
package store

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/fault"
)

// SchemaVersion is the layout of the file that this build writes. It reads older ones, too.
const SchemaVersion = 3

// lockWait is how long Open waits for another process to let go of the file.
const lockWait = 2 * time.Second

var (
	// ErrReadOnly is returned by writes when the file can only be read. It is a *fault.ReadOnly.
	ErrReadOnly error = &fault.ReadOnly{Reason: "the store can only be read"}
	// ErrFull is returned by writes when the disk is full. The state is the one before the write. It is a *fault.ReadOnly.
	ErrFull error = &fault.ReadOnly{Reason: "no space is left for the store"}
	// ErrLocked is returned by Open when another process holds the file.
	ErrLocked = errors.New("another process has the store open")
	// ErrCorrupt is returned when the file is found damaged after it was opened.
	ErrCorrupt = errors.New("the store is damaged")
)

// NewerError is returned by Open for a file that a newer build has written.
type NewerError struct {
	Path  string
	Found int
}

func (e *NewerError) Error() string {
	return fmt.Sprintf("%s has schema version %d, this build knows %d: run the newer kerb, or move the file away", e.Path, e.Found, SchemaVersion)
}

// Recovery tells of a damaged file that Open has set aside.
type Recovery struct {
	Path  string // where the damaged file is now
	Cause error
}

func (r *Recovery) Error() string {
	return fmt.Sprintf("the store was damaged (%v) and is kept as %s; desired state starts empty", r.Cause, r.Path)
}

// Desired is everything the operator wants. Status is never part of it.
type Desired struct {
	Modules         map[string]v1alpha1.Module
	Services        map[string]v1alpha1.Service
	VirtualServices map[string]v1alpha1.VirtualService
	Models          map[string]v1alpha1.Model
}

// Clone returns a copy with maps of its own; the resources in it are shared.
func (d Desired) Clone() Desired {
	return Desired{Modules: maps.Clone(d.Modules), Services: maps.Clone(d.Services), VirtualServices: maps.Clone(d.VirtualServices), Models: maps.Clone(d.Models)}
}

// Store is an open file. Its methods may be called from several goroutines.
type Store struct {
	mu       sync.Mutex
	db       *bbolt.DB
	readOnly bool
	recovery *Recovery
}

// Open opens the file at path and makes it, readable to its owner only, if it does not exist. Its directory must exist.
//
// A damaged file is renamed to path + ".damaged-" + time, and a fresh one takes its place with the recovered flag set;
// Recovery tells where it went. A file that can only be read is opened for reading. Errors: ErrLocked, ErrReadOnly and
// ErrFull when there is no file and none can be made, *NewerError.
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

// open opens an existing file, for reading if it cannot be written. All damage is ErrCorrupt.
func open(path string) (*Store, error) {
	db, err := openBolt(path, false)
	readOnly := errors.Is(classify(err), ErrReadOnly)
	if readOnly {
		db, err = openBolt(path, true)
	}
	if err != nil {
		return nil, fmt.Errorf("store %s: %w", path, classify(err))
	}
	if err := verify(db, path); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return &Store{db: db, readOnly: readOnly}, nil
}

func openBolt(path string, readOnly bool) (db *bbolt.DB, err error) {
	if err := checkLayout(path); err != nil {
		return nil, err
	}
	var file *os.File
	options := &bbolt.Options{
		Timeout:  lockWait,
		ReadOnly: readOnly,
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
		err = errors.Join(err, file.Close()) // bbolt lets go of nothing when it panics
	}
	return db, err
}

// replace sets the damaged file aside and starts afresh.
func replace(path string, cause error) (*Store, error) {
	aside := path + ".damaged-" + time.Now().UTC().Format("20060102T150405.000000000Z")
	if err := os.Rename(path, aside); err != nil {
		return nil, fmt.Errorf("store %s: %w; setting it aside: %w", path, cause, classify(err))
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

// Close lets go of the file.
func (s *Store) Close() error { return s.db.Close() }

// Recovery returns what Open had to set aside, or nil.
func (s *Store) Recovery() *Recovery { return s.recovery }

// ReadOnly tells whether Commit cannot succeed, as far as was known when the file was opened.
func (s *Store) ReadOnly() bool { return s.readOnly }

// Recovered tells whether the state started empty after damage, and nobody has acknowledged it since.
func (s *Store) Recovered() bool {
	var recovered bool
	err := s.view(func(tx *bbolt.Tx) error {
		recovered = tx.Bucket(bucketMeta).Get(keyRecovered) != nil
		return nil
	})
	return recovered && err == nil
}

// Snapshot returns the desired state. The caller owns it.
func (s *Store) Snapshot() (Desired, error) {
	d := Desired{Modules: map[string]v1alpha1.Module{}, Services: map[string]v1alpha1.Service{},
		VirtualServices: map[string]v1alpha1.VirtualService{}, Models: map[string]v1alpha1.Model{}}
	err := s.view(func(tx *bbolt.Tx) error {
		if err := read(tx.Bucket(bucketModules), d.Modules); err != nil {
			return err
		}
		if err := read(tx.Bucket(bucketServices), d.Services); err != nil {
			return err
		}
		if err := read(tx.Bucket(bucketVirtualServices), d.VirtualServices); err != nil {
			return err
		}
		return read(tx.Bucket(bucketModels), d.Models)
	})
	return d, err
}

// Commit makes d the desired state: all of it or, with an error, none. When it returns nil, d is on the disk. Errors:
// ErrReadOnly, ErrFull, ErrCorrupt.
func (s *Store) Commit(d Desired) error {
	return s.update(func(tx *bbolt.Tx) error { return commit(tx, d) })
}

// Part is a change of resources that only control planes are told of.
type Part struct {
	VirtualServices Some[v1alpha1.VirtualService]
	Models          Some[v1alpha1.Model]
}

// Some are changes of one kind of resources.
type Some[T any] struct {
	Put    []T
	Remove []string // by name
}

// Len is how many there are.
func (s Some[T]) Len() int { return len(s.Put) + len(s.Remove) }

// Len is how many resources change.
func (p Part) Len() int { return p.VirtualServices.Len() + p.Models.Len() }

// CommitPart is Commit of a part alone: what it costs does not depend on how many other resources there are.
func (s *Store) CommitPart(p Part) error {
	return s.update(func(tx *bbolt.Tx) error {
		virtual, err := tx.CreateBucketIfNotExists(bucketVirtualServices)
		if err != nil {
			return err
		}
		for _, name := range p.VirtualServices.Remove {
			if err := virtual.Delete([]byte(name)); err != nil {
				return err
			}
		}
		for _, v := range p.VirtualServices.Put {
			if _, err := writeOne(virtual, v.Metadata.Name, withoutVirtualServiceStatus(v)); err != nil {
				return err
			}
		}
		if err := writeModels(tx, p.Models); err != nil {
			return err
		}
		return seal(tx)
	})
}

// Acknowledge is Commit, and clears what Recovered tells: both or neither.
func (s *Store) Acknowledge(d Desired) error {
	return s.update(func(tx *bbolt.Tx) error {
		return errors.Join(commit(tx, d), tx.Bucket(bucketMeta).Delete(keyRecovered))
	})
}

func commit(tx *bbolt.Tx, d Desired) error {
	if err := write(tx.Bucket(bucketModules), d.Modules, withoutModuleStatus); err != nil {
		return err
	}
	if err := write(tx.Bucket(bucketServices), d.Services, withoutServiceStatus); err != nil {
		return err
	}
	later, err := tx.CreateBucketIfNotExists(bucketVirtualServices)
	if err != nil {
		return err
	}
	if err := write(later, d.VirtualServices, withoutVirtualServiceStatus); err != nil {
		return err
	}
	if err := writeAllModels(tx, d.Models); err != nil {
		return err
	}
	return seal(tx)
}

// seal writes what vouches for the resources.
func seal(tx *bbolt.Tx) error {
	meta := tx.Bucket(bucketMeta)
	return errors.Join(meta.Put(keySchema, []byte(strconv.Itoa(SchemaVersion))), meta.Put(keyDigest, digest(tx)))
}

func withoutVirtualServiceStatus(s v1alpha1.VirtualService) any { s.Status = nil; return s }
func withoutModelStatus(m v1alpha1.Model) any                   { m.Status = nil; return m }
func withoutModuleStatus(m v1alpha1.Module) any                 { m.Status = nil; return m }
func withoutServiceStatus(s v1alpha1.Service) any               { s.Status = nil; return s }

func (s *Store) view(do func(*bbolt.Tx) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return wrap(contain(func() error { return s.db.View(do) }))
}

func (s *Store) update(do func(*bbolt.Tx) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.readOnly {
		return ErrReadOnly
	}
	return wrap(contain(func() error { return s.db.Update(do) }))
}

func wrap(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("store: %w", classify(err))
}

// classify joins the cause with the sentinel that callers look for.
func classify(err error) error {
	sentinel := sentinelOf(err)
	if sentinel == nil || errors.Is(err, sentinel) {
		return err
	}
	return fmt.Errorf("%w: %w", sentinel, err)
}

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

// read reads a bucket, which a file of an older version may not have.
func read[T any](b *bbolt.Bucket, into map[string]T) error {
	if b == nil {
		return nil
	}
	return b.ForEach(func(name, data []byte) error {
		var v T
		if err := json.Unmarshal(data, &v); err != nil {
			return fmt.Errorf("%w: %s: %w", ErrCorrupt, name, err)
		}
		into[string(name)] = v
		return nil
	})
}

// write makes b hold exactly want, and touches only what differs: a page that is not touched is not written.
func write[T any](b *bbolt.Bucket, want map[string]T, stored func(T) any) error {
	if err := deleteOthers(b, want); err != nil {
		return err
	}
	for name, v := range want {
		if _, err := writeOne(b, name, stored(v)); err != nil {
			return err
		}
	}
	return nil
}

// writeOne returns what v takes the place of, nil if nothing.
func writeOne(b *bbolt.Bucket, name string, v any) (before []byte, err error) {
	data, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	stored := b.Get([]byte(name))
	if bytes.Equal(stored, data) {
		return nil, nil
	}
	before = bytes.Clone(stored)
	if err := b.Put([]byte(name), data); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return before, nil
}

func deleteOthers[T any](b *bbolt.Bucket, want map[string]T) error {
	var gone [][]byte
	_ = b.ForEach(func(name, _ []byte) error { // only the function given returns errors
		if _, ok := want[string(name)]; !ok {
			gone = append(gone, append([]byte(nil), name...))
		}
		return nil
	})
	for _, name := range gone {
		if err := b.Delete(name); err != nil {
			return err
		}
	}
	return nil
}
