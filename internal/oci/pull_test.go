// SPDX-License-Identifier: Apache-2.0

package oci

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	"oras.land/oras-go/v2/registry/remote/errcode"

	"github.com/kerb-edge/kerb/internal/apierrors"
)

// A program can remove packages that it has pulled, but not those that an operator has pulled before or since.
func TestOwners(t *testing.T) {
	host, dir, n := startRegistry(t), limiter(t), newNode(t)
	signer, public := author(t, "acme")
	n.trusts(public)
	pinned := ref(t, host+"/acme/limiter@"+push(t, host+"/acme/limiter:1", dir, signer).Digest)
	pull := func(owner string) {
		t.Helper()
		if _, err := n.Pull(t.Context(), pinned, Trust{Owner: owner}, Transport{}); err != nil {
			t.Fatal(err)
		}
	}
	refused := func(what, owner string, inUse map[string]string) {
		t.Helper()
		var conflict *apierrors.Conflict
		if err := n.RemoveOf(owner, pinned, inUse); !errors.As(err, &conflict) {
			t.Errorf("%s: %v, want a conflict", what, err)
		}
	}
	pull("fleet")
	if all, err := n.List(); err != nil || len(all) != 1 || all[0].Origin.Owner != "fleet" ||
		all[0].Origin.Pinned != pinned.String() {
		t.Errorf("%v, %+v", err, all)
	}
	refused("another program", "other", nil)
	left := filepath.Join(n.dir, ".left") // locking the store, which writes to the disk, removes it
	write(t, left, nil)
	refused("another program again", "other", nil)
	refused("a module is made of it", "fleet", map[string]string{"m": pinned.String()})
	if _, err := os.Stat(left); err != nil {
		t.Errorf("the store was locked although nothing was removed: %v", err)
	}
	if err := n.RemoveOf("fleet", pinned, nil); err != nil {
		t.Error(err)
	}
	pull("fleet")
	pull("")
	refused("an operator has pulled it since", "fleet", nil)
	pull("fleet")
	refused("an operator had pulled it before", "fleet", nil)
}

// All keys of the node that have signed a package are known by their fingerprints, each once, although signatures are
// in two formats.
func TestSigners(t *testing.T) {
	host, dir, n := startRegistry(t), limiter(t), newNode(t)
	target := host + "/acme/limiter:1"
	push(t, target, dir, nil)
	var want []string
	for _, name := range []string{"acme", "audit", "stranger"} {
		signer, public := author(t, name)
		if _, err := Sign(t.Context(), ref(t, target), signer, "", Transport{}); err != nil {
			t.Fatal(err)
		}
		if name == "stranger" {
			continue
		}
		n.trusts(public)
		fingerprint, err := Fingerprint(public)
		if err != nil || !strings.HasPrefix(fingerprint, "sha256:") {
			t.Fatal(fingerprint, err)
		}
		want = append(want, fingerprint)
	}
	n.mustPull(target)
	p, err := n.Get(target)
	if err != nil || !slices.Equal(p.Origin.Signers, want) || p.Origin.Waived {
		t.Errorf("signed by %v, want %v: %v", p.Origin.Signers, want, err)
	}
	open := host + "/acme/open:1"
	push(t, open, dir, nil)
	if _, err := n.Pull(t.Context(), ref(t, open), Trust{AllowUnsigned: true}, Transport{}); err != nil {
		t.Fatal(err)
	}
	if p, err := n.Get(open); err != nil || p.Origin.Signers != nil || !p.Origin.Waived {
		t.Errorf("not signed: %+v, %v", p.Origin, err)
	}
	if _, err := Fingerprint(filepath.Join(dir, "kerb.yaml")); err == nil {
		t.Error("a manifest has a fingerprint")
	}
}

