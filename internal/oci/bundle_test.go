// SPDX-License-Identifier: Apache-2.0

package oci

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// rootOf is the artifact that a reference leads to.
func rootOf(t *testing.T, target string) ocispec.Descriptor {
	t.Helper()
	to, err := Transport{}.writer(ref(t, target))
	if err != nil {
		t.Fatal(err)
	}
	root, err := resolve(t.Context(), to, ref(t, target))
	if err != nil {
		t.Fatal(err)
	}
	return root
}

// attach attaches an artifact of the type of bundles, whatever its content.
func attach(t *testing.T, target string, content []byte, annotations map[string]string) {
	t.Helper()
	to, err := Transport{}.writer(ref(t, target))
	if err != nil {
		t.Fatal(err)
	}
	root := rootOf(t, target)
	config, layer := newBlob(ocispec.MediaTypeEmptyJSON, []byte("{}")), newBlob(bundleMediaType, content)
	manifest, err := jsonBlob(ocispec.MediaTypeImageManifest, ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest,
		ArtifactType: bundleMediaType, Config: config.Descriptor, Layers: []ocispec.Descriptor{layer.Descriptor},
		Subject: &root, Annotations: annotations})
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range []blob{config, layer, manifest} {
		if err := put(t.Context(), to, b); err != nil {
			t.Fatal(err)
		}
	}
}

// signBundle signs the artifact of target with a bundle only.
func signBundle(t *testing.T, target string, signer *Signer, identity string) {
	t.Helper()
	b, err := signer.bundle(rootOf(t, target).Digest, identity)
	if err != nil {
		t.Fatal(err)
	}
	attach(t, target, b.data, map[string]string{annotationPredicate: signPredicate})
}

