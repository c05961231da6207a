// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/x509"
	"debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	kerboci "github.com/kerb-edge/kerb/internal/oci"
)

// dist has a real program of each platform under all names.
func dist(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, arch := range architectures {
		first := filepath.Join(dir, programs[0]+"-linux-"+arch)
		cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s", "-o", first,
			"github.com/kerb-edge/kerb/cmd/kerb-cni")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		for _, name := range programs[1:] {
			if err := os.Link(first, filepath.Join(dir, name+"-linux-"+arch)); err != nil {
				t.Fatal(err)
			}
		}
	}
	return dir
}

// layout is an image layout that a test reads without the library that has written it.
type layout struct {
	*testing.T
	dir string
}

func (l layout) blob(d digest.Digest) []byte {
	l.Helper()
	data, err := os.ReadFile(filepath.Join(l.dir, "blobs/sha256", d.Encoded()))
	if err != nil {
		l.Fatal(err)
	}
	if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != d.Encoded() {
		l.Errorf("%s has other content", d)
	}
	return data
}

func decode[T any](t *testing.T, data []byte) (out T) {
	t.Helper()
	if err := json.Unmarshal(data, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

func (l layout) manifest(d digest.Digest) ocispec.Manifest {
	l.Helper()
	return decode[ocispec.Manifest](l.T, l.blob(d))
}

func (l layout) index() ocispec.Index {
	l.Helper()
	data, err := os.ReadFile(filepath.Join(l.dir, "index.json"))
	if err != nil {
		l.Fatal(err)
	}
	return decode[ocispec.Index](l.T, data)
}

// named returns what has a tag.
func (l layout) named(tag string) (found digest.Digest) {
	l.Helper()
	for _, d := range l.index().Manifests {
		if d.Annotations[ocispec.AnnotationRefName] == tag {
			found = d.Digest
		}
	}
	if found == "" {
		l.Fatalf("nothing has the tag %s", tag)
	}
	return found
}

// The image of a platform has its programs and nothing else that runs, and a list of all that they were built of. It is
// signed, and the same programs make the same image.
func TestImage(t *testing.T) {
	from, name := dist(t), filepath.Join(t.TempDir(), "release")
	private, public, err := kerboci.GenerateKey(name)
	if err != nil {
		t.Fatal(err)
	}
	l := layout{t, filepath.Join(t.TempDir(), "one")}
	root, err := write(t.Context(), l.dir, from, "v1.2.3", private)
	if err != nil {
		t.Fatal(err)
	}
	again, err := write(t.Context(), filepath.Join(t.TempDir(), "two"), from, "v1.2.3", "")
	if err != nil || again != root {
		t.Errorf("the same programs make %s and %s (%v)", root, again, err)
	}
	if l.named(tag) != root {
		t.Error("the tag does not lead to the image")
	}
	all := decode[ocispec.Index](t, l.blob(root))
	if len(all.Manifests) != len(architectures) {
		t.Fatalf("%d platforms", len(all.Manifests))
	}
	for i, d := range all.Manifests {
		arch := architectures[i]
		program, err := os.ReadFile(filepath.Join(from, "kerb-linux-"+arch))
		if err != nil {
			t.Fatal(err)
		}
		m := l.manifest(d.Digest)
		config := decode[ocispec.Image](t, l.blob(m.Config.Digest))
		if d.Platform.Architecture != arch || config.Architecture != arch || len(m.Layers) != 1 {
			t.Errorf("%s: %+v %+v", arch, d.Platform, config)
		}
		l.layer(l.blob(m.Layers[0].Digest), config.RootFS.DiffIDs[0], program)
		l.parts(d.Digest, program)
	}
	l.signed(root, public)
}

// layer compares the files of a layer.
func (l layout) layer(data []byte, diffID digest.Digest, program []byte) {
	l.Helper()
	z, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		l.Fatal(err)
	}
	plain, err := io.ReadAll(z)
	if err != nil || digest.FromBytes(plain) != diffID {
		l.Errorf("the layer is not what the configuration says: %v", err)
	}
	var files []string
	for r := tar.NewReader(bytes.NewReader(plain)); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			l.Fatal(err)
		}
		content, _ := io.ReadAll(r)
		switch h.Typeflag {
		case tar.TypeReg:
			files = append(files, h.Name)
			if !bytes.Equal(content, program) || h.Mode != 0o755 || h.Uid != 0 {
				l.Errorf("%s: %d bytes, mode %o", h.Name, len(content), h.Mode)
			}
		case tar.TypeSymlink:
			files = append(files, h.Name+" -> "+h.Linkname)
		}
	}
	want := "var/run -> /run usr/bin/kerb usr/bin/kerb-cni usr/bin/kerb-kube-controller usr/bin/kerb-kube-node " +
		"usr/bin/kerb-nri"
	if got := strings.Join(files, " "); got != want {
		l.Errorf("files %s", got)
	}
}

