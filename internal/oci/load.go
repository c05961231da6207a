// SPDX-License-Identifier: Apache-2.0

package oci

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/errdef"

	"github.com/kerb-edge/kerb/internal/pkgs"
)

const (
	maxManifest = 1 << 20 // bytes, also for configs
)

// loaded is a verified artifact, with everything that is stored to verify it again.
type loaded struct {
	pkg        *pkgs.Package
	root       ocispec.Descriptor
	signatures *ocispec.Descriptor // manifest of the signatures in the format of simple signing; nil without
	bundles    []string            // digests of the manifests of bundles
	proof      proof
	signers    []string // fingerprints of all keys that signed it under its name
	blobs      []blob
	foreign    bool // an image of foreign programs, without a version, and not a package
}

// attached lists the manifests with signatures of an artifact.
type attached struct {
	simple  *ocispec.Descriptor  // manifest under the tag of cosign; nil without
	bundles []ocispec.Descriptor // manifests that refer to the artifact
	problem error                // why there may be more bundles
}

// loader reads an artifact from a registry, a layout or the store. It accepts only blobs that match their digest.
type loader struct {
	from  content.Fetcher
	ref   Reference
	trust Trust
	out   loaded
	found []signature // of the root

	unread error // temporary: signatures may exist that were not read; nil otherwise
}

// load verifies and reads an artifact. It checks signatures first, to fetch little of a rejected artifact.
func load(ctx context.Context, from content.Fetcher, ref Reference, root ocispec.Descriptor,
	signatures attached, trust Trust) (*loaded, error) {
	l := &loader{from: from, ref: ref, trust: trust}
	l.out.root = root
	manifest, err := l.manifest(ctx, root)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", ref, err)
	}
	if err := l.signed(ctx, signatures); err != nil {
		return nil, err
	}
	if err := l.content(ctx, manifest); err != nil {
		return nil, fmt.Errorf("%s: %w", ref, err)
	}
	if err := l.named(); err != nil {
		return nil, err
	}
	if err := checkDenied(trust.Keys, &l.out); err != nil {
		return nil, fmt.Errorf("%s: %w", ref, err)
	}
	return &l.out, nil
}

// fetch reads a blob of at most limit bytes and verifies its digest.
func (l *loader) fetch(ctx context.Context, d ocispec.Descriptor, limit int64) ([]byte, error) {
	if err := d.Digest.Validate(); err != nil || d.Digest.Algorithm() != digest.SHA256 {
		return nil, fmt.Errorf("%w: %q is no sha256 digest", ErrDigest, d.Digest)
	}
	if d.Size < 0 || d.Size > limit {
		return nil, fmt.Errorf("%w: %s has %d bytes, more than the %d allowed", ErrArchive, d.Digest, d.Size, limit)
	}
	r, err := l.from.Fetch(ctx, d)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	data, err := content.ReadAll(r, d)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrDigest, d.Digest, err)
	}
	l.out.blobs = append(l.out.blobs, blob{d, data})
	return data, nil
}

// manifest returns the manifest for this node; d may be an index.
func (l *loader) manifest(ctx context.Context, d ocispec.Descriptor) (*ocispec.Manifest, error) {
	data, err := l.fetch(ctx, d, maxManifest)
	if err != nil {
		return nil, err
	}
	var both struct {
		MediaType string               `json:"mediaType"`
		Manifests []ocispec.Descriptor `json:"manifests"`
	}
	if err := json.Unmarshal(data, &both); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrForeign, err)
	}
	if d.MediaType == ocispec.MediaTypeImageIndex || d.MediaType == dockerList {
		if d, err = choose(ocispec.Index{Manifests: both.Manifests}, Node()); err != nil {
			return nil, err
		}
		if data, err = l.fetch(ctx, d, maxManifest); err != nil {
			return nil, err
		}
	}
	if d.MediaType != ocispec.MediaTypeImageManifest && d.MediaType != dockerManifest {
		return nil, fmt.Errorf("%w: it is of type %s", ErrForeign, d.MediaType)
	}
	var m ocispec.Manifest
	if err := json.Unmarshal(data, &m); err != nil || m.SchemaVersion != 2 {
		return nil, fmt.Errorf("%w: its manifest cannot be read", ErrForeign)
	}
	return &m, nil
}

// signed verifies the signatures of the root. It ignores unreadable ones, unless the error is temporary: then it
// returns that error, since a missing signature would be rejected or waived wrongly.
func (l *loader) signed(ctx context.Context, at attached) error {
	var signatures []signature
	if at.simple != nil {
		var err error
		kept := len(l.out.blobs)
		signatures, err = l.signatures(ctx, *at.simple)
		switch {
		case err == nil:
			l.out.signatures = at.simple
		case !l.noteTemporary(err) && !l.trust.AllowUnsigned:
			return fmt.Errorf("signatures of %s: %w", l.ref, err)
		default: // unreadable, so that the store could not read it again
			l.out.blobs = l.out.blobs[:kept]
		}
	}
	for _, d := range at.bundles {
		if s, ok := l.bundle(ctx, d); ok {
			signatures = append(signatures, s)
		}
	}
	var problems []string
	if at.problem != nil {
		l.noteTemporary(at.problem)
		problems = append(problems, at.problem.Error())
	}
	by, err := l.trust.verify(l.ref, l.out.root.Digest, signatures, problems...)
	if err != nil && (l.unread != nil || !l.trust.AllowUnsigned) {
		return l.refusal(err)
	}
	l.out.proof, l.found = by, signatures
	return nil
}