// crafted returns a hand-made bundle with a valid signature over payload.
func crafted(t *testing.T, s *Signer, payload string, change func(b *bundle)) []byte {
	t.Helper()
	sig, err := s.sign(preAuthEncoding([]byte(payload)))
	if err != nil {
		t.Fatal(err)
	}
	b := bundle{MediaType: bundleMediaType, Material: material{PublicKey: &keyHint{"h"}},
		Envelope: envelope{[]byte(payload), statementMediaType, []dsseSignature{{sig}}}}
	if change != nil {
		change(&b)
	}
	data, err := json.Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// statementOf is a statement as cosign makes it, with spaces as protojson has them.
func statementOf(d digest.Digest) string {
	return fmt.Sprintf(`{"_type":"https://in-toto.io/Statement/v1", "subject":[{"digest":{"sha256":"%s"}}], `+
		`"predicateType":"https://sigstore.dev/cosign/sign/v1", "predicate":{}}`, d.Encoded())
}

// places are where packages are: registries with and without a list of referrers, and a directory.
func places(t *testing.T) map[string]string {
	return map[string]string{"tag": startRegistry(t) + "/acme/limiter:1",
		"API":    startRegistry(t, registry.WithReferrersSupport(true)) + "/acme/limiter:1",
		"layout": "oci:" + filepath.Join(t.TempDir(), "limiter") + ":1"}
}

// A package that is signed only with a bundle is pulled, is trusted as long as the key exists, and is removed
// completely.
func TestBundle(t *testing.T) {
	dir := limiter(t)
	signer, public := author(t, "acme")
	for name, target := range places(t) {
		n := newNode(t)
		push(t, target, dir, nil)
		signBundle(t, target, signer, "")
		if _, err := n.pull(target); !errors.Is(err, ErrUnknownKey) {
			t.Fatalf("%s: without the key: %v", name, err)
		}
		n.trusts(public)
		if p := n.mustPull(target); p.SignedBy != "acme" || p.Signature != FormatBundle {
			t.Errorf("%s: signed by %q, %q", name, p.SignedBy, p.Signature)
		}
		unlock, err := n.lock() // sweeps
		if err != nil {
			t.Fatal(err)
		}
		unlock()
		if _, err := n.Get(target); err != nil {
			t.Errorf("%s: opened: %v", name, err)
		}
		if err := os.Remove(filepath.Join(n.keys, "acme.pub")); err != nil {
			t.Fatal(err)
		}
		if _, err := n.Get(target); !errors.Is(err, ErrUnknownKey) {
			t.Errorf("%s: opened without the key: %v", name, err)
		}
		if err := n.Remove(ref(t, target), nil); err != nil {
			t.Fatal(err)
		}
		if left, err := os.ReadDir(n.blobDir()); err != nil || len(left) != 0 {
			t.Errorf("%s: blobs left: %v, %v", name, left, err)
		}
	}
}

// Kerb signs in both formats, each of which suffices. The stored package is also accepted with a key that is added
// later.
func TestBothFormats(t *testing.T) {
	dir := limiter(t)
	for name, target := range places(t) {
		n := newNode(t)
		first, public := author(t, "first")
		second, later := author(t, "second")
		push(t, target, dir, first)
		signBundle(t, target, second, "")
		n.trusts(public)
		if p := n.mustPull(target); p.SignedBy != "first" || p.Signature != FormatSimple {
			t.Errorf("%s: signed by %q, %q", name, p.SignedBy, p.Signature)
		}
		at := bundlesOf(t, n)
		if len(at.bundles) != 2 || at.simple == nil {
			t.Errorf("%s: the store keeps %d bundles and %v", name, len(at.bundles), at.simple)
		}
		n.trusts(later)
		if err := os.Remove(filepath.Join(n.keys, "first.pub")); err != nil {
			t.Fatal(err)
		}
		if _, err := n.Get(target); err != nil {
			t.Errorf("%s: opened by the second key: %v", name, err)
		}
		// An older agent removes the bundles, as it ignores their annotation.
		n.trusts(public)
		for _, d := range at.bundles {
			if err := os.Remove(n.blobPath(d.Digest)); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := n.Get(target); err != nil {
			t.Errorf("%s: opened without bundles: %v", name, err)
		}
	}
}

func bundlesOf(t *testing.T, n node) attached {
	t.Helper()
	index, err := n.index()
	if err != nil || len(index.Manifests) != 1 {
		t.Fatalf("%+v, %v", index, err)
	}
	at, err := n.signaturesOf(index.Manifests[0])
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// A bundle with a name is valid for this name. One without is valid if the package's own name is the last segment of
// the requested name, so that the registry cannot substitute another package of the same author.
func TestNameOfBundle(t *testing.T) {
	dir := limiter(t)
	signer, public := author(t, "acme")
	n := newNode(t)
	n.trusts(public)
	for _, c := range []struct {
		repository, name, identity string
		want                       error
	}{
		{"acme/limiter", "acme/limiter", "", nil},
		{"acme/limiter2", "acme/limiter", "", ErrIdentity},
		{"acme/limiter2", "acme/limiter", "acme/limiter", nil},
		{"mirror/limiter", "", "", nil},
		{"acme/firewall", "", "", ErrIdentity},
		{"acme/firewall", "", "acme/firewall", ErrIdentity},
		{"acme/firewall", "", "acme/limiter", nil},
	} {
		host := startRegistry(t) // signatures belong to digests: one for each case
		in := func(name string) string {
			if name == "" {
				return ""
			}
			return host + "/" + name
		}
		target := in(c.repository) + ":1"
		push(t, target, dir, nil)
		signBundle(t, target, signer, in(c.name))
		trust := Trust{Identity: in(c.identity)}
		if _, err := n.Pull(t.Context(), ref(t, target), trust, Transport{}); !errors.Is(err, c.want) {
			t.Errorf("%+v: %v", c, err)
		}
		if _, err := n.Get(target); (err == nil) != (c.want == nil) {
			t.Errorf("%+v: opened: %v", c, err)
		}
		trust.AllowUnsigned = true
		if p, err := n.Pull(t.Context(), ref(t, target), trust, Transport{}); err != nil ||
			(p.SignedBy == "") != (c.want != nil) {
			t.Errorf("%+v: unsigned allowed: %+v, %v", c, p, err)
		}
	}
}

// Invalid bundles are rejected, although they are signed with the author's key, and do not hide a valid one.
func TestHostileBundles(t *testing.T) {
	dir := limiter(t)
	signer, public := author(t, "acme")
	mallory, _ := author(t, "mallory")
	a, err := build(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	root := a.root.Digest
	good, other := statementOf(root), statementOf(digest.FromString("something else"))
	text := string(crafted(t, signer, good, nil))
	stated := func(old, new string) []byte { return crafted(t, signer, strings.Replace(good, old, new, 1), nil) }
	written := func(old, new string) []byte { return []byte(strings.Replace(text, old, new, 1)) }
	changed := func(change func(b *bundle)) []byte { return crafted(t, signer, good, change) }
	for name, c := range map[string]struct {
		data []byte
		want string
	}{
		"good":             {[]byte(text), ""},
		"with a log entry": {written(`"publicKey"`, `"tlogEntries":[{"logIndex":"1"}],"publicKey"`), ""},
		"other subjects":   {stated(`"subject":[`, `"subject":[{"digest":{"sha512":"00"}},`), ""},

		"wrong key":       {crafted(t, mallory, good, nil), "not by a key"},
		"wrong digest":    {crafted(t, signer, other, nil), "something else"},
		"no subject":      {stated(`"subject"`, `"object"`), "something else"},
		"other hash":      {stated(`"sha256"`, `"sha512"`), "something else"},
		"other statement": {stated("Statement/v1", "Statement/v0.1"), "Statement/v0.1"},
		"attestation":     {stated(signPredicate, "https://slsa.dev/provenance/v1"), "not signed"},
		"digest twice":    {stated(`{"sha256"`, `{"sha256":"00","SHA256":"00","sha256"`), "twice"},
		"subject twice":   {stated(`"subject":`, `"subject":[{"digest":{"sha256":"00"}}],"subject":`), "twice"},
		"subject with ſ":  {stated(`"subject":`, `"ſubject":[{"digest":{"sha256":"00"}}],"subject":`), "twice"},
		"escaped ſ":       {stated(`"subject":`, `"\u017fubject":[{"digest":{"sha256":"00"}}],"subject":`), "twice"},

		"replaced payload": {crafted(t, signer, other, func(b *bundle) { b.Envelope.Payload = []byte(good) }),
			"not by a key"},
		"payload with a space":     {changed(func(b *bundle) { b.Envelope.Payload = []byte(good + " ") }), "not by a key"},
		"other payload type":       {changed(func(b *bundle) { b.Envelope.PayloadType = "text/plain" }), `"text/plain"`},
		"no payload type":          {changed(func(b *bundle) { b.Envelope.PayloadType = "" }), `holds ""`},
		"other type of bundle":     {changed(func(b *bundle) { b.MediaType += "2" }), "json2"},
		"certificate":              {changed(func(b *bundle) { b.Material = certificate }), "cosign sign --key"},
		"certificate and key":      {changed(func(b *bundle) { b.Material.Certificate = &struct{}{} }), "certificate"},
		"no material":              {changed(func(b *bundle) { b.Material = material{} }), "certificate"},
		"no signature":             {changed(func(b *bundle) { b.Envelope.Signatures = nil }), "0 signatures"},
		"two signatures":           {changed(twice), "2 signatures"},
		"empty signature":          {changed(resigned("")), "not by a key"},
		"signature cut":            {changed(resigned(sign(t, signer, good)[:64])), "not by a key"},
		"signature without a type": {changed(resigned(sign(t, signer, good))), "not by a key"},

		"truncated base64":        {written(`"payload":"`, `"payload":"A`), "base64"},
		"truncated":               {[]byte(text[:len(text)-3]), "unexpected end"},
		"more behind it":          {[]byte(text + text), "after top-level value"},
		"not JSON":                {[]byte("\x7fELF"), "invalid character"},
		"nothing":                 {nil, "unexpected end"},
		"null":                    {[]byte("null"), "unexpected end"},
		"huge":                    {bytes.Repeat([]byte(" "), maxPayload+1), "more than the"},
		"deep":                    {bytes.Repeat([]byte("["), maxPayload), "max depth"},
		"envelope twice":          {written(`"dsseEnvelope"`, `"dsseEnvelope":{"payload":""},"dsseEnvelope"`), "twice"},
		"payload in another case": {written(`"payload":`, `"PAYLOAD":"aGk=","payload":`), "twice"},
		"Kelvin sign in a key":    {written(`"publicKey":`, `"public\u212aey":{},"publicKey":`), "twice"},
		"message, no envelope":    {written(`"dsseEnvelope"`, `"messageSignature"`), "unexpected end"},
	} {
		target := startRegistry(t) + "/acme/limiter:1"
		n := newNode(t)
		n.trusts(public)
		push(t, target, dir, nil)
		attach(t, target, c.data, nil)
		_, err := n.pull(target)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		attach(t, target, []byte(text), nil)
		if p := n.mustPull(target); p.Signature != FormatBundle {
			t.Errorf("%s: with a good one: %+v", name, p)
		}
		kept := len(bundlesOf(t, n).bundles)
		if kept < 1 || kept > 2 || c.want == "something else" && kept != 1 || unused(t, n) > 0 {
			t.Errorf("%s: the store has %d bundles, and %d blobs of others", name, kept, unused(t, n))
		}
	}
}

// unused returns the number of unreferenced blobs in the store.
func unused(t *testing.T, n node) (count int) {
	t.Helper()
	index, err := n.index()
	if err != nil {
		t.Fatal(err)
	}
	used := n.reachable(index)
	entries, err := os.ReadDir(n.blobDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !used[digest.NewDigestFromEncoded(digest.SHA256, e.Name())] {
			count++
		}
	}
	return count
}

var certificate = material{Certificate: &struct{}{}}

func twice(b *bundle) {
	b.Envelope.Signatures = append(b.Envelope.Signatures, b.Envelope.Signatures[0])
}

// resigned replaces the signature.
func resigned(text string) func(b *bundle) {
	return func(b *bundle) { b.Envelope.Signatures[0].Sig = text }
}

// sign signs the payload as such.
func sign(t *testing.T, s *Signer, payload string) string {
	t.Helper()
	text, err := s.sign([]byte(payload))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// A bundle cannot be taken for a signature of the other format, nor the other way round: what is signed begins
// differently.
func TestFormatsAreNotConfused(t *testing.T) {
	signer, public := author(t, "acme")
	n := newNode(t)
	n.trusts(public)
	root := digest.FromString("artifact")
	simple, err := signer.simple(root, "example.org/acme/limiter")
	if err != nil {
		t.Fatal(err)
	}
	b, err := signer.bundle(root, "example.org/acme/limiter")
	if err != nil {
		t.Fatal(err)
	}
	bundled, err := parseBundle(b.data)
	if err != nil {
		t.Fatal(err)
	}
	trust, at := Trust{Keys: n.keys}, ref(t, "example.org/acme/limiter:1")
	for name, s := range map[string]signature{
		"bundle as simple signing": parseSimple(bundled.message, bundled.text),
		"signature of the other": {format: FormatBundle, message: bundled.message, text: simple.text,
			claims: bundled.claims},
		"simple signing as bundle": {format: FormatBundle, message: preAuthEncoding(simple.message), text: simple.text,
			claims: simple.claims},
	} {
		if _, err := trust.verify(at, root, []signature{s}); !errors.Is(err, ErrUnknownKey) {
			t.Errorf("%s: %v", name, err)
		}
	}
	nameless, err := signer.simple(root, "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := trust.verify(at, root, []signature{nameless}); !errors.Is(err, ErrIdentity) {
		t.Errorf("simple signing without a name: %v", err)
	}
	for _, s := range []signature{simple, bundled} {
		if by, err := trust.verify(at, root, []signature{s}); err != nil || by != (proof{key: "acme", format: s.format}) {
			t.Errorf("%s: %+v, %v", s.format, by, err)
		}
	}
}

// cosign signs bundles with Ed25519ph if the key is ed25519, and ECDSA keys with SHA-256. A signature by a key of one
// type is none by a key of another.
func TestKindsOfKeys(t *testing.T) {
	message := preAuthEncoding([]byte("{}"))
	edPublic, ed, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha512.Sum512(message)
	hashed, err := ed.Sign(nil, sum[:], &ed25519.Options{Hash: crypto.SHA512})
	if err != nil {
		t.Fatal(err)
	}
	inContext, err := ed.Sign(nil, message, &ed25519.Options{Context: "other"})
	if err != nil {
		t.Fatal(err)
	}
	by := func(key crypto.Signer) string { return sign(t, &Signer{key}, string(message)) }
	for name, c := range map[string]struct {
		key  crypto.PublicKey
		text string
		want bool
	}{
		"ed25519":               {edPublic, by(ed), true},
		"Ed25519ph":             {edPublic, base64.StdEncoding.EncodeToString(hashed), true},
		"Ed25519ctx":            {edPublic, base64.StdEncoding.EncodeToString(inContext), false},
		"pure ed25519 of a sum": {edPublic, base64.StdEncoding.EncodeToString(ed25519.Sign(ed, sum[:])), false},
		"P-256":                 {ec.Public(), by(ec), true},
		"ed25519 for P-256":     {ec.Public(), by(ed), false},
		"P-256 for ed25519":     {edPublic, by(ec), false},
	} {
		k := publicKey{"k", c.key}
		if got := k.verifies(signature{message: message, text: c.text}); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// A signature of one platform's manifest is not valid for the index, nor vice versa.
func TestBundleOfManifestInIndex(t *testing.T) {
	signer, public := author(t, "acme")
	target := startRegistry(t) + "/acme/limiter:1"
	name := "linux/" + Node().Architecture
	source := Source{Platforms: map[string]string{name: limiter(t)}}
	if _, err := Push(t.Context(), ref(t, target), source, nil, "", Transport{}); err != nil {
		t.Fatal(err)
	}
	index := rootOf(t, target)
	platform, err := ParsePlatform(name)
	if err != nil {
		t.Fatal(err)
	}
	child, err := build(source.Platforms[name], platform)
	if err != nil {
		t.Fatal(err)
	}
	pinned := ref(t, target).At(child.root.Digest).String()
	n := newNode(t)
	n.trusts(public)
	b, err := signer.bundle(child.root.Digest, "")
	if err != nil {
		t.Fatal(err)
	}
	attach(t, target, b.data, nil) // refers to the index, and is about the manifest
	if _, err := n.pull(target); !errors.Is(err, ErrUnknownKey) || !strings.Contains(err.Error(), "something else") {
		t.Errorf("the index, by a signature of the manifest: %v", err)
	}
	if b, err = signer.bundle(index.Digest, ""); err != nil {
		t.Fatal(err)
	}
	attach(t, pinned, b.data, nil)
	if _, err := n.pull(pinned); !errors.Is(err, ErrUnknownKey) {
		t.Errorf("the manifest, by a signature of the index: %v", err)
	}
	attach(t, target, b.data, nil)
	n.mustPull(target)
}

// A change of any byte of a stored bundle is detected.
func TestTamperedBundle(t *testing.T) {
	n := newNode(t)
	signer, public := author(t, "acme")
	n.trusts(public)
	target := startRegistry(t) + "/acme/limiter:1"
	push(t, target, limiter(t), nil)
	signBundle(t, target, signer, "")
	n.mustPull(target)
	tampered := 0
	for _, b := range []digest.Digest{bundlesOf(t, n).bundles[0].Digest, bundleLayer(t, n)} {
		data := read(t, n.blobPath(b))
		for _, at := range []int{0, len(data) / 2, len(data) - 1} {
			changed := bytes.Clone(data)
			changed[at] ^= 1
			write(t, n.blobPath(b), changed)
			if _, err := n.Get(target); !errors.Is(err, ErrUnknownKey) {
				t.Errorf("byte %d of %s: %v", at, b, err)
			}
			tampered++
		}
		write(t, n.blobPath(b), data)
	}
	if _, err := n.Get(target); err != nil || tampered != 6 {
		t.Errorf("with all as it was: %v, after %d", err, tampered)
	}
}

func bundleLayer(t *testing.T, n node) digest.Digest {
	t.Helper()
	var m ocispec.Manifest
	if err := json.Unmarshal(read(t, n.blobPath(bundlesOf(t, n).bundles[0].Digest)), &m); err != nil {
		t.Fatal(err)
	}
	return m.Layers[0].Digest
}

// Thousands of artifacts that refer to a package cost a bounded number of requests, and do not hide a signature of the
// other format. Attestations are not counted.
func TestManyReferrers(t *testing.T) {
	host, dir := startRegistry(t, registry.WithReferrersSupport(true)), limiter(t)
	signer, public := author(t, "acme")
	n := newNode(t)
	n.trusts(public)
	target := host + "/acme/limiter:1"
	push(t, target, dir, nil)
	for i := range maxSignatures + 8 {
		attach(t, target, crafted(t, signer, "{}", func(b *bundle) { b.Material.PublicKey.Hint = fmt.Sprint(i) }),
			map[string]string{annotationPredicate: "https://slsa.dev/provenance/v1"})
	}
	signBundle(t, target, signer, "")
	n.mustPull(target)
	from, err := Transport{}.repository(ref(t, target))
	if err != nil {
		t.Fatal(err)
	}
	if found, err := findBundles(t.Context(), from, rootOf(t, target)); err != nil || len(found) != 1 {
		t.Errorf("%d bundles, %v", len(found), err)
	}

	var requests atomic.Int64
	through := func(answer http.HandlerFunc) string {
		return proxy(t, host, func(w http.ResponseWriter, r *http.Request) bool {
			requests.Add(1)
			if !strings.Contains(r.URL.Path, "/referrers/") {
				return false
			}
			answer(w, r)
			return true
		}) + "/acme/limiter:1"
	}
	page := func(w http.ResponseWriter, count int, kind, next string) {
		index := ocispec.Index{MediaType: ocispec.MediaTypeImageIndex}
		for i := range count {
			index.Manifests = append(index.Manifests, ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest,
				ArtifactType: kind, Digest: digest.FromString(fmt.Sprint(i)), Size: 500})
		}
		if next != "" {
			w.Header().Set("Link", "<"+next+`>; rel="next"`)
		}
		w.Header().Set("Content-Type", ocispec.MediaTypeImageIndex)
		json.NewEncoder(w).Encode(index)
	}
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		want   string
		most   int64
	}{
		"thousand": {func(w http.ResponseWriter, _ *http.Request) { page(w, 1000, bundleMediaType, "") },
			"more than 32 bundles", maxSignatures + 10},
		"pages of bundles": {func(w http.ResponseWriter, r *http.Request) {
			page(w, 30, bundleMediaType, r.URL.Path+"?n=1")
		}, "more than 32 bundles", maxSignatures + 10},
		"pages of others": {func(w http.ResponseWriter, r *http.Request) { page(w, 300, "text/x", r.URL.Path+"?n=1") },
			"more than 512 artifacts", 10},
		"no end": {func(w http.ResponseWriter, r *http.Request) { page(w, 1, "text/x", r.URL.Path+"?n=1") },
			"exceeded 16 pages", maxReferrerPages + 10},
		"large": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", ocispec.MediaTypeImageIndex)
			fmt.Fprintf(w, `{"annotations":{"a":"%s"}}`, strings.Repeat("a", 2*maxManifest))
		}, "cannot be read", 10},
		"refused": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) },
			"cannot be read", 10},
	} {
		evil := through(c.answer)
		requests.Store(0)
		trust := Trust{Identity: target[:strings.LastIndexByte(target, ':')]}
		_, err := n.Pull(t.Context(), ref(t, evil), trust, Transport{})
		if err == nil || !strings.Contains(err.Error(), c.want) || !errors.As(err, new(*SignatureError)) {
			t.Errorf("%s: %v", name, err)
		}
		if got := requests.Load(); got > c.most {
			t.Errorf("%s: %d requests", name, got)
		}
		if _, err := Sign(t.Context(), ref(t, target), signer, "", Transport{}); err != nil {
			t.Fatal(err)
		}
		if p, err := n.Pull(t.Context(), ref(t, evil), trust, Transport{}); err != nil || p.Signature != FormatSimple {
			t.Errorf("%s: with a signature of the other format: %+v, %v", name, p, err)
		}
		to, err := Transport{}.writer(ref(t, target))
		if err != nil {
			t.Fatal(err)
		}
		none, err := to.Resolve(t.Context(), "1")
		if err != nil {
			t.Fatal(err)
		}
		if err := to.Tag(t.Context(), none, signatureTag(none.Digest)); err != nil { // removes the signature
			t.Fatal(err)
		}
	}
}

