// SPDX-License-Identifier: Apache-2.0

package oci

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/pkgs"
)

func TestPushPullRegistry(t *testing.T) {
	host, dir, n := startRegistry(t), limiter(t), newNode(t)
	signer, public := author(t, "acme")
	n.trusts(public)
	target := host + "/acme/limiter:0.1.0"
	pushed := push(t, target, dir, signer)
	pulled := n.mustPull(target)
	if pulled.Digest != pushed.Digest || pulled.SignedBy != "acme" || pulled.Name != "limiter" {
		t.Errorf("pushed %+v, pulled %+v", pushed, pulled)
	}
	original, err := pkgs.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{target, pulled.Pinned} {
		p, err := n.Get(name)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if p.Digest != original.Digest || p.Source != name {
			t.Errorf("%s: digest %s, source %s", name, p.Digest, p.Source)
		}
	}
	if again := push(t, host+"/acme/limiter:again", dir, signer); again.Digest != pushed.Digest {
		t.Errorf("the same package has digests %s and %s", pushed.Digest, again.Digest)
	}
}

func TestManifestIsReadableByOthers(t *testing.T) {
	a, err := build(limiter(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	var m ocispec.Manifest
	if err := json.Unmarshal(a.root.data, &m); err != nil {
		t.Fatal(err)
	}
	var config ocispec.Image
	if err := json.Unmarshal(a.blobs[0].data, &config); err != nil {
		t.Fatal(err)
	}
	labels := config.Config.Labels
	if m.ArtifactType != ArtifactType || m.Annotations[ocispec.AnnotationTitle] != "limiter" || len(m.Layers) != 1 {
		t.Errorf("manifest: %s", a.root.data)
	}
	programs := map[string]string{}
	if err := json.Unmarshal([]byte(labels[labelPrograms]), &programs); err != nil || programs["kerb_ingress"] != "tc" {
		t.Errorf("label of programs: %q, %v", labels[labelPrograms], err)
	}
	if !strings.Contains(labels[labelMaps], `"per_cpu_`) {
		t.Errorf("label of maps: %q", labels[labelMaps])
	}
}

func TestUnsignedIsRefused(t *testing.T) {
	host, n := startRegistry(t), newNode(t)
	target := host + "/acme/limiter:1"
	push(t, target, limiter(t), nil)
	var refused *SignatureError
	if _, err := n.pull(target); !errors.As(err, &refused) || !errors.Is(err, ErrUnsigned) ||
		!strings.Contains(err.Error(), "--allow-unsigned") {
		t.Fatalf("unsigned: %v", err)
	}
	if refs, err := n.References(); err != nil || len(refs) != 0 {
		t.Errorf("the store has %v, %v", refs, err)
	}
	if _, err := n.Pull(t.Context(), ref(t, target), Trust{AllowUnsigned: true}, Transport{}); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Get(target); err != nil {
		t.Errorf("what was allowed is refused later: %v", err)
	}
}

func TestWrongKeyIsRefused(t *testing.T) {
	host, n, dir := startRegistry(t), newNode(t), limiter(t)
	signer, public := author(t, "acme")
	other, _ := author(t, "mallory")
	n.trusts(public)
	target := host + "/acme/limiter:1"
	push(t, target, dir, other)
	if _, err := n.pull(target); !errors.Is(err, ErrUnknownKey) {
		t.Fatalf("wrong key: %v", err)
	}
	if _, err := Sign(t.Context(), ref(t, target), signer, "", Transport{}); err != nil {
		t.Fatal(err)
	}
	n.mustPull(target) // both signatures are there now
	if err := os.Remove(filepath.Join(n.keys, "acme.pub")); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Get(target); !errors.Is(err, ErrUnknownKey) {
		t.Errorf("opened without the key: %v", err)
	}
	list, err := n.List()
	if err != nil || len(list) != 1 || !strings.Contains(list[0].Description, "cannot be used") {
		t.Errorf("list: %v, %v", list, err)
	}
}

// A signature must be for this digest and this name: a valid one for another artifact is rejected.
func TestSignatureOfAnotherPackage(t *testing.T) {
	host, n, dir := startRegistry(t), newNode(t), limiter(t)
	signer, public := author(t, "acme")
	n.trusts(public)
	good := push(t, host+"/acme/limiter:1", dir, signer)
	newVersion(t, dir, "6.6.6")
	bad := push(t, host+"/acme/limiter:2", dir, nil)
	target, err := Transport{}.writer(ref(t, host+"/acme/limiter:2"))
	if err != nil {
		t.Fatal(err)
	}
	moved, err := target.Resolve(t.Context(), signatureTag(digest.Digest(good.Digest)))
	if err != nil {
		t.Fatal(err)
	}
	if err := target.Tag(t.Context(), moved, signatureTag(digest.Digest(bad.Digest))); err != nil {
		t.Fatal(err)
	}
	if _, err := n.pull(host + "/acme/limiter:2"); !errors.Is(err, ErrUnknownKey) ||
		!strings.Contains(err.Error(), "something else") {
		t.Errorf("signature of another digest: %v", err)
	}
	// The same package and signature under another name.
	if _, err := Push(t.Context(), ref(t, host+"/evil/limiter:1"), Source{Dir: limiter(t)}, signer, host+"/acme/limiter",
		Transport{}); err != nil {
		t.Fatal(err)
	}
	if _, err := n.pull(host + "/evil/limiter:1"); !errors.Is(err, ErrIdentity) {
		t.Errorf("another name: %v", err)
	}
	trust := Trust{Identity: host + "/acme/limiter"}
	if _, err := n.Pull(t.Context(), ref(t, host+"/evil/limiter:1"), trust, Transport{}); err != nil {
		t.Errorf("a mirror that is meant: %v", err)
	}
	if _, err := n.Get(host + "/evil/limiter:1"); err != nil {
		t.Errorf("opened from a mirror: %v", err)
	}
}

func TestECDSAKeys(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "p256")
	write(t, file+".key", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}))
	write(t, file+".pub", pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}))
	signer, err := LoadSigner(file + ".key")
	if err != nil {
		t.Fatal(err)
	}
	host, n := startRegistry(t), newNode(t)
	push(t, host+"/acme/limiter:1", limiter(t), signer)
	if _, err := n.pull(host + "/acme/limiter:1"); !errors.Is(err, ErrUnknownKey) {
		t.Errorf("before the key is there: %v", err)
	}
	n.trusts(file + ".pub")
	if p := n.mustPull(host + "/acme/limiter:1"); p.SignedBy != "p256" {
		t.Errorf("signed by %q", p.SignedBy)
	}
	if err := os.Chmod(filepath.Join(n.keys, "p256.pub"), 0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Get(host + "/acme/limiter:1"); err == nil ||
		!strings.Contains(err.Error(), "is writable by users other") {
		t.Errorf("a key that everybody can write: %v", err)
	}
}

