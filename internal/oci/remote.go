// SPDX-License-Identifier: Apache-2.0

package oci

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/content/oci"
	"oras.land/oras-go/v2/errdef"
	"oras.land/oras-go/v2/registry/remote"
	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/credentials"
	"oras.land/oras-go/v2/registry/remote/retry"

	"github.com/kerb-edge/kerb/internal/apierrors"
)

// Transport has the options for connections to registries.
type Transport struct {
	PlainHTTP   bool          // without TLS; always the case for registries on this machine
	Credentials string        // file in the format of docker login; if empty, that of the user
	Stall       time.Duration // timeout while a registry sends nothing in responses to reads; 0: none
}

// repository opens a registry.
func (t Transport) repository(ref Reference) (*remote.Repository, error) {
	r, err := remote.NewRepository(ref.Name())
	if err != nil {
		return nil, err
	}
	r.PlainHTTP = t.PlainHTTP || ref.loopback()
	r.MaxMetadataBytes, r.ReferrerListMaxPages = maxReferrerBytes, maxReferrerPages
	r.SkipReferrersGC = true // registries may forbid deletion
	client := &auth.Client{Client: retry.DefaultClient, Cache: auth.NewCache()}
	client.SetUserAgent("kerb")
	if t.Credentials != "" {
		store, err := credentials.NewFileStore(t.Credentials)
		if err != nil {
			return nil, fmt.Errorf("credentials of registries: %w", err)
		}
		client.Credential = credentials.Credential(store)
	} else if store, err := credentials.NewStoreFromDocker(credentials.StoreOptions{}); err == nil {
		client.Credential = credentials.Credential(store)
	}
	r.Client = client
	return r, nil
}

// reader opens a registry or layout for reading. The caller must call closer.
func (t Transport) reader(ctx context.Context, ref Reference) (target oras.ReadOnlyGraphTarget, closer func(),
	err error) {
	if ref.Layout == "" {
		return t.registryReader(ref)
	}
	root, err := os.OpenRoot(ref.Layout)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil, &apierrors.NotFound{Kind: "image layout", Name: ref.Layout}
	}
	if err != nil {
		return nil, nil, err
	}
	target, err = oci.NewFromFS(ctx, root.FS())
	if err != nil {
		root.Close()
		return nil, nil, fmt.Errorf("%s is not an OCI image layout: %w", ref.Layout, err)
	}
	return target, func() { root.Close() }, nil
}

// writer opens a registry or layout for writing. It creates a layout in an absent or empty directory, and rejects
// directories with other content.
func (t Transport) writer(ref Reference) (oras.GraphTarget, error) {
	if ref.Layout == "" {
		return t.repository(ref)
	}
	entries, err := os.ReadDir(ref.Layout)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	if _, err := os.Stat(filepath.Join(ref.Layout, ocispec.ImageLayoutFile)); err != nil && len(entries) > 0 {
		return nil, &apierrors.Conflict{Reason: ref.Layout + " has files in it and is not an OCI image layout"}
	}
	return oci.New(ref.Layout)
}

// resolve returns the descriptor for a reference. It returns an error if a registry responds with a digest other than
// the requested one.
func resolve(ctx context.Context, target oras.ReadOnlyTarget, ref Reference) (ocispec.Descriptor, error) {
	d, err := target.Resolve(ctx, ref.Target())
	if notFound(err) {
		return d, &apierrors.NotFound{Kind: "package", Name: ref.String()}
	}
	if err != nil {
		return d, fmt.Errorf("%s: %w", ref, err)
	}
	if ref.Digest != "" && d.Digest != ref.Digest {
		return d, fmt.Errorf("%s: %w: got %s", ref, ErrDigest, d.Digest)
	}
	if d.MediaType == "" || d.MediaType == "application/octet-stream" { // layouts lack the type of untagged blobs
		return typed(ctx, target, d)
	}
	return ocispec.Descriptor{MediaType: d.MediaType, Digest: d.Digest, Size: d.Size}, nil
}

// typed sets the media type by the content.
func typed(ctx context.Context, target oras.ReadOnlyTarget, d ocispec.Descriptor) (ocispec.Descriptor, error) {
	l := &loader{from: target}
	data, err := l.fetch(ctx, d, maxManifest)
	if err != nil {
		return d, err
	}
	d.MediaType = mediaTypeOf(data)
	return d, nil
}

// findSignatures returns the manifests with signatures of root. A registry that cannot list bundles may still have
// simple ones.
func findSignatures(ctx context.Context, target oras.ReadOnlyGraphTarget, root ocispec.Descriptor) (at attached,
	err error) {
	if at.simple, err = findSimple(ctx, target, root.Digest); err != nil {
		return at, err
	}
	at.bundles, at.problem = findBundles(ctx, target, root)
	return at, nil
}

// findSimple returns the manifest of the signatures in the format of simple signing; nil if there is none.
func findSimple(ctx context.Context, target oras.ReadOnlyTarget, root digest.Digest) (*ocispec.Descriptor, error) {
	d, err := target.Resolve(ctx, signatureTag(root))
	if notFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("signatures: %w", err)
	}
	return &ocispec.Descriptor{MediaType: d.MediaType, Digest: d.Digest, Size: d.Size}, nil
}

