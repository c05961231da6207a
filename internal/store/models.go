// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"go.etcd.io/bbolt"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/fault"
)

// VersionsKept is how many earlier versions of a model are kept.
const VersionsKept = 5

// A version is kept under the model's name, a slash (no name has one) and its generation in 16 hexadecimal digits: a line
// with the JSON of a v1alpha1.ModelVersion, then the gzip of its document.

func versionKey(name string, generation int64) []byte {
	return fmt.Appendf(nil, "%s/%016x", name, generation)
}

// writeModels writes models, and keeps those whose places they take.
func writeModels(tx *bbolt.Tx, change Some[v1alpha1.Model]) error {
	models, err := tx.CreateBucketIfNotExists(bucketModels)
	if err != nil {
		return err
	}
	versions, err := tx.CreateBucketIfNotExists(bucketModelVersions)
	if err != nil {
		return err
	}
	for _, name := range change.Remove {
		if err := models.Delete([]byte(name)); err != nil {
			return err
		}
		if err := prune(versions, name, 0); err != nil {
			return err
		}
	}
	for _, m := range change.Put {
		stored, err := writeOne(models, m.Metadata.Name, withoutModelStatus(m))
		if err == nil && stored != nil {
			err = keepVersion(versions, stored, m)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// writeAllModels makes the models exactly those wanted.
func writeAllModels(tx *bbolt.Tx, want map[string]v1alpha1.Model) error {
	change := Some[v1alpha1.Model]{Put: slices.Collect(maps.Values(want))}
	if models := tx.Bucket(bucketModels); models != nil {
		_ = models.ForEach(func(name, _ []byte) error { // only the function given returns errors
			if _, ok := want[string(name)]; !ok {
				change.Remove = append(change.Remove, string(name))
			}
			return nil
		})
	}
	return writeModels(tx, change)
}

// keepVersion keeps what was stored of a model if its document is another one now.
func keepVersion(versions *bbolt.Bucket, stored []byte, next v1alpha1.Model) error {
	var old v1alpha1.Model
	if err := json.Unmarshal(stored, &old); err != nil {
		return fmt.Errorf("%w: model %s: %w", ErrCorrupt, next.Metadata.Name, err)
	}
	if old.Spec.Document == next.Spec.Document {
		return nil
	}
	head, err := json.Marshal(v1alpha1.ModelVersion{Generation: old.Metadata.Generation, Version: old.Spec.DocumentVersion(),
		Digest: old.Spec.Digest(), Replaced: time.Now().UTC().Truncate(time.Second)})
	if err != nil {
		return err
	}
	record := bytes.NewBuffer(append(head, '\n'))
	packed, err := gzip.NewWriterLevel(record, gzip.BestSpeed) // somebody waits for the new one
	if err != nil {
		return err
	}
	if _, err := io.WriteString(packed, old.Spec.Document); err != nil {
		return err
	}
	if err := packed.Close(); err != nil {
		return err
	}
	if err := versions.Put(versionKey(old.Metadata.Name, old.Metadata.Generation), record.Bytes()); err != nil {
		return err
	}
	return prune(versions, old.Metadata.Name, VersionsKept)
}

// prune deletes all versions of a model but the newest ones.
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

// eachVersion goes through the versions of a model, oldest first.
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

// ModelVersions lists the versions of a model that are kept, newest first.
func (s *Store) ModelVersions(name string) ([]v1alpha1.ModelVersion, error) {
	var out []v1alpha1.ModelVersion
	err := s.view(func(tx *bbolt.Tx) error {
		return eachVersion(tx.Bucket(bucketModelVersions), name, func(_, record []byte) error {
			v, _, err := openVersion(record)
			out = append(out, v)
			return err
		})
	})
	slices.Reverse(out)
	return out, err
}

// ModelVersion is what a model was in an earlier generation. *fault.NotFound if it is not kept.
func (s *Store) ModelVersion(name string, generation int64) (spec v1alpha1.ModelSpec, err error) {
	found := false
	err = s.view(func(tx *bbolt.Tx) error {
		b := tx.Bucket(bucketModelVersions)
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
		document, err := io.ReadAll(io.LimitReader(r, v1alpha1.MaxModelDocument))
		spec.Document = string(document)
		return err
	})
	if err == nil && !found {
		err = &fault.NotFound{Kind: "version of Model " + name, Name: fmt.Sprint(generation)}
	}
	return spec, err
}

// openVersion reads the line of a record; what follows is the document.
func openVersion(record []byte) (v v1alpha1.ModelVersion, packed io.Reader, err error) {
	head, rest, _ := bytes.Cut(record, []byte("\n"))
	if err := json.Unmarshal(head, &v); err != nil {
		return v, nil, fmt.Errorf("%w: a model's version: %w", ErrCorrupt, err)
	}
	return v, bytes.NewReader(rest), nil
}
