// SPDX-License-Identifier: Apache-2.0

package oci

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/atomicfile"
	"github.com/kerb-edge/kerb/internal/pkgs"
)

// lockName is the only hidden file of the store that is not a temporary one.
const lockName = ".lock"

// Annotations of the store's index, with the decisions made when a package was pulled.
const (
	annotationUnsigned   = "dev.kerb.allow-unsigned"
	annotationIdentity   = "dev.kerb.identity"
	annotationSignatures = "dev.kerb.signatures" // digest of the manifest of the signatures
	annotationBundles    = "dev.kerb.bundles"    // space-separated digests of the manifests of bundles
	annotationOwner      = "dev.kerb.owner"      // absent for an operator
)

// Store holds pulled packages as an image layout. One process at a time changes it, while others read. Changes are
// atomic, also if the process dies: blobs are written first, under their digests, and then the index that refers to
// them is replaced.
type Store struct {
	dir  string
	keys string
}

var _ pkgs.Pulled = (*Store)(nil)

// NewStore returns the store in a directory, which need not exist yet; keys is the directory of trusted keys.
func NewStore(dir, keys string) *Store { return &Store{dir: dir, keys: keys} }

// Names reports whether ref has the form of a reference to a pulled package.
func (s *Store) Names(ref string) bool { return IsReference(ref) }

// Get opens the package of ref, with the same verification as Pull.
func (s *Store) Get(ref string) (*pkgs.Package, error) {
	r, err := ParseReference(ref)
	if err != nil {
		return nil, err
	}
	index, err := s.index()
	if err != nil {
		return nil, err
	}
	entry := find(index.Manifests, r)
	if entry == nil {
		return nil, fmt.Errorf("package %s: %w on this node; run: kerb package pull %s", r, pkgs.ErrUnknown, r)
	}
	return s.open(r, *entry)
}

// Each opens all packages, one at a time, since each is in memory as a whole. The description of an unusable package is
// the reason.
func (s *Store) Each(visit func(*pkgs.Package)) error {
	index, err := s.index()
	if err != nil {
		return err
	}
	for _, entry := range index.Manifests {
		r, err := ParseReference(entry.Annotations[ocispec.AnnotationRefName])
		if err != nil {
			continue // not written by this store
		}
		p, err := s.open(r, entry)
		if err != nil {
			p = &pkgs.Package{Manifest: pkgs.Manifest{Name: r.Base(), Description: "cannot be used: " + err.Error()},
				Source: r.String(), Digest: entry.Digest.String(), Origin: originOf(r, entry)}
			p.Origin.Problem = err.Error()
		}
		visit(p)
	}
	return nil
}

// References returns the sorted references of the packages in the store.
func (s *Store) References() ([]string, error) {
	index, err := s.index()
	var out []string
	for _, entry := range index.Manifests {
		out = append(out, entry.Annotations[ocispec.AnnotationRefName])
	}
	slices.Sort(out)
	return out, err
}

// open verifies a stored package again, with the current keys and the waivers from when it was pulled. Packages signed
// with a key that was removed are no longer accepted.
func (s *Store) open(ref Reference, entry ocispec.Descriptor) (*pkgs.Package, error) {
	trust := Trust{Keys: s.keys, Identity: entry.Annotations[annotationIdentity],
		AllowUnsigned: entry.Annotations[annotationUnsigned] == "true"}
	signatures, err := s.signaturesOf(entry)
	if err != nil {
		return nil, err
	}
	root := ocispec.Descriptor{MediaType: entry.MediaType, Digest: entry.Digest, Size: entry.Size}
	got, err := load(context.Background(), s, ref, root, signatures, trust)
	if err != nil {
		return nil, err
	}
	got.pkg.Origin = originOf(ref, entry)
	got.pkg.Origin.Signers, got.pkg.Origin.Waived = got.signers, got.proof.key == ""
	return got.pkg, nil
}