// parts compares the list of parts that refers to an image with what the program says.
func (l layout) parts(of digest.Digest, program []byte) {
	l.Helper()
	var list document
	for _, d := range l.index().Manifests {
		if m := l.manifest(d.Digest); m.Subject != nil && m.Subject.Digest == of && m.ArtifactType == spdxType {
			list = decode[document](l.T, l.blob(m.Layers[0].Digest))
		}
	}
	info, err := buildinfo.Read(bytes.NewReader(program))
	if err != nil || len(info.Deps) == 0 {
		l.Fatal(err)
	}
	for _, m := range info.Deps {
		if !slices.ContainsFunc(list.Packages, func(p part) bool {
			return p.Name == m.Path && p.Version == m.Version && p.External[0].Locator == "pkg:golang/"+m.Path+"@"+m.Version
		}) {
			l.Errorf("%s is missing in the list of parts", m.Path)
		}
	}
	sum, ids, described := sha256.Sum256(program), map[string]bool{documentID: true}, 0
	for _, p := range list.Packages {
		if ids[p.ID] {
			l.Errorf("%s is there twice", p.ID)
		}
		ids[p.ID] = true
		if slices.Contains(programs, p.Name) && p.Version == "v1.2.3" && p.Checksums[0].Value == hex.EncodeToString(sum[:]) {
			described++
		}
	}
	for _, r := range list.Relations {
		if !ids[r.From] || !ids[r.To] {
			l.Errorf("%+v relates what is not there", r)
		}
	}
	if list.Version != "SPDX-2.3" || described != len(programs) {
		l.Errorf("%d programs, %+v", described, list.Creation)
	}
}

// signed checks the signature as cosign verify --key does, without the code that has made it.
func (l layout) signed(root digest.Digest, public string) {
	l.Helper()
	text, err := os.ReadFile(public)
	if err != nil {
		l.Fatal(err)
	}
	block, _ := pem.Decode(text)
	key, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		l.Fatal(err)
	}
	layer := l.manifest(l.named("sha256-" + root.Encoded() + ".sig")).Layers[0]
	payload := l.blob(layer.Digest)
	signature, err := base64.StdEncoding.DecodeString(layer.Annotations["dev.cosignproject.cosign/signature"])
	if err != nil || !ed25519.Verify(key.(ed25519.PublicKey), payload, signature) {
		l.Errorf("the signature does not hold: %v", err)
	}
	if !bytes.Contains(payload, []byte(`"docker-manifest-digest":"`+root.String()+`"`)) {
		l.Errorf("the signature is for %s", payload)
	}
	l.bundled(root, key.(ed25519.PublicKey))
}

// bundled checks the signature as cosign 3 does: an artifact that refers to the image has a bundle.
func (l layout) bundled(root digest.Digest, key ed25519.PublicKey) {
	l.Helper()
	type bundle struct {
		DSSEEnvelope struct {
			Payload     []byte
			PayloadType string
			Signatures  []struct{ Sig []byte }
		}
	}
	var found bundle
	for _, d := range l.index().Manifests {
		m := decode[ocispec.Manifest](l.T, l.blob(d.Digest))
		if m.Subject != nil && m.Subject.Digest == root && strings.Contains(m.ArtifactType, "sigstore.bundle.v0.3") {
			found = decode[bundle](l.T, l.blob(m.Layers[0].Digest))
		}
	}
	e := found.DSSEEnvelope
	signed := fmt.Appendf(nil, "DSSEv1 28 application/vnd.in-toto+json %d %s", len(e.Payload), e.Payload)
	if len(e.Signatures) != 1 || !ed25519.Verify(key, signed, e.Signatures[0].Sig) {
		l.Errorf("the signature of the bundle does not hold: %+v", found)
	}
	if !bytes.Contains(e.Payload, []byte(`"digest":{"sha256":"`+root.Encoded()+`"}`)) {
		l.Errorf("the bundle is for %s", e.Payload)
	}
}

// What is there is not overwritten, and a program of another platform makes no image.
func TestRefused(t *testing.T) {
	from, dir := dist(t), t.TempDir()
	if _, err := write(t.Context(), dir, from, "v1", ""); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a directory that is there: %v", err)
	}
	arm := filepath.Join(from, "kerb-cni-linux-arm64")
	if err := errors.Join(os.Remove(arm), os.Link(filepath.Join(from, "kerb-cni-linux-amd64"), arm)); err != nil {
		t.Fatal(err)
	}
	_, err := write(t.Context(), filepath.Join(dir, "a"), from, "v1", "")
	if err == nil || !strings.Contains(err.Error(), "kerb-cni is built for amd64") {
		t.Errorf("a program of another platform: %v", err)
	}
	if err := os.Remove(arm); err != nil {
		t.Fatal(err)
	}
	_, err = write(t.Context(), filepath.Join(dir, "b"), from, "v1", "")
	if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "make build") {
		t.Errorf("a program is missing: %v", err)
	}
}