// A signature under another name makes its key no signer, nor does one without a name: it does not say which package it
// is for. As an exception a bundle without a name, as cosign makes it, counts for a package whose own name was asked
// for.
func TestSignersSignNames(t *testing.T) {
	signer, public := author(t, "acme")
	n := newNode(t)
	n.trusts(public)
	fingerprint, err := Fingerprint(public)
	if err != nil {
		t.Fatal(err)
	}
	root, at := digest.FromString("artifact"), ref(t, "example.org/acme/limiter:1")
	for name, want := range map[string][]string{"example.org/acme/limiter": {fingerprint}, "": nil,
		"example.org/acme/other": nil} {
		b, err := signer.bundle(root, name)
		if err != nil {
			t.Fatal(err)
		}
		bundled, err := parseBundle(b.data)
		if err != nil {
			t.Fatal(err)
		}
		simple, err := signer.simple(root, name)
		if err != nil {
			t.Fatal(err)
		}
		all := []signature{bundled, simple}
		trust := Trust{Keys: n.keys}
		for _, own := range []string{"", "other"} {
			if got := trust.signers(at, root, all, own); !slices.Equal(got, want) {
				t.Errorf("for %q of package %q: signed by %v, want %v", name, own, got, want)
			}
		}
		cosigns := want
		if name == "" {
			cosigns = []string{fingerprint}
		}
		if got := trust.signers(at, root, []signature{bundled}, "limiter"); !slices.Equal(got, cosigns) {
			t.Errorf("bundle for %q: signed by %v, want %v", name, got, cosigns)
		}
		if got := trust.signers(at, root, []signature{simple}, "limiter"); !slices.Equal(got, want) {
			t.Errorf("simple signing for %q: signed by %v, want %v", name, got, want)
		}
		layout, named := ref(t, "oci:/srv/limiter:1"), []string{fingerprint} // a directory has no name: any will do, but none
		if name == "" {
			named = nil
		}
		if got := trust.signers(layout, root, all, "limiter"); !slices.Equal(got, named) {
			t.Errorf("for %q in a layout: signed by %v, want %v", name, got, named)
		}
		if got := trust.signers(at, digest.FromString("other"), all, "limiter"); got != nil {
			t.Errorf("for %q: another artifact is signed by %v", name, got)
		}
	}
}

// The timeout for a registry that sends nothing is Transport.Stall; a slow one may take any time while it sends.
// Registries at addresses of the node itself are rejected, since programs may trust local clients.
func TestRegistryOnTheNode(t *testing.T) {
	asked := 0
	program := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked++
		w.WriteHeader(http.StatusNotFound)
	}))
	defer program.Close()
	_, port, _ := strings.Cut(strings.TrimPrefix(program.URL, "http://"), ":")
	for registry, want := range map[string]bool{"127.0.0.1": false, "0.0.0.0": true} {
		ref := Reference{Registry: registry + ":" + port, Repo: "x", Tag: "1"}
		asked = 0
		from, closeAll, err := Transport{PlainHTTP: true, Stall: time.Minute}.registryReader(ref)
		if err != nil {
			t.Fatal(err)
		}
		_, err = from.Resolve(t.Context(), "1")
		closeAll()
		if refused := errors.Is(err, errOnNode); refused != want || (asked == 0) != want {
			t.Errorf("%s: asked %d times, %v", registry, asked, err)
		}
	}
	for address, want := range map[string]bool{"127.0.0.1:80": true, "[::1]:80": true, "[::ffff:127.0.0.1]:80": true,
		"0.0.0.0:80": true, "169.254.169.254:80": true, "[fe80::1%eth0]:80": true, "192.0.2.1:443": false,
		"10.0.0.1:443": false, "[2001:db8::1]:443": false} {
		if err := refuseOwn("", address, nil); (err != nil) != want {
			t.Errorf("%s: %v", address, err)
		}
	}
}

// Headers of a registry are limited, since errors, which are stored, contain some of them.
func TestHeadersOfARegistryAreBounded(t *testing.T) {
	registry := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", strings.Repeat("x", 1<<20))
	}))
	defer registry.Close()
	ref := Reference{Registry: strings.TrimPrefix(registry.URL, "http://"), Repo: "x", Tag: "1"}
	from, closeAll, err := Transport{Stall: time.Minute}.registryReader(ref)
	if err != nil {
		t.Fatal(err)
	}
	defer closeAll()
	if _, err = from.Resolve(t.Context(), "1"); err == nil || !strings.Contains(err.Error(), "exceeded") {
		t.Errorf("%.200v", err)
	}
}