func originOf(ref Reference, entry ocispec.Descriptor) pkgs.Origin {
	return pkgs.Origin{Pinned: ref.At(entry.Digest).String(), Owner: entry.Annotations[annotationOwner]}
}

// signaturesOf returns the manifests of the signatures that were stored with an entry.
func (s *Store) signaturesOf(entry ocispec.Descriptor) (at attached, err error) {
	if text := entry.Annotations[annotationSignatures]; text != "" {
		if at.simple, err = s.manifestAt(text); err != nil {
			return at, err
		}
	}
	for text := range strings.FieldsSeq(entry.Annotations[annotationBundles]) {
		d, err := s.manifestAt(text)
		if errors.Is(err, fs.ErrNotExist) { // removed by an older agent without support for bundles
			continue
		}
		if err != nil {
			return at, err
		}
		at.bundles = append(at.bundles, *d)
	}
	return at, nil
}

// manifestAt returns the descriptor of a manifest in the store.
func (s *Store) manifestAt(text string) (*ocispec.Descriptor, error) {
	d := digest.Digest(text)
	if err := d.Validate(); err != nil {
		return nil, fmt.Errorf("%s: %w", s.indexPath(), err)
	}
	info, err := os.Stat(s.blobPath(d))
	if err != nil {
		return nil, err
	}
	return &ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: d, Size: info.Size()}, nil
}

// Fetch opens a blob. Its digest has been validated.
func (s *Store) Fetch(_ context.Context, d ocispec.Descriptor) (io.ReadCloser, error) {
	return os.Open(s.blobPath(d.Digest))
}

// find returns the entry of a reference: the one with its name, or the one with its digest under the same name.
func find(entries []ocispec.Descriptor, r Reference) *ocispec.Descriptor {
	for i, e := range entries {
		if e.Annotations[ocispec.AnnotationRefName] == r.String() {
			return &entries[i]
		}
	}
	for i, e := range entries {
		other, err := ParseReference(e.Annotations[ocispec.AnnotationRefName])
		if err == nil && r.Digest != "" && e.Digest == r.Digest && other.Name() == r.Name() {
			return &entries[i]
		}
	}
	return nil
}

// add stores a verified artifact, and returns the digest that the reference resolved to before, if it differs. The
// previous package stays available by its digest, since modules may be pinned to it.
func (s *Store) add(ref Reference, got *loaded, trust Trust) (moved digest.Digest, err error) {
	unlock, err := s.lock()
	if err != nil {
		return "", err
	}
	defer unlock()
	index, err := s.index()
	if err != nil {
		return "", err
	}
	for _, b := range got.blobs {
		if err := s.writeBlob(b); err != nil {
			return "", err
		}
	}
	if old := find(index.Manifests, ref); old != nil && old.Annotations[annotationOwner] == "" {
		trust.Owner = "" // programs must not remove packages that an operator pulled
	}
	index.Manifests, moved = replace(index.Manifests, ref, entryOf(ref, got, trust))
	return moved, s.writeIndex(index)
}

// replace sets the entry of a reference.
func replace(entries []ocispec.Descriptor, ref Reference,
	entry ocispec.Descriptor) (out []ocispec.Descriptor, moved digest.Digest) {
	for _, old := range entries {
		if old.Annotations[ocispec.AnnotationRefName] != ref.String() {
			out = append(out, old)
			continue
		}
		if pinned := ref.At(old.Digest); old.Digest != entry.Digest {
			moved = old.Digest
			old.Annotations[ocispec.AnnotationRefName] = pinned.String()
			out = append(out, old)
		}
	}
	out = append(out, entry)
	seen := map[string]bool{}
	return slices.DeleteFunc(out, func(d ocispec.Descriptor) bool {
		name := d.Annotations[ocispec.AnnotationRefName]
		twice := seen[name]
		seen[name] = true
		return twice
	}), moved
}

