// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"

	"go.etcd.io/bbolt"

	"github.com/kerb-edge/kerb/internal/resource"
)

// Each kind has a bucket of JSON by name; version 1 had no virtual services, version 2 no models. The digest covers all of
// them, because bbolt itself does not notice a changed byte in a data page.
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

// buckets are those of all kinds, in the order of the digest, which is part of the format: those of schema3, then all others in the
// order of their names. The order in which kinds are listed for users does not matter.
func buckets() (out [][]byte) {
	for _, kind := range resource.Kinds() {
		out = append(out, bucketOf(kind))
		if kind.Archives() {
			out = append(out, versionsOf(kind))
		}
	}
	slices.SortFunc(out, byDigestOrder)
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

// contain turns panics and memory faults (pages past the end of the mapped file) in do into errors.
func contain(do func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: %v", errPanic, r)
		}
	}()
	return do()
}

// ensure makes the file at path if there is none. It is made under another name and linked into place, so that a file that
// exists is always complete: one of length zero has lost its content.
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

// verify reads all there is. Errors: ErrCorrupt, *NewerError.
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
	// Only now: Check works in a goroutine of its own, where a fault on a page that does not exist ends the process.
	// Every page that it follows has been read above.
	var problem error
	for err := range tx.Check() {
		problem = errors.Join(problem, err)
	}
	if problem != nil {
		return fmt.Errorf("%w: %w", ErrCorrupt, problem)
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

// boltMeta is the meta page of bbolt (format 2, host byte order, at byte 16 of pages 0 and 1) up to its checksum.
type boltMeta struct {
	Magic, Version, PageSize, Flags uint32
	Root, Sequence                  uint64
	Freelist, Pages, TxID           uint64
	Checksum                        uint64 // FNV-1a 64 of all before
}

const (
	boltMagic      = 0xED0CDAED
	boltPageHeader = 16
	boltMetaSize   = 64
	noFreelist     = ^uint64(0)
)

// checkLayout refuses files that bbolt would map and then fault on or allocate without bound for: shorter than their meta
// page says, or with a list of free pages longer than the file. A file without a valid meta page is left to bbolt.
func checkLayout(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is not a regular file", path)
	}
	if info.Size() == 0 {
		return fmt.Errorf("%w: the file is empty", ErrCorrupt)
	}
	return checkPages(f, info.Size())
}

func checkPages(f io.ReaderAt, size int64) error {
	m, ok := latestMeta(f)
	if !ok {
		return nil
	}
	if need := m.Pages * uint64(m.PageSize); uint64(size) < need {
		return fmt.Errorf("%w: %d bytes of %d are left", ErrCorrupt, size, need)
	}
	if m.Freelist == noFreelist {
		return nil
	}
	var head [boltPageHeader + 8]byte // id 8, flags 2, count 2, overflow 4, first element 8
	if _, err := f.ReadAt(head[:], int64(m.Freelist)*int64(m.PageSize)); err != nil {
		return fmt.Errorf("%w: free list: %w", ErrCorrupt, err)
	}
	count := uint64(binary.NativeEndian.Uint16(head[10:]))
	if count == 0xFFFF { // the count did not fit and is the first element
		count = binary.NativeEndian.Uint64(head[boltPageHeader:])
	}
	if count > m.Pages {
		return fmt.Errorf("%w: %d free pages of %d", ErrCorrupt, count, m.Pages)
	}
	return nil
}

// latestMeta returns the meta page that bbolt will use.
func latestMeta(f io.ReaderAt) (boltMeta, bool) {
	m0, ok0 := readMeta(f, 0)
	m1, ok1 := readMeta(f, int64(os.Getpagesize()))
	if ok1 && (!ok0 || m1.TxID > m0.TxID) {
		return m1, true
	}
	return m0, ok0
}

func readMeta(f io.ReaderAt, page int64) (boltMeta, bool) {
	var raw [boltMetaSize]byte
	if _, err := f.ReadAt(raw[:], page+boltPageHeader); err != nil {
		return boltMeta{}, false
	}
	var m boltMeta
	if _, err := binary.Decode(raw[:], binary.NativeEndian, &m); err != nil {
		return boltMeta{}, false
	}
	h := fnv.New64a()
	h.Write(raw[:boltMetaSize-8])
	return m, m.Magic == boltMagic && m.Checksum == h.Sum64()
}
