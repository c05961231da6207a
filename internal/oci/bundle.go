// SPDX-License-Identifier: Apache-2.0

package oci

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/registry"
)

// Bundles are signatures in the format of cosign 3: an artifact that refers to the signed one (OCI 1.1), whose only
// layer is a Sigstore bundle (sigstore_bundle.proto of sigstore/protobuf-specs): a DSSE envelope with an in-toto
// statement.
const (
	bundleMediaType     = "application/vnd.dev.sigstore.bundle.v0.3+json"
	annotationContent   = "dev.sigstore.bundle.content"
	annotationPredicate = "dev.sigstore.bundle.predicateType"
	statementMediaType  = "application/vnd.in-toto+json"
	statementType       = "https://in-toto.io/Statement/v1"
	signPredicate       = "https://sigstore.dev/cosign/sign/v1"

	// An entry in a list of referrers takes as little as 3 bytes, and 120 in memory.
	maxReferrerPages = 16
	maxReferrerBytes = 256 << 10 // of each page, and of the index under the fallback tag
	maxReferrers     = 512       // of all pages, attestations included
)

// bundle has the fields of a Sigstore bundle for verification with keys. Transparency log entries and timestamps are
// ignored.
type bundle struct {
	MediaType string   `json:"mediaType"`
	Material  material `json:"verificationMaterial"`
	Envelope  envelope `json:"dsseEnvelope"`
}

// material identifies the key. Its hint is neither signed nor used: verification tries all keys of the node.
type material struct {
	PublicKey   *keyHint  `json:"publicKey,omitempty"`
	Certificate *struct{} `json:"certificate,omitempty"`
}

type keyHint struct {
	Hint string `json:"hint,omitempty"`
}

// envelope is a DSSE envelope (secure-systems-lab/dsse, envelope.md).
type envelope struct {
	Payload     []byte          `json:"payload"`
	PayloadType string          `json:"payloadType"`
	Signatures  []dsseSignature `json:"signatures"`
}

type dsseSignature struct {
	Sig string `json:"sig"` // base64
}

// statement is an in-toto statement (in-toto/attestation, spec/v1/statement.md).
type statement struct {
	Type          string    `json:"_type"`
	Subject       []subject `json:"subject"`
	PredicateType string    `json:"predicateType"`
	Predicate     struct{}  `json:"predicate"`
}

type subject struct {
	Name   string            `json:"name,omitempty"` // cosign leaves it empty
	Digest map[string]string `json:"digest"`
}

// errAttestation is returned for bundles with other statements about an artifact, such as its provenance.
var errAttestation = errors.New("an attestation, not a signature")

// parseBundle reads a bundle. The signature has not been verified.
func parseBundle(data []byte) (signature, error) {
	var b bundle
	if err := unmarshalUnambiguous(data, &b); err != nil {
		return signature{}, err
	}
	var s statement
	if err := unmarshalUnambiguous(b.Envelope.Payload, &s); err != nil {
		return signature{}, fmt.Errorf("statement: %w", err)
	}
	switch {
	case s.PredicateType != signPredicate:
		return signature{}, errAttestation
	case b.MediaType != bundleMediaType:
		return signature{}, fmt.Errorf("its type is %q, not %s", b.MediaType, bundleMediaType)
	case b.Material.PublicKey == nil || b.Material.Certificate != nil:
		return signature{}, errors.New("it is by a certificate, and Kerb trusts keys only: sign with a key " +
			"(cosign sign --key, kerb package sign)")
	case b.Envelope.PayloadType != statementMediaType || s.Type != statementType:
		return signature{}, fmt.Errorf("it holds %q of type %q, not %s", b.Envelope.PayloadType, s.Type, statementType)
	case len(b.Envelope.Signatures) != 1: // required by the specification
		return signature{}, fmt.Errorf("it has %d signatures, not one", len(b.Envelope.Signatures))
	}
	out := signature{format: FormatBundle, message: preAuthEncoding(b.Envelope.Payload),
		text: b.Envelope.Signatures[0].Sig}
	for _, subject := range s.Subject {
		out.claims = append(out.claims, claim{digest.NewDigestFromEncoded(digest.SHA256, subject.Digest["sha256"]),
			subject.Name})
	}
	return out, nil
}

// preAuthEncoding returns the signed message of a statement (PAE in DSSE, protocol.md).
func preAuthEncoding(payload []byte) []byte {
	return fmt.Appendf(nil, "DSSEv1 %d %s %d %s", len(statementMediaType), statementMediaType, len(payload), payload)
}

// unmarshalUnambiguous decodes JSON that all decoders interpret alike. It rejects duplicate keys, also those that
// differ only in case, because encoding/json takes the last one or merges both.
func unmarshalUnambiguous(data []byte, v any) error {
	if err := json.Unmarshal(data, v); err != nil {
		return err
	}
	return checkKeys(json.NewDecoder(bytes.NewReader(data)))
}

func checkKeys(d *json.Decoder) error {
	token, err := d.Token()
	if err != nil {
		return err
	}
	open, ok := token.(json.Delim)
	if !ok {
		return nil
	}
	seen := map[string]bool{}
	for d.More() {
		if open == '{' {
			key, err := d.Token()
			if err != nil {
				return err
			}
			name := strings.Map(foldRune, fmt.Sprint(key))
			if seen[name] {
				return fmt.Errorf("key %q occurs twice", fmt.Sprint(key))
			}
			seen[name] = true
		}
		if err := checkKeys(d); err != nil {
			return err
		}
	}
	_, err = d.Token()
	return err
}