func TestTamperedStore(t *testing.T) {
	host, n := startRegistry(t), newNode(t)
	signer, public := author(t, "acme")
	n.trusts(public)
	target := host + "/acme/limiter:1"
	push(t, target, limiter(t), signer)
	n.mustPull(target)
	blobs, err := os.ReadDir(n.blobDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range blobs {
		file := filepath.Join(n.blobDir(), b.Name())
		data := read(t, file)
		changed := bytes.Clone(data)
		changed[len(changed)/2] ^= 1
		write(t, file, changed)
		_, err := n.Get(target)
		isSignatureConfig := bytes.Contains(data, []byte(`"rootfs"`)) && !bytes.Contains(data, []byte(labelPrograms))
		isBundle := bytes.Contains(data, []byte(bundleMediaType)) // the other signature holds: TestTamperedBundle
		if err == nil && !isSignatureConfig && !isBundle {
			t.Errorf("opened with a bit of %s changed", b.Name())
		}
		write(t, file, data)
	}
	if _, err := n.Get(target); err != nil {
		t.Errorf("with all as it was: %v", err)
	}
}

// A registry that serves blobs with a wrong digest is detected.
func TestTamperingRegistry(t *testing.T) {
	host, n := startRegistry(t), newNode(t)
	signer, public := author(t, "acme")
	n.trusts(public)
	push(t, host+"/acme/limiter:1", limiter(t), signer)
	evil := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got, err := http.DefaultTransport.RoundTrip(proxied(r, host))
		if err != nil {
			t.Error(err)
			return
		}
		defer got.Body.Close()
		var body bytes.Buffer
		body.ReadFrom(got.Body)
		if strings.Contains(r.URL.Path, "/blobs/") && body.Len() > 2000 {
			body.Bytes()[body.Len()/2] ^= 1
		}
		for k, v := range got.Header {
			w.Header()[k] = v
		}
		w.WriteHeader(got.StatusCode)
		w.Write(body.Bytes())
	}))
	t.Cleanup(evil.Close)
	name := strings.TrimPrefix(evil.URL, "http://") + "/acme/limiter:1"
	_, err := n.Pull(t.Context(), ref(t, name), Trust{Identity: host + "/acme/limiter"}, Transport{})
	if !errors.Is(err, ErrDigest) {
		t.Errorf("tampered blob: %v", err)
	}
}

