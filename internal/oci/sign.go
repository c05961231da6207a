// SPDX-License-Identifier: Apache-2.0

package oci

import (
	"cmp"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Formats of signatures.
const (
	FormatSimple = "simple signing"  // of cosign before version 3
	FormatBundle = "Sigstore bundle" // of cosign 3
)

// Signatures in the format of simple signing are kept as cosign keeps them: a manifest under the tag
// sha256-<digest>.sig, with a layer for each signature that holds what is signed.
const (
	payloadMediaType    = "application/vnd.dev.cosign.simplesigning.v1+json"
	annotationSignature = "dev.cosignproject.cosign/signature"
	payloadType         = "cosign container image signature"

	maxPayload    = 64 << 10 // bytes
	maxSignatures = 32
	maxKeyFile    = 16 << 10 // bytes
)

// signatureTag is where signatures of an artifact are.
func signatureTag(d digest.Digest) string { return "sha256-" + d.Encoded() + ".sig" }

// payload is what is signed: the "simple signing" format.
type payload struct {
	Critical struct {
		Identity struct {
			Reference string `json:"docker-reference"`
		} `json:"identity"`
		Image struct {
			Digest digest.Digest `json:"docker-manifest-digest"`
		} `json:"image"`
		Type string `json:"type"`
	} `json:"critical"`
	Optional map[string]any `json:"optional"`
}

// signature is a signature as it was found. Nothing of it has been verified.
type signature struct {
	format  string
	message []byte // what is signed
	text    string // base64
	claims  []claim
	flaw    string // why it cannot be verified; empty if it can
}

// claim is what a signature says: its key vouches for an artifact, under a name. Bundles of cosign have no name.
type claim struct {
	digest digest.Digest
	name   string
}

// about returns what a signature says of an artifact; nil if it is about another one.
func (s signature) about(root digest.Digest) *claim {
	i := slices.IndexFunc(s.claims, func(c claim) bool { return c.digest == root })
	if i < 0 {
		return nil
	}
	return &s.claims[i]
}

// parseSimple reads a signature in the format of simple signing. One that cannot be read claims nothing.
func parseSimple(message []byte, text string) signature {
	out := signature{format: FormatSimple, message: message, text: text}
	var p payload
	if err := json.Unmarshal(message, &p); err == nil && p.Critical.Type == payloadType {
		out.claims = []claim{{p.Critical.Image.Digest, p.Critical.Identity.Reference}}
	}
	return out
}

// GenerateKey writes a new ed25519 key to name.key, for its owner only, and its public half to name.pub. Files that are
// there are not overwritten.
func GenerateKey(name string) (private, public string, err error) {
	pub, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return "", "", err
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return "", "", err
	}
	open, err := x509.MarshalPKIXPublicKey(pub)
	if err != nil {
		return "", "", err
	}
	private, public = name+".key", name+".pub"
	if err := writeNew(public, 0o644, &pem.Block{Type: "PUBLIC KEY", Bytes: open}); err != nil {
		return "", "", err
	}
	if err := writeNew(private, 0o600, &pem.Block{Type: "PRIVATE KEY", Bytes: secret}); err != nil {
		return "", "", errors.Join(err, os.Remove(public))
	}
	return private, public, nil
}

func writeNew(path string, mode fs.FileMode, block *pem.Block) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	return errors.Join(pem.Encode(f, block), f.Close())
}

// Signer signs packages.
type Signer struct{ key crypto.Signer }