// foldRune returns the smallest of the letters that encoding/json does not distinguish in keys, such as k, K and the
// Kelvin sign.
func foldRune(r rune) rune {
	for {
		next := unicode.SimpleFold(r)
		if next <= r {
			return next
		}
		r = next
	}
}

// bundle returns a bundle for an artifact. Unlike cosign's, it contains the name for which the signature is valid.
func (s *Signer) bundle(d digest.Digest, identity string) (blob, error) {
	payload, err := json.Marshal(statement{Type: statementType, PredicateType: signPredicate,
		Subject: []subject{{Name: identity, Digest: map[string]string{"sha256": d.Encoded()}}}})
	if err != nil {
		return blob{}, err
	}
	sig, err := s.sign(preAuthEncoding(payload))
	if err != nil {
		return blob{}, err
	}
	key, err := x509.MarshalPKIXPublicKey(s.key.Public())
	if err != nil {
		return blob{}, err
	}
	hint := sha256.Sum256(key) // like cosign
	return jsonBlob(bundleMediaType, bundle{MediaType: bundleMediaType,
		Material: material{PublicKey: &keyHint{base64.StdEncoding.EncodeToString(hint[:])}},
		Envelope: envelope{payload, statementMediaType, []dsseSignature{{sig}}}})
}

// bundleBlobs returns a bundle and the manifest that attaches it to an artifact, in the order of upload.
func (s *Signer) bundleBlobs(root ocispec.Descriptor, identity string) ([]blob, error) {
	layer, err := s.bundle(root.Digest, identity)
	if err != nil {
		return nil, err
	}
	config := newBlob(ocispec.MediaTypeEmptyJSON, []byte("{}"))
	manifest, err := jsonBlob(ocispec.MediaTypeImageManifest, ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest,
		ArtifactType: bundleMediaType, Config: config.Descriptor, Layers: []ocispec.Descriptor{layer.Descriptor},
		Subject:     &ocispec.Descriptor{MediaType: root.MediaType, Digest: root.Digest, Size: root.Size},
		Annotations: map[string]string{annotationContent: "dsse-envelope", annotationPredicate: signPredicate}})
	return []blob{config, layer, manifest}, err
}

// findBundles returns the manifests that may contain bundles with signatures of root: at most maxSignatures, among at
// most maxReferrers artifacts. With an error, there may be more.
func findBundles(ctx context.Context, target oras.ReadOnlyGraphTarget,
	root ocispec.Descriptor) (out []ocispec.Descriptor, err error) {
	var count int
	var full error
	take := func(page []ocispec.Descriptor) error {
		for _, d := range page {
			switch count++; {
			case count > maxReferrers:
				full = fmt.Errorf("more than %d artifacts refer to it, and the others were not read", maxReferrers)
				return full
			case !mayBeBundle(d):
			case len(out) == maxSignatures:
				full = fmt.Errorf("it has more than %d bundles, and the others were not read", maxSignatures)
				return full
			default:
				out = append(out, ocispec.Descriptor{MediaType: d.MediaType, Digest: d.Digest, Size: d.Size})
			}
		}
		return nil
	}
	err = eachReferrer(ctx, target, root, take)
	if notFound(err) {
		return nil, nil
	}
	if err != nil && full == nil {
		return out, fmt.Errorf("the list of bundles cannot be read: %w", err)
	}
	return out, full
}

// eachReferrer calls take with each page of the artifacts that refer to root. It does not collect pages, since a
// hostile registry could exhaust the memory.
func eachReferrer(ctx context.Context, target oras.ReadOnlyGraphTarget, root ocispec.Descriptor,
	take func([]ocispec.Descriptor) error) error {
	if lister, ok := target.(registry.ReferrerLister); ok {
		return lister.Referrers(ctx, root, "", take)
	}
	all, err := registry.Referrers(ctx, target, root, "")
	if err != nil {
		return err
	}
	return take(all)
}

// mayBeBundle reports whether an artifact may be a bundle with a signature. Registries without support for artifact
// types list bundles with the type of their empty config.
func mayBeBundle(d ocispec.Descriptor) bool {
	if predicate, stated := d.Annotations[annotationPredicate]; stated && predicate != signPredicate {
		return false
	}
	return d.ArtifactType == bundleMediaType || d.ArtifactType == "" || d.ArtifactType == ocispec.MediaTypeEmptyJSON
}

// bundle reads one bundle. An unreadable one is recorded as a flaw, so that others may still be accepted. ok is false
// for artifacts that are not signatures.
func (l *loader) bundle(ctx context.Context, d ocispec.Descriptor) (s signature, ok bool) {
	kept := len(l.out.blobs)
	s, err := l.readBundle(ctx, d)
	if err == nil && s.about(l.out.root.Digest) != nil {
		l.out.bundles = append(l.out.bundles, d.Digest.String())
		return s, true
	}
	l.out.blobs = l.out.blobs[:kept]
	l.noteTemporary(err)
	if err != nil {
		s.flaw = fmt.Sprintf("bundle %s: %v", d.Digest, err)
	}
	return s, !errors.Is(err, errAttestation)
}

func (l *loader) readBundle(ctx context.Context, d ocispec.Descriptor) (signature, error) {
	data, err := l.fetch(ctx, d, maxPayload)
	if err != nil {
		return signature{}, err
	}
	var m ocispec.Manifest
	if err := json.Unmarshal(data, &m); err != nil {
		return signature{}, err
	}
	if len(m.Layers) != 1 || m.Layers[0].MediaType != bundleMediaType {
		return signature{}, errAttestation
	}
	if data, err = l.fetch(ctx, m.Layers[0], maxPayload); err != nil {
		return signature{}, err
	}
	return parseBundle(data)
}
