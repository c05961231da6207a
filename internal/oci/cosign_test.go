// SPDX-License-Identifier: Apache-2.0

package oci

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/content/oci"
)

// keyTypes are those that nodes trust.
var keyTypes = []string{"p256", "ed25519"}

// The layouts in testdata/cosign have an artifact that cosign 3 has signed: a bundle for each type of key.
// `make test-cosign UPDATE=1` writes them again.
func TestBundlesOfCosign(t *testing.T) {
	for _, keyType := range keyTypes {
		n := newNode(t)
		layout, err := filepath.Abs(filepath.Join("testdata/cosign", keyType))
		if err != nil {
			t.Fatal(err)
		}
		at := ref(t, "oci:"+layout+":limiter")
		from, closer, err := Transport{}.reader(t.Context(), at)
		if err != nil {
			t.Fatal(err)
		}
		defer closer()
		root, err := resolve(t.Context(), from, at)
		if err != nil {
			t.Fatal(err)
		}
		found, err := findSignatures(t.Context(), from, root)
		if err != nil || found.problem != nil || found.simple != nil || len(found.bundles) != 1 {
			t.Fatalf("%s: %+v, %v", keyType, found, err)
		}
		l := &loader{from: from, ref: at, trust: Trust{Keys: n.keys}}
		l.out.root = root
		if err := l.signed(t.Context(), found); err == nil {
			t.Errorf("%s: signed without a key", keyType)
		}
		n.trusts(layout + ".pub")
		l.trust.Identity = "example.org/acme/limiter"
		if err := l.signed(t.Context(), found); err != nil ||
			l.out.proof != (proof{key: keyType, format: FormatBundle, nameless: true}) {
			t.Errorf("%s: %+v, %v", keyType, l.out.proof, err)
		}
		l.out.root.Digest = found.bundles[0].Digest
		if err := l.signed(t.Context(), found); err == nil || !strings.Contains(err.Error(), "something else") {
			t.Errorf("%s: another artifact: %v", keyType, err)
		}
	}
}

// cosign runs the real program (make test-cosign).
type cosign struct {
	*testing.T
	program, dir string
}

func newCosign(t *testing.T) cosign {
	program := os.Getenv("KERB_COSIGN")
	if program == "" {
		t.Skip("needs cosign 3: make test-cosign")
	}
	return cosign{t, program, t.TempDir()}
}

func (c cosign) run(args ...string) (string, error) {
	c.Helper()
	cmd := exec.CommandContext(c.Context(), c.program, args...)
	cmd.Dir = c.dir
	cmd.Env = append(os.Environ(), "COSIGN_PASSWORD=", "HOME="+c.dir)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (c cosign) must(args ...string) {
	c.Helper()
	if out, err := c.run(args...); err != nil {
		c.Fatalf("cosign %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// sign signs with a key and without services.
func (c cosign) sign(key, target string, flags ...string) {
	c.Helper()
	c.must(append([]string{"sign", "--yes", "--key", key + ".cosign.key", "--tlog-upload=false",
		"--use-signing-config=false", "--allow-http-registry", target}, flags...)...)
}

func (c cosign) verify(key, target string, flags ...string) (string, error) {
	c.Helper()
	return c.run(append([]string{"verify", "--key", key + ".pub", "--insecure-ignore-tlog=true", "--allow-http-registry",
		target}, flags...)...)
}

// key makes a key for both programs.
func (c cosign) key(keyType string) *Signer {
	c.Helper()
	name := filepath.Join(c.dir, keyType)
	if keyType == "p256" {
		c.p256(name)
	} else if _, _, err := GenerateKey(name); err != nil {
		c.Fatal(err)
	}
	signer, err := LoadSigner(name + ".key")
	if err != nil {
		c.Fatal(err)
	}
	c.must("import-key-pair", "--yes", "--key", name+".key", "--output-key-prefix", name+".cosign")
	return signer
}

func (c cosign) p256(name string) {
	c.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		c.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		c.Fatal(err)
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		c.Fatal(err)
	}
	write(c.T, name+".key", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}))
	write(c.T, name+".pub", pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}))
}