// LoadSigner reads a private key: PEM, PKCS #8, ed25519 or ECDSA P-256.
func LoadSigner(path string) (*Signer, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(data)
	if block == nil || block.Type != "PRIVATE KEY" {
		return nil, fmt.Errorf("%s is not a private key in PEM (PKCS #8), such as kerb package keygen makes", path)
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	signer, ok := key.(crypto.Signer)
	if !ok || !supported(signer.Public()) {
		return nil, fmt.Errorf("%s: want a key of type ed25519 or ECDSA P-256", path)
	}
	return &Signer{signer}, nil
}

// supported reports whether a key is of a type that Kerb verifies: ed25519, or ECDSA on P-256, which cosign makes.
func supported(key crypto.PublicKey) bool {
	switch k := key.(type) {
	case ed25519.PublicKey:
		return true
	case *ecdsa.PublicKey:
		return k.Curve == elliptic.P256()
	}
	return false
}

// sign returns a signature in base64 as cosign makes it: ed25519 of the message as such, ECDSA of its SHA-256.
func (s *Signer) sign(data []byte) (string, error) {
	message, opts := data, crypto.SignerOpts(crypto.Hash(0))
	if _, ok := s.key.Public().(*ecdsa.PublicKey); ok {
		sum := sha256.Sum256(data)
		message, opts = sum[:], crypto.SHA256
	}
	sig, err := s.key.Sign(rand.Reader, message, opts)
	return base64.StdEncoding.EncodeToString(sig), err
}

// simple makes the signature of an artifact in the format of simple signing.
func (s *Signer) simple(d digest.Digest, identity string) (signature, error) {
	var p payload
	p.Critical.Identity.Reference, p.Critical.Image.Digest, p.Critical.Type = identity, d, payloadType
	data, err := json.Marshal(p)
	if err != nil {
		return signature{}, err
	}
	text, err := s.sign(data)
	return parseSimple(data, text), err
}

// publicKey is a key of the node.
type publicKey struct {
	name string
	key  crypto.PublicKey
}

// verifies checks a signature as cosign makes it, in base64: ed25519 of the message as such or, since cosign 3, of its
// SHA-512 (Ed25519ph in RFC 8032, which separates the two), ECDSA of its SHA-256 in ASN.1.
func (k publicKey) verifies(s signature) bool {
	sig, err := base64.StdEncoding.DecodeString(s.text)
	if err != nil {
		return false
	}
	switch key := k.key.(type) {
	case ed25519.PublicKey:
		sum := sha512.Sum512(s.message)
		return ed25519.Verify(key, s.message, sig) ||
			ed25519.VerifyWithOptions(key, sum[:], sig, &ed25519.Options{Hash: crypto.SHA512}) == nil
	case *ecdsa.PublicKey:
		sum := sha256.Sum256(s.message)
		return ecdsa.VerifyASN1(key, sum[:], sig)
	}
	return false
}

// loadKeys reads the keys in a directory. A file that is not a key is reported, and the others are used.
func loadKeys(dir string) (keys []publicKey, problems []string) {
	paths, _ := filepath.Glob(filepath.Join(dir, "*.pub")) // only the pattern can be wrong
	slices.Sort(paths)
	for _, path := range paths {
		key, err := loadKey(path)
		if err != nil {
			problems = append(problems, err.Error())
			continue
		}
		keys = append(keys, publicKey{strings.TrimSuffix(filepath.Base(path), ".pub"), key})
	}
	return keys, problems
}

// loadKey reads a public key in PEM (SubjectPublicKeyInfo, RFC 5280). It has to be in a file that only root can
// change.
func loadKey(path string) (crypto.PublicKey, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxKeyFile {
		return nil, fmt.Errorf("%s is not a key", path)
	}
	if err := strictModes(path); err != nil {
		return nil, err
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return parseKey(path, data)
}

func parseKey(path string, data []byte) (crypto.PublicKey, error) {
	block, _ := pem.Decode(data)
	if block == nil || block.Type != "PUBLIC KEY" {
		return nil, fmt.Errorf("%s is not a public key in PEM", path)
	}
	key, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil || !supported(key) {
		return nil, fmt.Errorf("%s is not a key of type ed25519 or ECDSA P-256", path)
	}
	return key, nil
}

// fingerprint is the SHA-256 of the key as SubjectPublicKeyInfo (RFC 5280), which openssl pkey -pubin -outform DER
// writes: sha256: and 64 hexadecimal digits.
func (k publicKey) fingerprint() string {
	der, err := x509.MarshalPKIXPublicKey(k.key)
	if err != nil {
		panic(err) // it was parsed from one
	}
	return digest.FromBytes(der).String()
}

// Fingerprint returns the fingerprint of the public key in a file.
func Fingerprint(path string) (string, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	key, err := parseKey(path, data)
	if err != nil {
		return "", err
	}
	return publicKey{key: key}.fingerprint(), nil
}

// Trust is what makes a package acceptable.
type Trust struct {
	Keys          string // directory of public keys
	Identity      string // name that the signature must be for; empty: that of the reference
	AllowUnsigned bool   // take it without a signature that holds

	AllowDowngrade bool // take an older version than the reference led to before

	Owner string // the program that has it pulled; empty: an operator, whose packages stay the operator's
}

// identity is the name that a signature must be for; empty if any will do.
func (t Trust) identity(ref Reference) string { return cmp.Or(t.Identity, ref.identity()) }

// proof is the signature that makes an artifact acceptable. The zero proof is that it was waived.
type proof struct {
	key      string // name of the key
	format   string
	nameless bool // whatever name it was asked for, it has none
}

// verify looks for one signature that is for this artifact, under this name, and by a key of the node. One without a
// name is the second choice. Errors are *SignatureError; problems may explain them.
func (t Trust) verify(ref Reference, root digest.Digest, signatures []signature, problems ...string) (proof, error) {
	refuse := func(err error, detail string) (proof, error) {
		return proof{}, &SignatureError{Ref: ref.String(), Keys: t.Keys, Err: err, Detail: detail}
	}
	if len(signatures) == 0 {
		return refuse(ErrUnsigned, strings.Join(problems, "; "))
	}
	identity := t.identity(ref)
	keys, unusable := loadKeys(t.Keys)
	problems = append(problems, unusable...)
	var second proof
	other := ""
	for _, s := range signatures {
		if s.flaw != "" {
			problems = append(problems, s.flaw)
			continue
		}
		key := slices.IndexFunc(keys, func(k publicKey) bool { return k.verifies(s) })
		if key < 0 {
			continue
		}
		by := proof{key: keys[key].name, format: s.format}
		c := s.about(root)
		switch {
		case c == nil:
			problems = append(problems, "the signature of "+by.key+" is for something else")
		case identity == "" || c.name == identity:
			return by, nil
		case c.name == "" && s.format == FormatBundle:
			second = by
			second.nameless = true
		default:
			other = fmt.Sprintf("%q by %s, not for %q", c.name, by.key, identity)
		}
	}
	switch {
	case second.key != "":
		return second, nil
	case other != "":
		return refuse(ErrIdentity, other)
	}
	return refuse(ErrUnknownKey, strings.Join(problems, "; "))
}

// signers returns the fingerprints of all keys of the node that have signed an artifact under its name. A bundle
// without a name, as cosign makes it, counts if the last part of the name that was asked for is the package's own one:
// else it could be one of another package by the same key. Images of others have no name of their own.
func (t Trust) signers(ref Reference, root digest.Digest, signatures []signature, own string) (out []string) {
	keys, _ := loadKeys(t.Keys) // verify reports what is wrong with them
	identity := t.identity(ref)
	vouches := func(s signature, c *claim) bool {
		if c.name == "" {
			return s.format == FormatBundle && own != "" && own == path.Base(identity)
		}
		return identity == "" || c.name == identity
	}
	for _, s := range signatures {
		c := s.about(root)
		if s.flaw != "" || c == nil || !vouches(s, c) {
			continue
		}
		for _, key := range keys {
			if f := key.fingerprint(); key.verifies(s) && !slices.Contains(out, f) {
				out = append(out, f)
			}
		}
	}
	return out
}

// signatureBlobs makes the manifest that holds signatures in the format of simple signing, and what it refers to.
func signatureBlobs(signatures []signature) (manifest blob, blobs []blob, err error) {
	m := ocispec.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest}
	image := ocispec.Image{RootFS: ocispec.RootFS{Type: "layers"}}
	for _, s := range signatures {
		layer := newBlob(payloadMediaType, s.message)
		blobs = append(blobs, layer)
		layer.Annotations = map[string]string{annotationSignature: s.text}
		m.Layers = append(m.Layers, layer.Descriptor)
		image.RootFS.DiffIDs = append(image.RootFS.DiffIDs, layer.Digest)
	}
	config, err := jsonBlob(ocispec.MediaTypeImageConfig, image)
	if err != nil {
		return blob{}, nil, err
	}
	m.Config = config.Descriptor
	manifest, err = jsonBlob(ocispec.MediaTypeImageManifest, m)
	return manifest, append(blobs, config), err
}
