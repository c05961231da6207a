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

// Signatures in the format of simple signing are stored like cosign's: a manifest under the tag sha256-<digest>.sig,
// with a layer for each signature that contains the signed payload.
const (
	payloadMediaType    = "application/vnd.dev.cosign.simplesigning.v1+json"
	annotationSignature = "dev.cosignproject.cosign/signature"
	payloadType         = "cosign container image signature"

	maxPayload    = 64 << 10 // bytes
	maxSignatures = 32
	maxKeyFile    = 16 << 10 // bytes
)

// signatureTag returns the tag of an artifact's signatures.
func signatureTag(d digest.Digest) string { return "sha256-" + d.Encoded() + ".sig" }

// payload is the signed message in the "simple signing" format.
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

// signature is an unverified signature.
type signature struct {
	format  string
	message []byte // the signed message
	text    string // base64
	claims  []claim
	flaw    string // why it cannot be verified; empty if it can
}

// claim is the content of a signature: the signed artifact and its name. Bundles of cosign have no name.
type claim struct {
	digest digest.Digest
	name   string
}

// about returns the signature's claim if it is about the artifact, or nil.
func (s signature) about(root digest.Digest) *claim {
	i := slices.IndexFunc(s.claims, func(c claim) bool { return c.digest == root })
	if i < 0 {
		return nil
	}
	return &s.claims[i]
}

// parseSimple parses a signature in the format of simple signing. An unreadable one has no claims.
func parseSimple(message []byte, text string) signature {
	out := signature{format: FormatSimple, message: message, text: text}
	var p payload
	if err := json.Unmarshal(message, &p); err == nil && p.Critical.Type == payloadType {
		out.claims = []claim{{p.Critical.Image.Digest, p.Critical.Identity.Reference}}
	}
	return out
}

// GenerateKey writes a new ed25519 key to name.key, readable by its owner only, and the public key to name.pub. It does
// not overwrite files.
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

// supported reports whether Kerb can verify signatures of a key: ed25519, or ECDSA on P-256, which cosign generates.
func supported(key crypto.PublicKey) bool {
	switch k := key.(type) {
	case ed25519.PublicKey:
		return true
	case *ecdsa.PublicKey:
		return k.Curve == elliptic.P256()
	}
	return false
}

// sign returns a base64 signature like cosign's: ed25519 of the message itself, ECDSA of its SHA-256.
func (s *Signer) sign(data []byte) (string, error) {
	message, opts := data, crypto.SignerOpts(crypto.Hash(0))
	if _, ok := s.key.Public().(*ecdsa.PublicKey); ok {
		sum := sha256.Sum256(data)
		message, opts = sum[:], crypto.SHA256
	}
	sig, err := s.key.Sign(rand.Reader, message, opts)
	return base64.StdEncoding.EncodeToString(sig), err
}

// simple returns the signature of an artifact in the format of simple signing.
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

// publicKey is a trusted key of the node.
type publicKey struct {
	name string
	key  crypto.PublicKey
}

// verifies reports whether the key verifies a base64 signature in cosign's formats: ed25519 of the message itself or,
// since cosign 3, of its SHA-512 (Ed25519ph in RFC 8032, which separates the two), or ECDSA of its SHA-256 in ASN.1.
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

// loadKeys reads the keys in a directory. It reports files that are not keys in problems, and returns the others.
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

// loadKey reads a public key in PEM (SubjectPublicKeyInfo, RFC 5280) from a file that only root can change.
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

// fingerprint returns sha256: and the SHA-256 of the key as SubjectPublicKeyInfo (RFC 5280), as written by openssl pkey
// -pubin -outform DER, in 64 hexadecimal digits.
func (k publicKey) fingerprint() string {
	der, err := x509.MarshalPKIXPublicKey(k.key)
	if err != nil {
		panic(err) // impossible: it was parsed from this format
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

// Trust has the conditions for accepting a package.
type Trust struct {
	Keys          string // directory of public keys
	Identity      string // name that the signature must contain; if empty, that of the reference
	AllowUnsigned bool   // accept it without a valid signature

	AllowDowngrade bool // accept a version older than the one that the reference resolved to before

	Owner string // program that requests the pull; empty for an operator, who remains the owner
}

// identity returns the name that a signature must contain, or "" for any.
func (t Trust) identity(ref Reference) string { return cmp.Or(t.Identity, ref.identity()) }

// proof is the signature for which an artifact was accepted. The zero value means that the signature was waived.
type proof struct {
	key      string // name of the key
	format   string
	nameless bool // the signature contains no name
}

// verify returns a valid signature of the artifact, under the required name, by a key of the node. It prefers
// signatures with a name to those without. Errors are *SignatureError, and include problems.
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

// signers returns the fingerprints of all keys of the node that signed an artifact under its name. A bundle without a
// name, such as cosign's, counts if the last segment of the requested name is the package's own name; otherwise it
// could be for another package signed with the same key. Foreign images have no name of their own.
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

// signatureBlobs returns the manifest with signatures in the format of simple signing, and the blobs that it refers to.
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
