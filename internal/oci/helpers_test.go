// SPDX-License-Identifier: Apache-2.0

package oci

import (
	"context"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"

	"github.com/kerb-edge/kerb/internal/pkgs"
)

var limiterOnce = sync.OnceValues(func() (string, error) {
	root, err := os.MkdirTemp("", "kerb-oci-")
	if err != nil {
		return "", err
	}
	dir := filepath.Join(root, "limiter")
	if err := pkgs.New(dir, "limiter", pkgs.NewWatch, ""); err != nil {
		return "", err
	}
	return dir, pkgs.Build(context.Background(), dir, pkgs.Options{Out: os.Stderr})
})

func TestMain(m *testing.M) {
	if dir := os.Getenv("KERB_OCI_PULL"); dir != "" {
		pullForever(dir)
	}
	code := m.Run()
	if dir, err := limiterOnce(); err == nil {
		os.RemoveAll(filepath.Dir(dir))
	}
	os.Exit(code)
}

// limiter is a copy of a small package that is built.
func limiter(t *testing.T) string {
	t.Helper()
	from, err := limiterOnce()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "limiter")
	if err := os.CopyFS(dir, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	return dir
}

// newVersion changes the version of a package.
func newVersion(t *testing.T, dir, version string) {
	t.Helper()
	file := filepath.Join(dir, pkgs.ManifestName)
	data := string(read(t, file))
	lines := strings.Split(data, "\n")
	for i, l := range lines {
		if strings.HasPrefix(l, "version:") {
			lines[i] = "version: " + version
		}
	}
	write(t, file, []byte(strings.Join(lines, "\n")))
}

func read(t *testing.T, file string) []byte {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func write(t *testing.T, file string, data []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, data, 0o644); err != nil {
		t.Fatal(err)
	}
}

// startRegistry runs a registry on this machine and returns its address.
func startRegistry(t *testing.T, options ...registry.Option) string {
	t.Helper()
	s := httptest.NewServer(registry.New(append(options, registry.Logger(log.New(io.Discard, "", 0)))...))
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

// proxy forwards requests to a registry unless answer handles them, and returns its address.
func proxy(t *testing.T, host string, answer func(w http.ResponseWriter, r *http.Request) bool) string {
	t.Helper()
	to := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: host})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !answer(w, r) {
			to.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

func ref(t *testing.T, text string) Reference {
	t.Helper()
	r, err := ParseReference(text)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// node is a store with separate trusted keys.
type node struct {
	*Store
	t *testing.T
}

func newNode(t *testing.T) node {
	dir := t.TempDir()
	return node{NewStore(filepath.Join(dir, "state", "packages"), filepath.Join(dir, "keys")), t}
}

// List opens all packages.
func (n node) List() (out []*pkgs.Package, err error) {
	err = n.Each(func(p *pkgs.Package) { out = append(out, p) })
	return out, err
}

// author creates a key. trusts makes nodes trust it.
func author(t *testing.T, name string) (signer *Signer, public string) {
	t.Helper()
	private, public, err := GenerateKey(filepath.Join(t.TempDir(), name))
	if err != nil {
		t.Fatal(err)
	}
	if signer, err = LoadSigner(private); err != nil {
		t.Fatal(err)
	}
	return signer, public
}

func (n node) trusts(public string) {
	n.t.Helper()
	write(n.t, filepath.Join(n.keys, filepath.Base(public)), read(n.t, public))
}

func push(t *testing.T, target, dir string, signer *Signer) *Pushed {
	t.Helper()
	pushed, err := Push(t.Context(), ref(t, target), Source{Dir: dir}, signer, "", Transport{})
	if err != nil {
		t.Fatal(err)
	}
	return pushed
}

func (n node) pull(target string) (*Pulled, error) {
	n.t.Helper()
	return n.Pull(n.t.Context(), ref(n.t, target), Trust{}, Transport{})
}

func (n node) mustPull(target string) *Pulled {
	n.t.Helper()
	p, err := n.pull(target)
	if err != nil {
		n.t.Fatal(err)
	}
	return p
}