func TestStalledRegistry(t *testing.T) {
	n := newNode(t)
	end := make(chan struct{})
	const manifest = `{"schemaVersion":2}`
	slow := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.Contains(r.URL.Path, "/headers/"), strings.Contains(r.URL.Path, "/referrers/"):
			<-end
		case strings.HasSuffix(r.URL.Path, ".sig"):
			w.WriteHeader(http.StatusNotFound)
		case strings.Contains(r.URL.Path, "/list/"):
			w.Header().Set("Content-Type", "application/vnd.oci.image.manifest.v1+json")
			w.Header().Set("Docker-Content-Digest", digest.FromString(manifest).String())
			w.Header().Set("Content-Length", fmt.Sprint(len(manifest)))
			if r.Method == http.MethodGet {
				_, _ = w.Write([]byte(manifest))
			}
		case strings.Contains(r.URL.Path, "/manifests/") && r.Method == http.MethodHead:
			w.Header().Set("Content-Type", "application/vnd.oci.image.manifest.v1+json")
			w.Header().Set("Docker-Content-Digest", "sha256:"+strings.Repeat("0", 64))
			w.Header().Set("Content-Length", "100")
		case strings.Contains(r.URL.Path, "sha256:"):
			w.Header().Set("Content-Type", "application/vnd.oci.image.manifest.v1+json")
			w.Header().Set("Content-Length", "100")
			_, _ = w.Write([]byte("{"))
			_ = http.NewResponseController(w).Flush()
			<-end
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	t.Cleanup(func() { close(end); slow.Close() })
	host := strings.TrimPrefix(slow.URL, "http://")
	for repository, root := range map[string]string{"headers": "sha256:" + strings.Repeat("0", 64),
		"body": "sha256:" + strings.Repeat("0", 64), "list": digest.FromString(manifest).String()} {
		target := ref(t, host+"/"+repository+"/p@"+root)
		began := time.Now()
		_, err := n.Pull(t.Context(), target, Trust{}, Transport{Stall: 50 * time.Millisecond})
		if !errors.Is(err, errStalled) || !Temporary(err) || time.Since(began) > 20*time.Second {
			t.Errorf("%s: %v after %v", repository, err, time.Since(began))
		}
	}
}

// Only errors after which the same pull may succeed later are temporary.
func TestTemporary(t *testing.T) {
	host, dir, n := startRegistry(t), limiter(t), newNode(t)
	push(t, host+"/acme/open:1", dir, nil)
	status := 0
	answers := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }))
	t.Cleanup(answers.Close)
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	other := strings.TrimPrefix(answers.URL, "http://")
	for _, c := range []struct {
		target    string
		status    int
		temporary bool
		says      string
	}{{host + "/acme/open:1", 0, false, "not signed"}, {host + "/acme/none:1", 0, false, "does not exist"},
		{closed.Addr().String() + "/a/b:1", 0, true, ": connection refused"},
		{other + "/a/b:1", http.StatusForbidden, false, "403 Forbidden: write credentials for it to /c.json"},
		{other + "/a/b:1", http.StatusBadGateway, true, "the registry answers 502 Bad Gateway"}} {
		status = c.status
		_, err := n.Pull(t.Context(), ref(t, c.target), Trust{}, Transport{Stall: time.Minute})
		if err == nil || Temporary(err) != c.temporary {
			t.Errorf("%s %d: temporary %v: %v", c.target, c.status, err != nil && Temporary(err), err)
		}
		explained := Explain(err, ref(t, c.target), "/c.json").Error()
		if !strings.Contains(explained, c.target) || !strings.Contains(explained, c.says) {
			t.Errorf("%s: %s, want %q", c.target, explained, c.says)
		}
	}
}

// The explanation of an error does not depend on the text of a registry, nor on the port.
func TestExplain(t *testing.T) {
	at := ref(t, "r.example/a/b:1")
	for _, c := range []struct {
		err  error
		says string
	}{
		{&net.OpError{Op: "read", Err: syscall.ECONNRESET, Source: &net.TCPAddr{Port: 4711}}, "connection reset by peer"},
		{&net.OpError{Op: "dial", Err: &net.DNSError{Err: "read udp 10.0.0.1:4711: timeout", IsTimeout: true}},
			"its host is not resolved: no DNS server answers"},
		{&net.OpError{Op: "read", Err: os.ErrDeadlineExceeded}, "the registry does not answer in time"},
		{&errcode.ErrorResponse{URL: &url.URL{}, StatusCode: 500, Errors: errcode.Errors{{Message: "request 4711"}}},
			"the registry answers 500 Internal Server Error"},
		{&os.PathError{Op: "write", Path: "/var/.4711", Err: syscall.ENOSPC}, "no space left on device"},
		{x509.CertificateInvalidError{Reason: x509.Expired, Detail: "4711"},
			"the certificate of the registry has expired, or is not valid yet: check the node's clock"},
	} {
		if got := Explain(fmt.Errorf("4711: %w", c.err), at, "").Error(); got != "r.example/a/b:1: "+c.says {
			t.Errorf("%q, want %q", got, c.says)
		}
	}
}