// Kerb accepts cosign's signatures, in both formats and in both kinds of registries.
func TestSignedByCosign(t *testing.T) {
	c, dir := newCosign(t), limiter(t)
	for _, keyType := range keyTypes {
		c.key(keyType)
		for name, host := range registries(t) {
			n := newNode(t)
			target := host + "/acme/limiter:1"
			pinned := host + "/acme/limiter@" + push(t, target, dir, nil).Digest
			c.sign(keyType, pinned)
			if _, err := n.pull(target); err == nil {
				t.Fatalf("%s, %s: pulled without the key", keyType, name)
			}
			n.trusts(filepath.Join(c.dir, keyType+".pub"))
			if p, err := n.pull(target); err != nil || p.SignedBy != keyType || p.Signature != FormatBundle {
				t.Errorf("%s, %s: %+v, %v", keyType, name, p, err)
			}
			if _, err := n.Get(target); err != nil {
				t.Errorf("%s, %s: %v", keyType, name, err)
			}
			c.sign(keyType, pinned, "--new-bundle-format=false")
			if p, err := n.pull(target); err != nil || p.SignedBy != keyType || p.Signature != FormatSimple {
				t.Errorf("%s, %s, old format: %+v, %v", keyType, name, p, err)
			}
		}
	}
}

// cosign verifies Kerb's signatures in both formats, and rejects other artifacts.
func TestVerifiedByCosign(t *testing.T) {
	c, dir := newCosign(t), limiter(t)
	for _, keyType := range keyTypes {
		signer, other := c.key(keyType), filepath.Join(c.dir, "other-"+keyType)
		if _, _, err := GenerateKey(other); err != nil {
			t.Fatal(err)
		}
		for name, host := range registries(t) {
			target := host + "/acme/limiter:1"
			push(t, target, dir, signer)
			for _, flag := range []string{"--new-bundle-format=true", "--new-bundle-format=false"} {
				if out, err := c.verify(keyType, target, flag); err != nil {
					t.Errorf("%s, %s, %s: %v\n%s", keyType, name, flag, err, out)
				}
				if out, err := c.verify("other-"+keyType, target, flag); err == nil {
					t.Errorf("%s, %s, %s: verified by another key:\n%s", keyType, name, flag, out)
				}
			}
			bundled := host + "/acme/bundled:1" // without the other format
			push(t, bundled, dir, nil)
			signBundle(t, bundled, signer, host+"/acme/bundled")
			if out, err := c.verify(keyType, bundled); err != nil {
				t.Errorf("%s, %s: bundle: %v\n%s", keyType, name, err, out)
			}
		}
	}
}

func registries(t *testing.T) map[string]string {
	return map[string]string{"tag": startRegistry(t), "API": startRegistry(t, registry.WithReferrersSupport(true))}
}

// packageData is a package that cosign has signed, for tests of what PackageTrusts permit.
const packageData = "../../integrations/kubernetes/node/testdata/cosign"

// Writes testdata/cosign, an artifact without content, and packageData, signed by cosign.
func TestWriteTestdata(t *testing.T) {
	c := newCosign(t)
	if os.Getenv("KERB_UPDATE") == "" {
		t.Skip("writes files: make test-cosign UPDATE=1")
	}
	for _, keyType := range keyTypes {
		c.key(keyType)
		target := startRegistry(t) + "/acme/limiter:limiter"
		from, err := Transport{}.repository(ref(t, target))
		if err != nil {
			t.Fatal(err)
		}
		config := newBlob(ocispec.MediaTypeEmptyJSON, []byte("{}"))
		root, err := jsonBlob(ocispec.MediaTypeImageManifest, ocispec.Manifest{
			Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest,
			ArtifactType: ArtifactType, Config: config.Descriptor, Layers: []ocispec.Descriptor{config.Descriptor}})
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range []blob{config, root} {
			if err := put(t.Context(), from, b); err != nil {
				t.Fatal(err)
			}
		}
		if err := from.Tag(t.Context(), root.Descriptor, "limiter"); err != nil {
			t.Fatal(err)
		}
		c.write(keyType, target, root.Digest.String(), filepath.Join("testdata/cosign", keyType))
	}
	target := startRegistry(t) + "/acme/pass:0.1.0"
	c.write(keyTypes[0], target, push(t, target, "../dataplane/testdata/pass", nil).Digest, packageData)
}

// write signs what target leads to, and writes it as a layout with the key.
func (c cosign) write(keyType, target, root, layout string) {
	c.Helper()
	c.sign(keyType, ref(c.T, target).At(digest.Digest(root)).String())
	if err := os.RemoveAll(layout); err != nil {
		c.Fatal(err)
	}
	to, err := oci.New(layout)
	if err != nil {
		c.Fatal(err)
	}
	at := ref(c.T, target)
	from, err := Transport{}.repository(at)
	if err != nil {
		c.Fatal(err)
	}
	if _, err := oras.ExtendedCopy(c.Context(), from, at.Tag, to, at.Tag, oras.ExtendedCopyOptions{}); err != nil {
		c.Fatal(err)
	}
	write(c.T, layout+".pub", read(c.T, filepath.Join(c.dir, keyType+".pub")))
}
