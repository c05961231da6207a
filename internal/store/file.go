// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
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
// of them, because bbolt itself does not notice a changed byte in a data page.
var (
	bucketMeta   = []byte("meta")
	keySchema    = []byte("schema")
	keyRecovered = []byte("recovered")
	keyDigest    = []byte("digest")
)

func bucketOf(kind resource.Kind) []byte { return []byte(kind.Names().Plural) }

// versionsOf is the bucket of earlier versions.
func versionsOf(kind resource.Kind) []byte { return []byte(kind.Names().Noun + "versions") }

// schema3 are the buckets of schema version 3, in the order in which the digest covers them.
var schema3 = []string{"modules", "services", "virtualservices", "models", "modelversions"}

// buckets are those of all kinds, in the order of the digest, which is part of the format: those of schema3, then all
// others in the order of their names. The order in which kinds are listed for users does not matter.
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

// errPanic marks a panic of bbolt, which is how it meets pages that it does not understand.
var errPanic = errors.New("unreadable page")

// contain turns panics in do into errors, and memory faults: bbolt follows page numbers and lengths of a damaged file
// to wherever they point.
func contain(do func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: %v", errPanic, r)
		}
	}()
	return do()
}

// lockDir locks the directory of the store until the file is closed: one process at a time has a store open. A lock on
// the store's own file would not do, as that is replaced while it is open.
func lockDir(path string) (*os.File, error) {
	dir, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(lockWait); ; time.Sleep(lockRetry) {
		err = unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return dir, nil
		case errors.Is(err, unix.EWOULDBLOCK) && time.Now().Before(deadline):
		case errors.Is(err, unix.EWOULDBLOCK):
			return nil, errors.Join(ErrLocked, dir.Close())
		case !errors.Is(err, unix.EINTR):
			return nil, errors.Join(err, dir.Close())
		}
	}
}

// ensure makes the file at path if there is none.
func ensure(path string, recovered bool) error {
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	db, err := create(path, func(db *bbolt.DB) error {
		return db.Update(func(tx *bbolt.Tx) error { return layOut(tx, recovered) })
	})
	if err != nil {
		return err
	}
	return db.Close()
}

// create makes a new file at path and opens it for writing. It gets its content under another name, so that a file at
// path is always complete. Its directory must be locked.
func create(path string, fill func(*bbolt.DB) error) (*bbolt.DB, error) {
	next := path + ".new"
	if err := removeIfThere(next); err != nil { // of a process that was killed
		return nil, err
	}
	db, err := bbolt.Open(next, 0o600, &bbolt.Options{Timeout: lockWait})
	if err != nil {
		return nil, errors.Join(err, removeIfThere(next))
	}
	if err := contain(func() error { return fill(db) }); err != nil {
		return nil, errors.Join(err, db.Close(), removeIfThere(next))
	}
	if err := os.Rename(next, path); err != nil {
		return nil, errors.Join(err, db.Close(), removeIfThere(next))
	}
	if err := syncDir(filepath.Dir(path)); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return db, nil
}

func removeIfThere(path string) error {
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

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
	if err := meta.Put(keySchema, []byte(strconv.Itoa(SchemaVersion))); err != nil {
		return err
	}
	return meta.Put(keyDigest, digest(tx))
}

func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// digest is the SHA-256 of all resources.
func digest(tx *bbolt.Tx) []byte {
	h := sha256.New()
	for _, name := range buckets() {
		if tx.Bucket(name) == nil { // of an older version
			continue
		}
		fmt.Fprintf(h, "%s\n", name)
		_ = tx.Bucket(name).ForEach(func(k, v []byte) error { // only the function given returns errors
			fmt.Fprintf(h, "%d %d\n%s%s", len(k), len(v), k, v)
			return nil
		})
	}
	return h.Sum(nil)
}

// checkFile refuses what bbolt would take for a new file, or wait for.
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
	return nil
}

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
