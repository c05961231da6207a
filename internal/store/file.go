// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"sort"
	"strconv"
	"time"

	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/resource"
)

// Each kind has a bucket of JSON by name; version 1 had no virtual services, version 2 no models. The digest covers all
// of them, because bbolt itself does not detect a changed byte in a data page.
var (
	bucketMeta   = []byte("meta")
	keySchema    = []byte("schema")
	keyRecovered = []byte("recovered")
	keyDigest    = []byte("digest")
	keyNonce     = []byte("nonce")
)

func bucketOf(kind resource.Kind) []byte { return []byte(kind.Names().Plural) }

// versionsOf is the bucket of earlier versions.
func versionsOf(kind resource.Kind) []byte { return []byte(kind.Names().Noun + "versions") }

// schema3 are the buckets of schema version 3, in the order in which the digest covers them.
var schema3 = []string{"modules", "services", "virtualservices", "models", "modelversions"}

// buckets are the buckets of all kinds, in the order of the digest, which is part of the format: those of schema3, then
// all others ordered by name. The order in which kinds are listed for users is independent of it.
func buckets() (out [][]byte) {
	for _, kind := range resource.Kinds() {
		out = append(out, bucketOf(kind))
		if kind.Archives() {
			out = append(out, versionsOf(kind))
		}
	}
	sort.Slice(out, func(i, j int) bool { return byDigestOrder(out[i], out[j]) < 0 })
	return out
}

func byDigestOrder(a, b []byte) int {
	return cmp.Or(cmp.Compare(digestRank(a), digestRank(b)), bytes.Compare(a, b))
}

func digestRank(bucket []byte) int {
	if i := slices.Index(schema3, string(bucket)); i >= 0 {
		return i
	}
	return len(schema3)
}

// errPanic marks a panic of bbolt, which is its reaction to damaged pages.
var errPanic = errors.New("unreadable page")

// contain turns panics and memory faults in do into errors: bbolt follows page numbers and lengths of a damaged file to
// any address.
func contain(do func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: %v", errPanic, r)
		}
	}()
	return do()
}

// lock locks an open file exclusively. Readers of bbolt share a lock. Errors: ErrLocked.
func lock(file *os.File) error {
	for deadline := time.Now().Add(lockWait); ; time.Sleep(lockRetry) {
		err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, unix.EINTR):
		case !errors.Is(err, unix.EWOULDBLOCK):
			return err
		case time.Now().After(deadline):
			return ErrLocked
		}
	}
}

// isAt reports whether path still refers to the file: a process that had the store open may have replaced it.
func isAt(file *os.File, path string) (bool, error) {
	a, err := file.Stat()
	if err != nil {
		return false, err
	}
	b, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && os.SameFile(a, b), err
}

// ensure creates the file at path if it does not exist. It is created under another name and linked into place, so that
// an existing file is always complete: a file of length zero has lost its content.
func ensure(path string, recovered bool) error {
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".state-*.new")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	if err := f.Close(); err != nil {
		return err
	}
	if err := initialize(f.Name(), recovered); err != nil {
		return err
	}
	if err := os.Link(f.Name(), path); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return syncDir(filepath.Dir(path))
}

func initialize(path string, recovered bool) error {
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: lockWait})
	if err != nil {
		return err
	}
	err = db.Update(func(tx *bbolt.Tx) error { return layOut(tx, recovered) })
	return errors.Join(err, db.Close())
}

// copyTo copies a store, open for writing, and renames the copy to path, whose lock the caller holds.
func copyTo(path string, from *bbolt.DB) (*bbolt.DB, error) {
	next := path + ".new"
	if err := removeIfExists(next); err != nil { // of a killed process
		return nil, err
	}
	db, err := bbolt.Open(next, 0o600, &bbolt.Options{Timeout: lockWait})
	if err != nil {
		return nil, errors.Join(err, removeIfExists(next))
	}
	err = contain(func() error { return bbolt.Compact(db, from, 0) })
	if err == nil {
		err = verify(db, path)
	}
	if err == nil {
		err = os.Rename(next, path)
	}
	if err != nil {
		return nil, errors.Join(err, db.Close(), removeIfExists(next))
	}
	if err := syncDir(filepath.Dir(path)); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return db, nil
}

