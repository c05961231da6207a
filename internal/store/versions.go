// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"go.etcd.io/bbolt"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/resource"
)

// A version is kept under the resource's name, a slash (no name has one) and its generation in 16 hexadecimal digits: a
// line with the JSON of a v1alpha1.ModelVersion, then the gzip of its document.

func versionKey(name string, generation int64) []byte {
	return fmt.Appendf(nil, "%s/%016x", name, generation)
}

// keepVersion keeps the stored version of a resource if its kind archives versions and next replaces it.
func keepVersion(tx *bbolt.Tx, kind resource.Kind, stored []byte, next resource.Object) error {
	if !kind.Archives() {
		return nil
	}
	versions, err := tx.CreateBucketIfNotExists(versionsOf(kind))
	if err != nil {
		return err
	}
	old := kind.New()
	if err := json.Unmarshal(stored, old); err != nil {
		return fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	v, document, replaced := kind.Archive(old, next)
	if !replaced {
		return nil
	}
	v.Replaced = time.Now().UTC().Truncate(time.Second)
	record, err := newRecord(v, document)
	if err != nil {
		return err
	}
	if err := versions.Put(versionKey(next.Meta().Name, v.Generation), record); err != nil {
		return err
	}
	return prune(versions, next.Meta().Name, resource.VersionsKept)
}

// newRecord returns a stored version: its description as a line of JSON, then the compressed document, so that the
// description can be read without the document.
func newRecord(v v1alpha1.ModelVersion, document string) ([]byte, error) {
	head, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	record := bytes.NewBuffer(append(head, '\n'))
	packed, err := gzip.NewWriterLevel(record, gzip.BestSpeed) // the client waits for the new version
	if err != nil {
		return nil, err
	}
	_, err = io.WriteString(packed, document)
	err = errors.Join(err, packed.Close())
	return record.Bytes(), err
}

// forgetVersions deletes all versions of a resource.
func forgetVersions(tx *bbolt.Tx, kind resource.Kind, name string) error {
	if !kind.Archives() {
		return nil
	}
	return prune(tx.Bucket(versionsOf(kind)), name, 0)
}

// prune deletes all but the newest versions of a resource.
func prune(versions *bbolt.Bucket, name string, keep int) error {
	var keys [][]byte
	_ = eachVersion(versions, name, func(key, _ []byte) error {
		keys = append(keys, bytes.Clone(key))
		return nil
	})
	for _, key := range keys[:max(0, len(keys)-keep)] {
		if err := versions.Delete(key); err != nil {
			return err
		}
	}
	return nil
}

// eachVersion calls do for the versions of a resource, oldest first.
func eachVersion(versions *bbolt.Bucket, name string, do func(key, record []byte) error) error {
	if versions == nil {
		return nil
	}
	prefix, c := []byte(name+"/"), versions.Cursor()
	for key, record := c.Seek(prefix); bytes.HasPrefix(key, prefix); key, record = c.Next() {
		if err := do(key, record); err != nil {
			return err
		}
	}
	return nil
}

// Versions lists the stored versions of a resource, newest first.
func (s *Store) Versions(kind resource.Kind, name string) ([]v1alpha1.ModelVersion, error) {
	var out []v1alpha1.ModelVersion
	err := s.view(func(tx *bbolt.Tx) error {
		return eachVersion(tx.Bucket(versionsOf(kind)), name, func(_, record []byte) error {
			v, _, err := openVersion(record)
			out = append(out, v)
			return err
		})
	})
	slices.Reverse(out)
	return out, err
}

// Document returns the document of an earlier generation of a resource. *apierrors.NotFound if it is no longer stored.
func (s *Store) Document(kind resource.Kind, name string, generation int64) (document string, err error) {
	found := false
	err = s.view(func(tx *bbolt.Tx) error {
		b := tx.Bucket(versionsOf(kind))
		if b == nil {
			return nil
		}
		record := b.Get(versionKey(name, generation))
		if found = record != nil; !found {
			return nil
		}
		_, packed, err := openVersion(record)
		if err != nil {
			return err
		}
		r, err := gzip.NewReader(packed)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrCorrupt, err)
		}
		text, err := io.ReadAll(io.LimitReader(r, v1alpha1.MaxModelDocument))
		document = string(text)
		return err
	})
	if err == nil && !found {
		err = &apierrors.NotFound{Kind: "version of " + kind.Names().Kind + " " + name, Name: fmt.Sprint(generation)}
	}
	return document, err
}

// openVersion reads the description of a record, and returns a reader of the document.
func openVersion(record []byte) (v v1alpha1.ModelVersion, packed io.Reader, err error) {
	head, rest, _ := bytes.Cut(record, []byte("\n"))
	if err := json.Unmarshal(head, &v); err != nil {
		return v, nil, fmt.Errorf("%w: an earlier version: %w", ErrCorrupt, err)
	}
	return v, bytes.NewReader(rest), nil
}