func proxied(r *http.Request, host string) *http.Request {
	u := url.URL{Scheme: "http", Host: host, Path: r.URL.Path, RawQuery: r.URL.RawQuery}
	out, _ := http.NewRequest(r.Method, u.String(), nil)
	out.Header = r.Header.Clone()
	out.Header.Del("Accept-Encoding")
	return out
}

func TestDigestPin(t *testing.T) {
	host, n, dir := startRegistry(t), newNode(t), limiter(t)
	signer, public := author(t, "acme")
	n.trusts(public)
	target := host + "/acme/limiter:1"
	first := push(t, target, dir, signer)
	n.mustPull(target)
	pinned := host + "/acme/limiter@" + first.Digest

	newVersion(t, dir, "1.1.0")
	second := push(t, target, dir, signer)
	if moved := n.mustPull(target); moved.Moved != first.Digest || moved.Digest != second.Digest {
		t.Errorf("moved tag: %+v", moved)
	}
	for name, want := range map[string]string{target: "1.1.0", pinned: "0.1.0"} {
		if p, err := n.Get(name); err != nil || p.Version != want {
			t.Errorf("%s: %v, %v", name, p, err)
		}
	}
	nothing := host + "/acme/limiter@" + digest.FromString("nothing").String()
	var missing *apierrors.NotFound
	if _, err := n.pull(nothing); !errors.As(err, &missing) {
		t.Errorf("digest of nothing: %v", err)
	}
	if _, err := n.Get(nothing); !errors.Is(err, pkgs.ErrUnknown) || !strings.Contains(err.Error(), "kerb package pull") {
		t.Errorf("not pulled: %v", err)
	}
}

func TestRemove(t *testing.T) {
	host, n, dir := startRegistry(t), newNode(t), limiter(t)
	signer, public := author(t, "acme")
	n.trusts(public)
	target := host + "/acme/limiter:1"
	push(t, target, dir, signer)
	pulled := n.mustPull(target)
	var conflict *apierrors.Conflict
	for _, use := range []string{target, pulled.Pinned} {
		if err := n.Remove(ref(t, target), map[string]string{"lim": use}); !errors.As(err, &conflict) ||
			!strings.Contains(err.Error(), "module lim") {
			t.Errorf("in use as %s: %v", use, err)
		}
	}
	if err := n.Remove(ref(t, target), map[string]string{"fw": "firewall"}); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(n.blobDir()); err != nil || len(left) != 0 {
		t.Errorf("blobs left: %v, %v", left, err)
	}
	var missing *apierrors.NotFound
	if err := n.Remove(ref(t, target), nil); !errors.As(err, &missing) {
		t.Errorf("twice: %v", err)
	}
}

// Files of a killed process do not affect the store, and the next change removes them.
func TestKilledInTheMiddle(t *testing.T) {
	host, n, dir := startRegistry(t), newNode(t), limiter(t)
	signer, public := author(t, "acme")
	n.trusts(public)
	push(t, host+"/acme/limiter:1", dir, signer)
	n.mustPull(host + "/acme/limiter:1")
	orphan := n.blobPath(digest.FromString("half a package"))
	for _, file := range []string{filepath.Join(n.dir, ".index.json1"), filepath.Join(n.blobDir(), ".2"), orphan} {
		write(t, file, []byte("half"))
	}
	if p, err := n.Get(host + "/acme/limiter:1"); err != nil || p.Version != "0.1.0" {
		t.Fatalf("after the kill: %v", err)
	}
	newVersion(t, dir, "2.0.0")
	push(t, host+"/acme/limiter:2", dir, signer)
	n.mustPull(host + "/acme/limiter:2")
	for _, pattern := range []string{filepath.Join(n.dir, ".index*"), filepath.Join(n.blobDir(), ".*"), orphan} {
		if left, err := filepath.Glob(pattern); err != nil || len(left) > 0 {
			t.Errorf("left behind: %v, %v", left, err)
		}
	}
	for _, name := range []string{":1", ":2"} {
		if _, err := n.Get(host + "/acme/limiter" + name); err != nil {
			t.Error(err)
		}
	}
}