// Signing fails if an artifact has as many signatures as nodes read.
func TestMostSignatures(t *testing.T) {
	target := "oci:" + filepath.Join(t.TempDir(), "limiter") + ":1"
	signer, public := author(t, "acme")
	push(t, target, limiter(t), signer)
	var err error
	count := 1
	for ; err == nil && count < 2*maxSignatures; count++ {
		_, err = Sign(t.Context(), ref(t, target), signer, "", Transport{})
	}
	if err == nil || count != maxSignatures+1 || !strings.Contains(err.Error(), "32 signatures") {
		t.Errorf("%d signatures: %v", count, err)
	}
	n := newNode(t)
	n.trusts(public)
	n.mustPull(target)
}

// A registry that has neither a list of referrers nor permits deletion takes several bundles.
func TestBundlesWithoutDeletion(t *testing.T) {
	target := proxy(t, startRegistry(t), func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodDelete {
			return false
		}
		w.WriteHeader(http.StatusMethodNotAllowed)
		return true
	}) + "/acme/limiter:1"
	first, _ := author(t, "first")
	second, public := author(t, "second")
	push(t, target, limiter(t), first)
	if _, err := Sign(t.Context(), ref(t, target), second, "", Transport{}); err != nil {
		t.Fatal(err)
	}
	n := newNode(t)
	n.trusts(public)
	n.mustPull(target)
	if at := bundlesOf(t, n); len(at.bundles) != 2 {
		t.Errorf("%d bundles", len(at.bundles))
	}
}