func removeIfExists(path string) error {
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// layOut creates the buckets of an empty store. recovered records that it replaces a damaged one, until modules are
// applied again.
func layOut(tx *bbolt.Tx, recovered bool) error {
	for _, name := range append(buckets(), bucketMeta) {
		if _, err := tx.CreateBucket(name); err != nil {
			return err
		}
	}
	meta := tx.Bucket(bucketMeta)
	if recovered {
		if err := meta.Put(keyRecovered, []byte("1")); err != nil {
			return err
		}
	}
	return errors.Join(meta.Put(keySchema, []byte(strconv.Itoa(SchemaVersion))), meta.Put(keyDigest, digest(tx)),
		meta.Put(keyNonce, []byte(rand.Text())))
}

func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// digest returns the SHA-256 of all resources.
func digest(tx *bbolt.Tx) []byte {
	h := sha256.New()
	for _, name := range buckets() {
		if tx.Bucket(name) == nil { // of an older version
			continue
		}
		fmt.Fprintf(h, "%s\n", name)
		_ = tx.Bucket(name).ForEach(func(k, v []byte) error { // only the given function returns errors
			fmt.Fprintf(h, "%d %d\n%s%s", len(k), len(v), k, v)
			return nil
		})
	}
	return h.Sum(nil)
}

// checkFile rejects files that bbolt would take for new, or wait for.
func checkFile(path string) error {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s is not a regular file", path)
	case info.Size() == 0:
		return fmt.Errorf("%w: the file is empty", ErrCorrupt)
	}
	return nil
}

// verify reads all resources. Errors: ErrCorrupt, *NewerError.
func verify(db *bbolt.DB, path string) error {
	err := contain(func() error { return db.View(func(tx *bbolt.Tx) error { return verifyTx(tx, path) }) })
	return classify(err)
}

// verifyTx checks what bbolt does not: that all buckets exist and that the digest of names and values is correct.
// Errors are ErrCorrupt, and *NewerError for the store of a newer Kerb.
func verifyTx(tx *bbolt.Tx, path string) error {
	if err := verifySchema(tx, path); err != nil {
		return err
	}
	for _, kind := range []resource.Kind{resource.Module, resource.Service} { // all versions have these
		if name := bucketOf(kind); tx.Bucket(name) == nil {
			return fmt.Errorf("%w: no bucket %s", ErrCorrupt, name)
		}
	}
	if string(tx.Bucket(bucketMeta).Get(keyDigest)) != string(digest(tx)) {
		return fmt.Errorf("%w: the digest does not match", ErrCorrupt)
	}
	return verifyParts(tx)
}

// verifySchema checks the version of a store file. A file of a newer version is a NewerError and stays untouched;
// anything else that is not a store of Kerb is ErrCorrupt.
func verifySchema(tx *bbolt.Tx, path string) error {
	meta := tx.Bucket(bucketMeta)
	if meta == nil {
		return fmt.Errorf("%w: not a store of Kerb", ErrCorrupt)
	}
	version, err := strconv.Atoi(string(meta.Get(keySchema)))
	if err != nil || version < 1 {
		return fmt.Errorf("%w: no schema version", ErrCorrupt)
	}
	if version > SchemaVersion {
		return &NewerError{Path: path, Found: version}
	}
	return nil
}

// eachKey iterates over the names in a bucket, which need not exist.
func eachKey(b *bbolt.Bucket) iter.Seq[string] {
	return func(yield func(string) bool) {
		if b == nil {
			return
		}
		c := b.Cursor()
		for name, _ := c.First(); name != nil && yield(string(name)); name, _ = c.Next() {
		}
	}
}