// entryOf returns the entry of the index (OCI image-spec, image-layout.md), with what the operator waived as
// annotations.
func entryOf(ref Reference, got *loaded, trust Trust) ocispec.Descriptor {
	entry := got.root
	entry.Annotations = map[string]string{ocispec.AnnotationRefName: ref.String()}
	if got.proof.key == "" { // waived; signed packages must stay signed
		entry.Annotations[annotationUnsigned] = "true"
	}
	if trust.Owner != "" {
		entry.Annotations[annotationOwner] = trust.Owner
	}
	if trust.Identity != "" {
		entry.Annotations[annotationIdentity] = trust.Identity
	}
	if got.signatures != nil {
		entry.Annotations[annotationSignatures] = got.signatures.Digest.String()
	}
	if len(got.bundles) > 0 {
		entry.Annotations[annotationBundles] = strings.Join(got.bundles, " ")
	}
	return entry
}

// Remove removes a package unless a reference in use needs it.
func (s *Store) Remove(ref Reference, inUse map[string]string) error {
	return s.remove(ref, inUse, func(string) bool { return true })
}

// RemoveOf is Remove for packages pulled by a program. It returns *apierrors.Conflict for those of an operator or
// another program.
func (s *Store) RemoveOf(owner string, ref Reference, inUse map[string]string) error {
	return s.remove(ref, inUse, func(of string) bool { return of == owner })
}

func (s *Store) remove(ref Reference, inUse map[string]string, may func(owner string) bool) error {
	if _, err := s.without(ref, inUse, may); err != nil { // before the lock, which writes to disk: programs retry often
		return err
	}
	unlock, err := s.lock()
	if err != nil {
		return err
	}
	defer unlock()
	index, err := s.without(ref, inUse, may)
	if err != nil {
		return err
	}
	if err := s.writeIndex(index); err != nil {
		return err
	}
	return s.sweep(index)
}

// without returns the index without a package that may be removed.
func (s *Store) without(ref Reference, inUse map[string]string, may func(owner string) bool) (ocispec.Index, error) {
	index, err := s.index()
	if err != nil {
		return index, err
	}
	entry := find(index.Manifests, ref)
	if entry == nil {
		return index, &apierrors.NotFound{Kind: "pulled package", Name: ref.String()}
	}
	if !may(entry.Annotations[annotationOwner]) {
		return index, &apierrors.Conflict{Reason: fmt.Sprintf("package %s was pulled by another owner: kerb package rm "+
			"removes it", ref)}
	}
	name := entry.Annotations[ocispec.AnnotationRefName]
	rest := slices.DeleteFunc(slices.Clone(index.Manifests), func(d ocispec.Descriptor) bool {
		return d.Annotations[ocispec.AnnotationRefName] == name
	})
	for _, module := range sortedKeys(inUse) {
		r, err := ParseReference(inUse[module])
		if err == nil && find(index.Manifests, r) != nil && find(rest, r) == nil {
			return index, &apierrors.Conflict{Reason: fmt.Sprintf("module %s uses %s: delete the module first", module,
				inUse[module])}
		}
	}
	index.Manifests = rest
	return index, nil
}

func (s *Store) indexPath() string { return filepath.Join(s.dir, ocispec.ImageIndexFile) }
func (s *Store) blobDir() string   { return filepath.Join(s.dir, ocispec.ImageBlobsDir, "sha256") }

func (s *Store) blobPath(d digest.Digest) string { return filepath.Join(s.blobDir(), d.Encoded()) }

// index reads the index. It is empty for a store that was never written.
func (s *Store) index() (ocispec.Index, error) {
	empty := ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex}
	data, err := os.ReadFile(s.indexPath())
	if errors.Is(err, fs.ErrNotExist) {
		return empty, nil
	}
	if err != nil {
		return empty, err
	}
	var index ocispec.Index
	if err := json.Unmarshal(data, &index); err != nil {
		return empty, fmt.Errorf("%s: %w", s.indexPath(), err)
	}
	return index, nil
}