func TestImageLayout(t *testing.T) {
	n := newNode(t)
	signer, public := author(t, "acme")
	n.trusts(public)
	layout := filepath.Join(t.TempDir(), "layout")
	target := "oci:" + layout + ":0.1.0"
	pushed := push(t, target, limiter(t), signer)
	n.mustPull(target)
	n.mustPull("oci:" + layout + "@" + pushed.Digest)
	if err := os.RemoveAll(layout); err != nil { // the stick is pulled out
		t.Fatal(err)
	}
	if p, err := n.Get(target); err != nil || p.Name != "limiter" {
		t.Errorf("opened: %v, %v", p, err)
	}
	var missing *apierrors.NotFound
	if _, err := n.pull(target); !errors.As(err, &missing) {
		t.Errorf("layout that is gone: %v", err)
	}
	full := t.TempDir()
	write(t, filepath.Join(full, "thesis.txt"), []byte("dear"))
	var conflict *apierrors.Conflict
	if _, err := Push(t.Context(), ref(t, "oci:"+full), Source{Dir: limiter(t)}, nil, "", Transport{}); !errors.As(err,
		&conflict) {
		t.Errorf("into a directory with other files: %v", err)
	}
}

func TestPlatforms(t *testing.T) {
	host, n := startRegistry(t), newNode(t)
	signer, public := author(t, "acme")
	n.trusts(public)
	mine := Node()
	other := "arm64"
	if mine.Architecture == other {
		other = "amd64"
	}
	here, there := limiter(t), limiter(t)
	control := "\ncontrol:\n  command: [./run]\n  files: [run]\n"
	for dir, text := range map[string]string{here: "for here", there: "for there"} {
		manifest := filepath.Join(dir, pkgs.ManifestName)
		write(t, manifest, append(read(t, manifest), control...))
		write(t, filepath.Join(dir, "run"), []byte(text))
	}
	target := ref(t, host+"/acme/limiter:1")
	source := Source{Platforms: map[string]string{"linux/" + mine.Architecture: here, "linux/" + other: there}}
	pushed, err := Push(t.Context(), target, source, signer, "", Transport{})
	if err != nil {
		t.Fatal(err)
	}
	pulled := n.mustPull(target.String())
	p, err := n.Get(pulled.Pinned)
	if err != nil {
		t.Fatal(err)
	}
	if pulled.Digest != pushed.Digest || string(p.ControlFiles["run"]) != "for here" {
		t.Errorf("pulled %s of %s: %q", pulled.Digest, pushed.Digest, p.ControlFiles["run"])
	}
	only := ref(t, host+"/acme/limiter:elsewhere")
	if _, err := Push(t.Context(), only, Source{Platforms: map[string]string{"linux/" + other: there}}, signer, "",
		Transport{}); err != nil {
		t.Fatal(err)
	}
	if _, err := n.pull(only.String()); !errors.Is(err, ErrPlatform) {
		t.Errorf("for another platform: %v", err)
	}
	newVersion(t, there, "9.0.0")
	if _, err := Push(t.Context(), only, source, signer, "", Transport{}); err == nil ||
		!strings.Contains(err.Error(), "an index holds one package") {
		t.Errorf("two versions in one index: %v", err)
	}
}

func TestReferences(t *testing.T) {
	sum := digest.FromString("").String()
	longest := "example.org/limiter:" + strings.Repeat("t", 128)
	for text, want := range map[string]string{
		"example.org/acme/limiter:1.2": "example.org/acme/limiter:1.2",
		"example.org/limiter":          "example.org/limiter:latest",
		"localhost:5000/a/b@" + sum:    "localhost:5000/a/b@" + sum,
		"oci:/srv/limiter:1":           "oci:/srv/limiter:1",
		"oci:/srv/limiter":             "oci:/srv/limiter:latest",
		longest:                        longest,
	} {
		if r, err := ParseReference(text); err != nil || r.String() != want {
			t.Errorf("%s: %s, %v", text, r, err)
		}
	}
	for _, text := range []string{"limiter", "acme/limiter:1", "example.org/Acme:1", "example.org/a:b c",
		"example.org/a@sha256:12", "example.org/a:1@" + sum,
		"example.org/a@sha512:" + strings.Repeat("0", 128), "oci:relative", "oci:/a/../b", longest + "t",
		"example.org/../a:1", "example.org/a:", "https://example.org/a:1"} {
		if r, err := ParseReference(text); err == nil {
			t.Errorf("%s was taken as %s", text, r)
		}
	}
	for host, want := range map[string]bool{"127.0.0.1:5000": true, "localhost": true, "[::1]:5000": true,
		"localhost.example.org": false, "10.0.0.1:5000": false} {
		if got := (Reference{Registry: host}).loopback(); got != want {
			t.Errorf("loopback %s: %v", host, got)
		}
	}
}
