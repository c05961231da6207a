// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"

	"go.etcd.io/bbolt"

	"github.com/kerb-edge/kerb/internal/resource"
)

// Elements of sets have a bucket for each set, so that a change of an element writes a few pages instead of megabytes.
// The digest does not cover them: it is recomputed over everything that it covers. The sum of their hashes protects
// them instead.

// parted is a resource with a spec that is stored in sorted parts.
type parted interface {
	Parts() []string
	SetParts([]string)
}

var keySum = []byte{0} // in the bucket of a set's elements: their sum; no element is like this

// partsOf returns the name of the bucket with the parts of all resources of a kind.
func partsOf(kind resource.Kind) []byte { return []byte(kind.Names().Noun + "elements") }

func withoutParts(o resource.Object) {
	if p, ok := o.(parted); ok {
		p.SetParts(nil)
	}
}

func sumOf(part []byte) uint64 {
	h := fnv.New64a()
	h.Write(part)
	return h.Sum64()
}

// readParts adds the parts to a resource.
func readParts(tx *bbolt.Tx, o resource.Object) error {
	p, ok := o.(parted)
	if !ok {
		return nil
	}
	var parts []string
	err := eachPart(tx, resource.KindOf(o), o.Meta().Name, func(part []byte) { parts = append(parts, string(part)) })
	p.SetParts(parts)
	return err
}

// eachPart calls do for all parts of a resource. Errors: ErrCorrupt, possibly after do has been called for some.
func eachPart(tx *bbolt.Tx, kind resource.Kind, name string, do func([]byte)) error {
	b := bucketIn(tx.Bucket(partsOf(kind)), name)
	if b == nil {
		return fmt.Errorf("%w: no elements of %s %s", ErrCorrupt, kind.Names().Kind, name)
	}
	var sum uint64
	err := b.ForEach(func(part, _ []byte) error {
		if !bytes.Equal(part, keySum) {
			sum += sumOf(part)
			do(part)
		}
		return nil
	})
	if stored := b.Get(keySum); err == nil && (len(stored) != 8 || binary.BigEndian.Uint64(stored) != sum) {
		err = fmt.Errorf("%w: the elements of %s %s", ErrCorrupt, kind.Names().Kind, name)
	}
	return err
}

// verifyParts reads the parts of all resources. Errors: ErrCorrupt.
func verifyParts(tx *bbolt.Tx) error {
	for _, kind := range resource.Kinds() {
		if _, ok := kind.New().(parted); !ok {
			continue
		}
		for name := range eachKey(tx.Bucket(bucketOf(kind))) {
			if err := eachPart(tx, kind, name, func([]byte) {}); err != nil {
				return err
			}
		}
	}
	return nil
}

func bucketIn(b *bbolt.Bucket, name string) *bbolt.Bucket {
	if b == nil {
		return nil
	}
	return b.Bucket([]byte(name))
}

// writeParts sets the stored parts of a resource to those of o.
func writeParts(tx *bbolt.Tx, o resource.Object) error {
	p, ok := o.(parted)
	if !ok {
		return nil
	}
	var add, remove []string
	next := p.Parts()
	if b := bucketIn(tx.Bucket(partsOf(resource.KindOf(o))), o.Meta().Name); b != nil {
		if err := b.ForEach(func(part, _ []byte) error {
			if _, kept := slices.BinarySearch(next, string(part)); !kept && !bytes.Equal(part, keySum) {
				remove = append(remove, string(part))
			}
			return nil
		}); err != nil {
			return err
		}
		for _, part := range next {
			if b.Get([]byte(part)) == nil {
				add = append(add, part)
			}
		}
	} else {
		add = next
	}
	return changeParts(tx, o, add, remove)
}

// changeParts adds and removes parts.
func changeParts(tx *bbolt.Tx, o resource.Object, add, remove []string) error {
	all, err := tx.CreateBucketIfNotExists(partsOf(resource.KindOf(o)))
	if err != nil {
		return err
	}
	b, err := all.CreateBucketIfNotExists([]byte(o.Meta().Name))
	if err != nil {
		return err
	}
	var sum uint64
	if stored := b.Get(keySum); len(stored) == 8 {
		sum = binary.BigEndian.Uint64(stored)
	}
	for _, part := range add {
		if b.Get([]byte(part)) != nil {
			continue // of a transaction of which only the last sync failed
		}
		sum += sumOf([]byte(part))
		if err := b.Put([]byte(part), []byte{1}); err != nil {
			return err
		}
	}
	for _, part := range remove {
		if b.Get([]byte(part)) == nil {
			continue
		}
		sum -= sumOf([]byte(part))
		if err := b.Delete([]byte(part)); err != nil {
			return err
		}
	}
	return b.Put(keySum, binary.BigEndian.AppendUint64(nil, sum))
}

func forgetParts(tx *bbolt.Tx, kind resource.Kind, name string) error {
	b := tx.Bucket(partsOf(kind))
	if bucketIn(b, name) == nil {
		return nil
	}
	return b.DeleteBucket([]byte(name))
}

// CommitParts is CommitChanges for a resource that differs from the stored one only in the given parts and in its
// metadata.
func (s *Store) CommitParts(o resource.Object, add, remove []string) error {
	return s.update(func(tx *bbolt.Tx) error {
		kind := resource.KindOf(o)
		b, err := tx.CreateBucketIfNotExists(bucketOf(kind))
		if err != nil {
			return err
		}
		return errors.Join(put(tx, b, kind, o), changeParts(tx, o, add, remove), seal(tx))
	})
}