// lock acquires the lock for changes, creates the directories, and removes unfinished files of processes that died.
func (s *Store) lock() (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Dir(s.dir), 0o700); err != nil {
		return nil, err
	}
	for _, dir := range []string{s.dir, filepath.Dir(s.blobDir()), s.blobDir()} {
		if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, fmt.Errorf("store of packages: %w", err)
		}
	}
	f, err := os.OpenFile(filepath.Join(s.dir, lockName), os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		f.Close()
		return nil, err
	}
	layout, _ := json.Marshal(ocispec.ImageLayout{Version: ocispec.ImageLayoutVersion}) // cannot fail
	index, err := s.index()
	if err == nil {
		err = errors.Join(atomicfile.Write(filepath.Join(s.dir, ocispec.ImageLayoutFile), layout, 0o600), s.sweep(index))
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return func() { f.Close() }, nil
}

func (s *Store) writeIndex(index ocispec.Index) error {
	data, err := json.MarshalIndent(index, "", "  ")
	if err != nil {
		return err
	}
	return atomicfile.Write(s.indexPath(), data, 0o600)
}

// writeBlob writes a blob whose digest was verified. It overwrites an existing one, which may be damaged.
func (s *Store) writeBlob(b blob) error {
	return atomicfile.Write(s.blobPath(b.Digest), b.data, 0o600)
}

// sweep removes unfinished files and unreferenced blobs.
func (s *Store) sweep(index ocispec.Index) error {
	used := s.reachable(index)
	var problems error
	for _, dir := range []string{s.dir, s.blobDir()} {
		entries, err := os.ReadDir(dir)
		problems = errors.Join(problems, err)
		for _, e := range entries {
			unused := dir == s.blobDir() && !used[digest.NewDigestFromEncoded(digest.SHA256, e.Name())]
			temporary := strings.HasPrefix(e.Name(), ".") && e.Name() != lockName
			if unused || temporary {
				problems = errors.Join(problems, os.Remove(filepath.Join(dir, e.Name())))
			}
		}
	}
	return problems
}

// reachable returns the blobs that are reachable from the index. It ignores absent ones, such as manifests of other
// platforms.
func (s *Store) reachable(index ocispec.Index) map[digest.Digest]bool {
	used := map[digest.Digest]bool{}
	for _, entry := range index.Manifests {
		s.follow(entry.Digest, used)
		s.follow(digest.Digest(entry.Annotations[annotationSignatures]), used)
		for text := range strings.FieldsSeq(entry.Annotations[annotationBundles]) {
			s.follow(digest.Digest(text), used)
		}
	}
	return used
}

// follow marks the blobs that a manifest or index refers to as used. It treats unreadable ones as without references.
func (s *Store) follow(d digest.Digest, used map[digest.Digest]bool) {
	if used[d] || d.Validate() != nil {
		return
	}
	used[d] = true
	info, err := os.Stat(s.blobPath(d))
	if err != nil || info.Size() > maxManifest {
		return
	}
	data, err := os.ReadFile(s.blobPath(d))
	if err != nil {
		return
	}
	var node struct {
		Config    ocispec.Descriptor   `json:"config"`
		Layers    []ocispec.Descriptor `json:"layers"`
		Manifests []ocispec.Descriptor `json:"manifests"`
	}
	if json.Unmarshal(data, &node) != nil {
		return
	}
	for _, child := range slices.Concat([]ocispec.Descriptor{node.Config}, node.Layers) {
		used[child.Digest] = true
	}
	for _, child := range node.Manifests {
		s.follow(child.Digest, used)
	}
}

// mediaTypeOf returns the media type of an index or manifest that does not state it.
func mediaTypeOf(data []byte) string {
	var node struct {
		MediaType string            `json:"mediaType"`
		Manifests []json.RawMessage `json:"manifests"`
	}
	if json.Unmarshal(data, &node) == nil && node.MediaType == "" && node.Manifests != nil {
		return ocispec.MediaTypeImageIndex
	}
	if node.MediaType == "" {
		return ocispec.MediaTypeImageManifest
	}
	return node.MediaType
}