// Pushed is the result of Push.
type Pushed struct {
	Reference string `json:"reference"`
	Name      string `json:"name"`
	Version   string `json:"version"`
	Digest    string `json:"digest"` // of the index or manifest
	Signed    bool   `json:"signed"`
}

// Source is the package to push: one directory, or one for each platform.
type Source struct {
	Dir       string
	Platforms map[string]string // directories by platform, such as linux/amd64
}

func (s Source) build() (*artifact, error) {
	if len(s.Platforms) > 0 {
		return buildIndex(s.Platforms)
	}
	return build(s.Dir, nil)
}

// Push builds an artifact, signs it unless signer is nil, and uploads it to ref; it sets the tag last.
func Push(ctx context.Context, ref Reference, src Source, signer *Signer, identity string,
	t Transport) (*Pushed, error) {
	if ref.Tag == "" {
		return nil, &apierrors.Invalid{Resource: "reference " + ref.String(), Reason: "packages are pushed to a tag, not " +
			"to a digest"}
	}
	a, err := src.build()
	if err != nil {
		return nil, err
	}
	if err := checkTag(ref, a.pkg.Version); err != nil {
		return nil, err
	}
	target, err := t.writer(ref)
	if err != nil {
		return nil, err
	}
	for _, b := range append(a.blobs, a.root) {
		if err := put(ctx, target, b); err != nil {
			return nil, err
		}
	}
	out := &Pushed{Reference: ref.String(), Name: a.pkg.Name, Version: a.pkg.Version, Digest: a.root.Digest.String()}
	if signer != nil {
		if err := addSignature(ctx, target, a.root.Descriptor, signer, cmp.Or(identity, ref.identity())); err != nil {
			return nil, err
		}
		out.Signed = true
	}
	return out, target.Tag(ctx, a.root.Descriptor, ref.Tag)
}

func put(ctx context.Context, target oras.Target, b blob) error {
	err := target.Push(ctx, b.Descriptor, bytes.NewReader(b.data))
	if errors.Is(err, errdef.ErrAlreadyExists) {
		return nil
	}
	return err
}

// Sign adds a signature to the artifact of ref, and returns the artifact's digest.
func Sign(ctx context.Context, ref Reference, signer *Signer, identity string, t Transport) (digest.Digest, error) {
	target, err := t.writer(ref)
	if err != nil {
		return "", err
	}
	root, err := resolve(ctx, target, ref)
	if err != nil {
		return "", err
	}
	return root.Digest, addSignature(ctx, target, root, signer, cmp.Or(identity, ref.identity()))
}

// addSignature signs in both formats, and keeps existing signatures.
func addSignature(ctx context.Context, target oras.Target, root ocispec.Descriptor, signer *Signer,
	identity string) error {
	var all []signature
	old, err := findSimple(ctx, target, root.Digest)
	if err != nil {
		return err
	}
	if old != nil {
		l := &loader{from: target}
		if all, err = l.signatures(ctx, *old); err != nil {
			return err
		}
	}
	if len(all) == maxSignatures {
		return fmt.Errorf("%s has %d signatures already, the most that nodes read", root.Digest, maxSignatures)
	}
	s, err := signer.simple(root.Digest, identity)
	if err != nil {
		return err
	}
	manifest, blobs, err := signatureBlobs(append(all, s))
	if err != nil {
		return err
	}
	attached, err := signer.bundleBlobs(root, identity)
	if err != nil {
		return err
	}
	for _, b := range slices.Concat(blobs, []blob{manifest}, attached) {
		if err := put(ctx, target, b); err != nil {
			return err
		}
	}
	return target.Tag(ctx, manifest.Descriptor, signatureTag(root.Digest))
}

// Pulled is the result of Pull.
type Pulled struct {
	Reference string `json:"reference"`
	Pinned    string `json:"pinned"` // the reference with the digest
	Name      string `json:"name"`
	Version   string `json:"version"`
	Digest    string `json:"digest"`
	SignedBy  string `json:"signedBy,omitempty"`  // name of the key; empty if unsigned was allowed
	Signature string `json:"signature,omitempty"` // its format, one of FormatSimple and FormatBundle
	Moved     string `json:"moved,omitempty"`     // digest that the reference resolved to before
}

// Pull fetches the artifact of ref, verifies it completely, and only then adds it to the store.
func (s *Store) Pull(ctx context.Context, ref Reference, trust Trust, t Transport) (*Pulled, error) {
	target, closer, err := t.reader(ctx, ref)
	if err != nil {
		return nil, err
	}
	defer closer()
	root, err := resolve(ctx, target, ref)
	if err != nil {
		return nil, err
	}
	signatures, err := findSignatures(ctx, target, root)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", ref, err)
	}
	trust.Keys = s.keys
	got, err := load(ctx, target, ref, root, signatures, trust)
	if err != nil {
		return nil, err
	}
	if !got.foreign {
		if err := checkTag(ref, got.pkg.Version); err != nil {
			return nil, err
		}
	}
	if !trust.AllowDowngrade {
		if err := s.checkVersion(ref, got); err != nil {
			return nil, err
		}
	}
	moved, err := s.add(ref, got, trust)
	if err != nil {
		return nil, err
	}
	return &Pulled{Reference: ref.String(), Pinned: ref.At(root.Digest).String(), Name: got.pkg.Name,
		Version: got.pkg.Version,
		Digest:  root.Digest.String(), SignedBy: got.proof.key, Signature: got.proof.format, Moved: moved.String()}, nil
}