// noteTemporary records the first temporary error, and reports whether err is temporary.
func (l *loader) noteTemporary(err error) bool {
	if !temporary(err) {
		return false
	}
	if l.unread == nil {
		l.unread = err
	}
	return true
}

// refusal returns why an artifact without a valid signature is rejected. A temporary error takes precedence.
func (l *loader) refusal(err error) error {
	if l.unread != nil {
		return fmt.Errorf("signatures of %s could not be read; try again later: %w", l.ref, l.unread)
	}
	return err
}

// named rejects a package whose signatures have no name, unless its own name is the requested one: a registry could
// substitute another package signed with the same key. Foreign images have no name of their own. It also records the
// signers of the package under its name.
func (l *loader) named() error {
	identity := l.trust.identity(l.ref)
	own := ""
	if !l.out.foreign {
		own = l.out.pkg.Name
	}
	l.out.signers = l.trust.signers(l.ref, l.out.root.Digest, l.found, own)
	if !l.out.proof.nameless || l.out.foreign || path.Base(identity) == l.out.pkg.Name {
		return nil
	}
	by := l.out.proof.key
	if l.out.proof = (proof{}); l.trust.AllowUnsigned && l.unread == nil {
		return nil
	}
	return l.refusal(&SignatureError{Ref: l.ref.String(), Keys: l.trust.Keys, Err: ErrIdentity,
		Detail: fmt.Sprintf("package %s by %s, in a bundle without a name, not for %q", l.out.pkg.Name, by, identity)})
}

// signatures reads the manifest in which cosign stores signatures: a layer for each, with the payload as blob and the
// signature as annotation. It skips layers of other types.
func (l *loader) signatures(ctx context.Context, d ocispec.Descriptor) ([]signature, error) {
	data, err := l.fetch(ctx, d, maxManifest)
	if err != nil {
		return nil, err
	}
	var m ocispec.Manifest
	if err := json.Unmarshal(data, &m); err != nil {
		return nil, err
	}
	if len(m.Layers) > maxSignatures {
		return nil, fmt.Errorf("%w: more than %d signatures", ErrArchive, maxSignatures)
	}
	var out []signature
	for _, layer := range m.Layers {
		if layer.MediaType != payloadMediaType {
			continue
		}
		data, err := l.fetch(ctx, layer, maxPayload)
		if err != nil {
			return nil, err
		}
		out = append(out, parseSimple(data, layer.Annotations[annotationSignature]))
	}
	return out, nil
}

// content reads the layer: a package, or foreign programs.
func (l *loader) content(ctx context.Context, m *ocispec.Manifest) error {
	if m.ArtifactType != ArtifactType && m.Config.MediaType != ocispec.MediaTypeImageConfig &&
		m.Config.MediaType != dockerConfig {
		return fmt.Errorf("%w: its manifest is for %s", ErrForeign, m.Config.MediaType)
	}
	if len(m.Layers) != 1 || m.Layers[0].MediaType != ocispec.MediaTypeImageLayerGzip &&
		m.Layers[0].MediaType != dockerLayer {
		return fmt.Errorf("%w: want exactly one layer of type %s", ErrForeign, ocispec.MediaTypeImageLayerGzip)
	}
	config, err := l.fetch(ctx, m.Config, maxManifest)
	if err != nil {
		return err
	}
	layer, err := l.fetch(ctx, m.Layers[0], maxLayer)
	if err != nil {
		return err
	}
	isPackage := m.ArtifactType == ArtifactType
	content, err := unpack(layer, !isPackage)
	if err != nil {
		return err
	}
	if isPackage || content[pkgs.ManifestName] != nil {
		l.out.pkg, err = openFiles(content, l.ref.String())
		return err
	}
	l.out.foreign = true
	l.out.pkg, err = openImage(l.ref, config, content)
	return err
}

// openImage reads an image in bpfman's format: one object, with labels that describe its content.
func openImage(ref Reference, config []byte, content files) (*pkgs.Package, error) {
	var image ocispec.Image
	if err := json.Unmarshal(config, &image); err != nil {
		return nil, fmt.Errorf("%w: its config cannot be read", ErrForeign)
	}
	programs, err := programsOf(image.Config.Labels)
	if err != nil {
		return nil, err
	}
	var objects []string
	for name := range maps.Keys(content) {
		if path.Ext(name) == ".o" {
			objects = append(objects, name)
		}
	}
	if len(objects) != 1 {
		return nil, fmt.Errorf("%w: its layer has %d objects (*.o), not one", ErrForeign, len(objects))
	}
	return pkgs.OpenForeign(ref.Base(), ref.String(), content[objects[0]], programs)
}

// programsOf reads the labels, also those of the first version of the specification.
func programsOf(labels map[string]string) (map[string]string, error) {
	if name, kind := labels["io.ebpf.bpf_function_name"], labels["io.ebpf.program_type"]; labels[labelPrograms] == "" &&
		name != "" {
		return map[string]string{name: kind}, nil
	}
	if labels[labelPrograms] == "" {
		return nil, fmt.Errorf("%w: it has neither %s nor the label %s", ErrForeign, pkgs.ManifestName, labelPrograms)
	}
	programs := map[string]string{}
	if err := json.Unmarshal([]byte(labels[labelPrograms]), &programs); err != nil {
		return nil, fmt.Errorf("%w: its label %s is not a JSON object of names and types", ErrForeign, labelPrograms)
	}
	return programs, nil
}

// notFound reports whether err means that something does not exist, and not that it cannot be read.
func notFound(err error) bool {
	return errors.Is(err, errdef.ErrNotFound) || errors.Is(err, fs.ErrNotExist) || err != nil &&
		strings.Contains(err.Error(), "NAME_UNKNOWN")
}
